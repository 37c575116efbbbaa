//! Notifications, sent when the transaction commits. NOTIFY and pg_notify() do the same, but a statement takes twice as
//! long for a thousand of them.

use pgrx::pg_sys::ffi::pg_guard_ffi_boundary as guarded;
use std::ffi::{CStr, CString, c_char};

/// Sends payloads, in the server's encoding, to the listeners of a channel.
pub fn notify(channel: &CStr, payloads: &[CString]) {
    unsafe extern "C-unwind" {
        fn Async_Notify(channel: *const c_char, payload: *const c_char);
    }
    // SAFETY: in a transaction; both texts end in NUL, and are copied
    unsafe { guarded(|| payloads.iter().for_each(|payload| Async_Notify(channel.as_ptr(), payload.as_ptr()))) };
}
