//! The errors of this library, and the states of a keeper.

use std::fmt::{self, Display};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tokio_postgres::error::SqlState;

/// What stands for the text of an error that cannot be made, or that the server refuses.
pub(crate) const NO_TEXT: &str = "the error's text could not be stored";
/// How the SQLSTATEs of the server begin that pass by themselves. 25006: a standby that is about to be the primary.
const PASSING: [&str; 6] = ["25006", "40001", "40P01", "53", "55P03", "57014"];

/// Any error, of a function of yours.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What a verb, a scope or a transaction fails with.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The lease, or the trust in it, has ended: begin anew. The keeper already does.
    Lost(Cause),
    /// The transaction is rolled back, by LF001, 55P03 or 40001: ask again.
    Refused(Cause),
    /// The connection broke before COMMIT was answered, so the transaction may still commit. The scope has ended: the
    /// next one begins under a new fence.
    Unsure(Cause),
    /// The keeper drains, or is closed.
    Closed,
    /// A mistake of the caller.
    Misuse(&'static str),
    /// Another error of the driver.
    Postgres(tokio_postgres::Error),
    /// An error of a function of yours; or a timeout ([`std::io::Error`]).
    Other(BoxError),
}

/// What an error is about, as far as that is known.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Cause {
    /// The lease, group or queue.
    pub resource: Option<String>,
    /// The fence that is lost, or was refused.
    pub fence: Option<i64>,
    /// The SQLSTATE, if the server raised the error.
    pub code: Option<SqlState>,
    /// The driver's error.
    pub error: Option<BoxError>,
}

impl Error {
    /// Returns the SQLSTATE, if the server raised this error.
    pub fn code(&self) -> Option<&SqlState> {
        match self {
            Error::Lost(cause) | Error::Refused(cause) | Error::Unsure(cause) => cause.code.as_ref(),
            Error::Postgres(error) => error.code(),
            _ => None,
        }
    }

    pub(crate) fn lost() -> Self {
        Error::Lost(Cause::default())
    }

    /// Returns the error for a driver's error with one of the SQLSTATEs that the protocol has a meaning for.
    pub(crate) fn by_code<E: Into<BoxError>>(code: Option<&str>, error: E) -> Result<Self, E> {
        let about: fn(Cause) -> Self = match code {
            Some("LF003") => Error::Lost,
            Some("LF001" | "55P03" | "40001") => Error::Refused,
            _ => return Err(error),
        };
        Ok(about(Cause { code: code.map(SqlState::from_code), error: Some(error.into()), ..Cause::default() }))
    }

    /// Tells of a driver's error that the end of a commit is unknown.
    pub(crate) fn unsure(self) -> Self {
        let error = match self {
            Error::Postgres(error) => error.into(),
            Error::Other(error) => error,
            error => error.into(),
        };
        Error::Unsure(Cause { error: Some(error), ..Cause::default() })
    }

    /// Says what the error is about.
    pub(crate) fn of(mut self, resource: &str, fence: i64) -> Self {
        if let Error::Lost(cause) | Error::Refused(cause) | Error::Unsure(cause) = &mut self {
            (cause.resource, cause.fence) = (Some(resource.to_owned()), Some(fence));
        }
        self
    }

    /// Returns the SQLSTATE of an error that leaves its connection good.
    pub(crate) fn of_server(&self) -> Option<&str> {
        self.code().map(SqlState::code).filter(|code| is_of_statement(code))
    }

    /// Tells whether a call that raised this error may be under way, or done. One of ours within another says that
    /// there was no connection.
    pub(crate) fn is_answer_lost(&self) -> bool {
        self.of_server().is_none() && !matches!(self, Error::Other(error) if error.is::<Error>())
    }

    /// Tells whether a call that raised this error is worth repeating.
    pub(crate) fn passes(&self) -> bool {
        !matches!(self, Error::Lost(_) | Error::Closed)
            && self.of_server().is_none_or(|code| PASSING.iter().any(|passing| code.starts_with(passing)))
    }
}

/// Tells whether an error with this SQLSTATE leaves its connection good.
pub(crate) fn is_of_statement(code: &str) -> bool {
    !code.starts_with("08") && !code.starts_with("57P")
}

/// Tells an error with its causes: the driver's errors are in these. An error of the user may panic.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let told = AssertUnwindSafe(|| causes.map(ToString::to_string).collect::<Vec<_>>().join(": "));
    catch_unwind(told).unwrap_or_else(|_| NO_TEXT.into())
}

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (told, cause) = match self {
            Error::Lost(cause) => ("the lease, or the trust in it, has ended", cause),
            Error::Refused(cause) => ("the transaction was refused, and is rolled back", cause),
            Error::Unsure(cause) => ("the connection broke before COMMIT was answered", cause),
            Error::Closed => return f.write_str("the keeper is closed"),
            Error::Misuse(mistake) => return f.write_str(mistake),
            // With the detail and the hint, where the driver says only that it was an error of the database.
            Error::Postgres(error) => return error.as_db_error().map_or(error as &dyn Display, |told| told).fmt(f),
            Error::Other(error) => return error.fmt(f),
        };
        match (&cause.resource, cause.fence) {
            (Some(resource), Some(fence)) => write!(f, "{told} ({resource}, fence {fence})"),
            _ => f.write_str(told),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Postgres(error) if error.as_db_error().is_some() => None,
            Error::Postgres(error) => error.source(),
            Error::Other(error) => error.source(),
            Error::Lost(cause) | Error::Refused(cause) | Error::Unsure(cause) => Some(&**cause.error.as_ref()?),
            Error::Closed | Error::Misuse(_) => None,
        }
    }
}

impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Self {
        let code = error.code().cloned();
        Error::by_code(code.as_ref().map(SqlState::code), error).unwrap_or_else(Error::Postgres)
    }
}

impl From<BoxError> for Error {
    fn from(error: BoxError) -> Self {
        match error.downcast::<Error>().map_err(|error| error.downcast::<tokio_postgres::Error>()) {
            Ok(ours) => *ours,
            Err(Ok(error)) => (*error).into(),
            Err(Err(other)) => Error::Other(other),
        }
    }
}

/// The state of a keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The first session is being opened.
    Starting,
    /// The session lives, and work may begin.
    Trusted,
    /// No answer is recent enough: all work is cancelled, and the session is asked.
    Doubting,
    /// The session has ended: all work is cancelled. Another session opens, perhaps after a pause.
    Lost,
    /// The session lives, and gets nothing new.
    Draining,
    /// The session is closed.
    Closed,
}
