//! Two things have versions: the running library, and the SQL objects of each database. `ALTER EXTENSION eskit_lease
//! UPDATE` updates the objects. A library serves the objects of its own version and of all earlier ones. So the library
//! comes first: its file is replaced, the server is restarted, and then each database is updated while in use. In every
//! other case calls are refused with 55000 and a hint:
//!
//! * **Updated before the restart.** Processes inherit the library with which the postmaster was started. PostgreSQL
//!   knows that library by the name of its file, even if the file has been replaced since. So old code would meet new
//!   objects. An update therefore begins with [`_require_library`].
//! * **Two libraries in one process.** A new file is loaded beside the old one only if the functions' library has
//!   another name than the preloaded one. (The preloaded one was given with a path, by a symbolic link, or was found
//!   elsewhere in dynamic_library_path.) The new library does not know how the old one has laid out shared memory, and
//!   lacks what the old one keeps in each process. So the new library leaves all of that alone
//!   ([`another_is_preloaded`]).
//! * **An object that this library needs does not exist** ([`catalog::unserved`](super::catalog::unserved)).

use super::text::Text;
use crate::base::VERSION;
use crate::base::error::{Error, Result};
use pgrx::pg_sys;
use pgrx::prelude::*;

fn numbers(version: &str) -> Vec<u32> {
    version.split('.').map(|number| number.parse().unwrap_or(u32::MAX)).collect()
}

/// Refuses an update of the extension to a later version than the library's. Each update script begins with this.
#[pg_extern(schema = "eskit_lease", strict)]
fn _require_library(version: Text) -> Result<()> {
    if numbers(VERSION) < numbers(&version) { Err(Error::LibraryOlder(version.0).into()) } else { Ok(()) }
}

/// Returns whether the server was started with another library of ours. Only a preload defines the setting that is
/// looked up here.
pub fn another_is_preloaded() -> bool {
    let setting = c"eskit_lease.max_sessions".as_ptr();
    // SAFETY: reads what is known of a setting; one that only postgresql.conf mentions is a placeholder
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
