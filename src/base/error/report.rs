//! Builds a refusal under an SQLSTATE of PostgreSQL's, or under one of ours, which pgrx does not know.
//!
//! PostgreSQL takes the text of an error for one in the encoding of the database, and a text of Rust is in UTF-8. So in
//! a database of another encoding a letter beyond ASCII is shown by its number. Otherwise the client would read other
//! letters, or another error: that the text is not valid.

use pgrx::PgLogLevel;
use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::PgSqlErrorCode as Code;
use std::borrow::Cow;

/// A refusal whose texts PostgreSQL can show.
pub struct Report(ErrorReport);

pub fn report(code: Code, message: impl Into<Cow<'static, str>>) -> Report {
    Report(ErrorReport::new(code, shown(message.into()), "eskit_lease"))
}

impl Report {
    pub fn set_detail(self, detail: impl Into<Cow<'static, str>>) -> Report {
        Report(self.0.set_detail(shown(detail.into())))
    }

    pub fn set_hint(self, hint: impl Into<Cow<'static, str>>) -> Report {
        Report(self.0.set_hint(shown(hint.into())))
    }
}

impl From<Report> for ErrorReport {
    fn from(Report(report): Report) -> ErrorReport {
        report
    }
}

/// Makes an error whose report is known one that pgrx can raise.
macro_rules! raised {
    ($error:ty) => {
        impl From<$error> for pgrx::pg_sys::panic::ErrorReport {
            fn from(error: $error) -> Self {
                Report::from(error).into()
            }
        }
    };
}
pub(super) use raised;

/// Writes a line to the log, and to the client if it has asked for that.
pub fn log(line: String) {
    pgrx::log!("eskit_lease: {}", shown(line.into()));
}

/// Returns a text as PostgreSQL can show it.
fn shown(text: Cow<'static, str>) -> Cow<'static, str> {
    // SAFETY: a plain read; SQL_ASCII in a process without a database
    let encoding = || unsafe { pg_sys::GetDatabaseEncoding() }.cast_unsigned();
    let is_as_stored = |encoding| matches!(encoding, pg_sys::pg_enc::PG_UTF8 | pg_sys::pg_enc::PG_SQL_ASCII);
    if text.is_ascii() || is_as_stored(encoding()) { text } else { numbered_letters(&text).into() }
}

/// Returns a text with each letter beyond ASCII as an escape string of SQL has it.
fn numbered_letters(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match u32::from(letter) {
            0..0x80 => shown.push(letter),
            number @ ..0x1_0000 => shown += &format!("\\u{number:04x}"),
            number => shown += &format!("\\U{number:08x}"),
        }
    }
    shown
}

/// Raises a refusal where the code cannot return it to a caller.
pub fn raise(error: impl Into<ErrorReport>) -> ! {
    error.into().report(PgLogLevel::ERROR);
    unreachable!()
}

/// 22023: the value is wrong in any state.
pub fn invalid(message: impl Into<Cow<'static, str>>) -> Report {
    report(Code::ERRCODE_INVALID_PARAMETER_VALUE, message)
}

/// 53400: a setting or a limit of ours allows no more.
pub fn full(message: impl Into<Cow<'static, str>>) -> Report {
    report(Code::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED, message)
}

/// 55P03: another transaction has it locked, and the answer depends on how that transaction ends.
pub fn busy(message: impl Into<Cow<'static, str>>) -> Report {
    report(Code::ERRCODE_LOCK_NOT_AVAILABLE, message)
}

/// LF001: the caller must stop its work.
pub fn fence_lost(message: impl Into<Cow<'static, str>>) -> Report {
    raise_own(FENCE_LOST);
    report(Code::ERRCODE_RAISE_EXCEPTION, message)
}

/// LF002: the caller must check its fence before it writes.
pub fn fence_required(message: impl Into<Cow<'static, str>>) -> Report {
    raise_own(FENCE_REQUIRED);
    report(Code::ERRCODE_RAISE_EXCEPTION, message)
}

/// LF003: the caller must begin again, in another session.
pub fn session_lost(message: impl Into<Cow<'static, str>>) -> Report {
    raise_own(SESSION_LOST);
    report(Code::ERRCODE_RAISE_EXCEPTION, message)
}

/// Returns a number with its noun, in the singular or plural.
pub fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Returns a text that says how many partitions a group has, and how they are numbered.
pub fn numbered(partitions: i32) -> String {
    match partitions {
        1 => "1 partition, which is number 0".to_owned(),
        _ => format!("{partitions} partitions, numbered from 0 to {}", partitions - 1),
    }
}

/// Returns an SQLSTATE as PostgreSQL packs it, in six bits a character. The class is our own: a worker that must stop
/// would blindly retry 40001.
const fn sqlstate(code: [u8; 5]) -> i32 {
    const fn six_bits(c: u8) -> i32 {
        (c as i32 - b'0' as i32) & 0x3F
    }
    let [a, b, c, d, e] = code;
    six_bits(a) | six_bits(b) << 6 | six_bits(c) << 12 | six_bits(d) << 18 | six_bits(e) << 24
}

const FENCE_LOST: i32 = sqlstate(*b"LF001");
const FENCE_REQUIRED: i32 = sqlstate(*b"LF002");
const SESSION_LOST: i32 = sqlstate(*b"LF003");

/// Gives the error that is about to be raised a code of our own. pgrx knows only PostgreSQL's codes. But an error
/// context callback, which runs while the error is built, may set another one. (PostgreSQL's parser sets positions in
/// the same way.) The handler that catches the error restores the stack of callbacks, as for any function that raises.
fn raise_own(code: i32) {
    unsafe extern "C-unwind" {
        fn errcode(sqlerrcode: std::ffi::c_int) -> std::ffi::c_int;
    }
    unsafe extern "C-unwind" fn callback(code: *mut std::ffi::c_void) {
        // SAFETY: PostgreSQL calls this while it assembles an error, which is when errcode may be called
        unsafe { errcode(code.addr() as std::ffi::c_int) };
    }
    static mut CALLBACK: pg_sys::ErrorContextCallback =
        pg_sys::ErrorContextCallback { previous: std::ptr::null_mut(), callback: None, arg: std::ptr::null_mut() };
    // SAFETY: backends have one thread; the entry is static, so it outlives whatever stack refers to it
    unsafe {
        let entry = &raw mut CALLBACK;
        if pg_sys::error_context_stack != entry {
            (*entry).previous = pg_sys::error_context_stack;
            (*entry).callback = Some(callback);
            pg_sys::error_context_stack = entry;
        }
        (*entry).arg = std::ptr::without_provenance_mut(code.cast_unsigned() as usize);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn codes_of_our_own() {
        let codes = [(super::FENCE_LOST, "LF001"), (super::FENCE_REQUIRED, "LF002"), (super::SESSION_LOST, "LF003")];
        for (code, expected) in codes {
            let text: String =
                (0..5).map(|i| char::from(b'0' + u8::try_from(code >> (6 * i) & 0x3F).unwrap_or(0))).collect();
            assert_eq!(text, expected);
        }
    }
    #[test]
    fn letters_beyond_ascii_by_their_numbers() {
        assert_eq!(super::numbered_letters("a\"für 注😀"), r#"a"f\u00fcr \u6ce8\U0001f600"#);
    }

    #[test]
    fn one_and_many() {
        assert_eq!([0, 1, 2].map(|number| super::count(number, "key")), ["0 keys", "1 key", "2 keys"]);
        assert_eq!(super::numbered(1), "1 partition, which is number 0");
        assert_eq!(super::numbered(3), "3 partitions, numbered from 0 to 2");
    }
}
