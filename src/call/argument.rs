//! Arguments of verbs: which ones must not be NULL, and which values they may have.

use crate::base::error::{Error, Result};
use crate::base::limits;
use crate::pg::text::{Text, TextArray};

/// An argument that must not be NULL.
pub trait Given<T> {
    /// Returns the value, or the error that names the argument.
    fn given(self, what: &'static str) -> Result<T>;
}

impl<T> Given<T> for Option<T> {
    fn given(self, what: &'static str) -> Result<T> {
        self.ok_or_else(|| Error::Null(what).into())
    }
}

/// Returns a name, such as that of a consumer or a resource. Fails if it is empty or too long.
pub fn text_arg(what: &'static str, text: Option<Text>) -> Result<String> {
    let name = text.given(what)?.0;
    if (1..=limits::MAX_NAME).contains(&name.len()) {
        Ok(name)
    } else {
        Err(Error::Name { what, length: name.len() }.into())
    }
}

/// Returns the distinct names of an array of resources, sorted.
pub fn names_arg(resources: Option<TextArray>) -> Result<Vec<String>> {
    let names = resources.given("resources")?.0;
    let given = names.len();
    if given > limits::MAX_NAMES {
        return Err(
            Error::Number { what: "resources", given: given as i64, min: 0, max: limits::MAX_NAMES as i64 }.into()
        );
    }
    let mut names = names.into_iter().map(|name| text_arg("resource", name)).collect::<Result<Vec<_>>>()?;
    names.sort_unstable();
    names.dedup();
    Ok(names)
}
