"""The errors of the library, and what an error of a driver means."""

import re
import traceback

from ._drivers import severity_of, sqlstate_of

SESSION_ENDED = "LF003"
SERVER_STATE = "55000"  # before 0.3.0 it also said that a session has ended
FENCE_REFUSED = "LF001"
REFUSED = frozenset((FENCE_REFUSED, "55P03", "40001"))


class LeaseError(Exception):
    """The base of `Lost`, `Refused` and `Unsure`. The driver's error, if there is one, is the `__cause__`.

    Attributes:
        resource: the name of the lease, group, queue or key; None if there is none.
        fence: the fence under which the work was done; None if there is none.
        sqlstate: the SQLSTATE of the server's error; None if it is not the server that raised it.
    """

    def __init__(
        self, message: str, *, resource: str | None = None, fence: int | None = None, sqlstate: str | None = None
    ) -> None:
        super().__init__(message)
        self.resource, self.fence, self.sqlstate = resource, fence, sqlstate


class Lost(LeaseError):
    """The lease, or the trust in it, has ended. Begin anew, under a new fence. The keeper already does."""


class Refused(LeaseError):
    """The server refused the transaction: LF001, 55P03 or 40001. It is rolled back: ask again."""


class Unsure(LeaseError):
    """The connection broke before COMMIT was answered. The transaction may still commit, so the scope has ended, and
    the next one begins under a new fence. Read from the database what is committed."""


class Closed(RuntimeError):
    """The keeper is not open: it was not opened, drains, or is closed."""


def describe(error: BaseException) -> str:
    """Returns the text of an error as a server with UTF-8 can store it."""
    text = "".join(traceback.format_exception_only(error)).strip()  # also if the error's own __str__ fails
    return re.sub("[\0\ud800-\udfff]", "\ufffd", text)


def is_answer(error: BaseException) -> bool:
    """Tells whether the server has answered a statement with this error, and the connection goes on. Otherwise the
    connection is lost, and what became of the statement is unknown."""
    state = sqlstate_of(error)
    return state is not None and not state.startswith(("08", "57P")) and severity_of(error) not in ("FATAL", "PANIC")


def meaning(error: Exception, resource: str, fence: int, *, ours: bool = False, unsure: bool = False) -> Exception:
    """Returns `Lost`, `Refused` or `Unsure` for an error that means so, with `error` as its cause; else `error` itself.

    `ours`: the statement was one of this library, so that 55000 can only mean that the session has ended. `unsure`: it
    was a COMMIT, and the error is no answer.
    """
    state = sqlstate_of(error)
    is_lost = state == SESSION_ENDED or (ours and state == SERVER_STATE)
    if isinstance(error, LeaseError) or not (unsure or is_lost or state in REFUSED):
        return error
    kind = Unsure if unsure else Lost if is_lost else Refused
    told = kind(f"{resource}: {error}", resource=resource, fence=fence, sqlstate=state)
    told.__cause__ = error
    return told
