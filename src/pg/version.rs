//! Two things have versions: the library that runs, and the SQL objects of each database, which
//! `ALTER EXTENSION eskit_lease UPDATE` brings forward. A library serves the objects of its own version and of all
//! before it. So the library comes first: its file is replaced, the server is restarted, and then each database is
//! updated while it is used. Whatever else happens is refused with 55000 and a hint:
//!
//! * **Updated before the restart.** Processes inherit the library that the postmaster was started with, and PostgreSQL
//!   knows it by the name of its file, whatever is in that file since. So old code would meet new objects. An update
//!   therefore begins with [`_require_library`].
//! * **Two libraries in one process.** Only where the functions' library has another name than the preloaded one (which
//!   was given with a path, by a symbolic link, or was found elsewhere in dynamic_library_path) is a new file loaded
//!   beside the old. It neither knows how the other has laid out shared memory nor has what that keeps in each process,
//!   so it leaves all that alone ([`another_is_preloaded`]).
//! * **An object that this library needs is not there** ([`catalog::unserved`](super::catalog::unserved)).

use super::text::Text;
use crate::base::VERSION;
use crate::base::error::{Error, Result};
use pgrx::pg_sys;
use pgrx::prelude::*;

fn numbers(version: &str) -> Vec<u32> {
    version.split('.').map(|number| number.parse().unwrap_or(u32::MAX)).collect()
}

/// What an update of the extension begins with.
#[pg_extern(schema = "eskit_lease", strict)]
fn _require_library(version: Text) -> Result<()> {
    if numbers(VERSION) < numbers(&version) { Err(Error::LibraryOlder(version.0).into()) } else { Ok(()) }
}

/// Returns whether the server was started with another library of ours: the settings are defined that only a preload
/// defines.
pub fn another_is_preloaded() -> bool {
    let setting = c"eskit_lease.max_sessions".as_ptr();
    // SAFETY: reads what is known of a setting; one that is only written in postgresql.conf is a placeholder
    unsafe {
        !pg_sys::GetConfigOption(setting, true, false).is_null()
            && pg_sys::GetConfigOptionFlags(setting, true).cast_unsigned() & pg_sys::GUC_CUSTOM_PLACEHOLDER == 0
    }
}

#[cfg(test)]
mod tests {
    use super::numbers;

    #[test]
    fn versions_are_in_the_order_of_their_numbers() {
        assert!(numbers("0.2.0") < numbers("0.10.0"));
        assert!(numbers("0.9.9") < numbers("1.0.0"));
        assert!(numbers("0.2.0") == numbers("0.2.0"));
        assert!(numbers("0.2.0") < numbers("what"));
    }
}
