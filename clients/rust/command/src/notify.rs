//! Tells systemd how it goes (sd_notify).

use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends lines as `READY=1` to NOTIFY_SOCKET, if that is set. Nobody needs to listen.
pub fn notify(lines: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let sent = UnixDatagram::unbound().and_then(|own| match address(&socket) {
        Some(address) => own.send_to_addr(lines.as_bytes(), &address),
        None => own.send_to(lines.as_bytes(), &socket),
    });
    drop(sent);
}

/// Returns the address of a socket in the abstract name space, which Linux has.
#[cfg(target_os = "linux")]
fn address(socket: &std::ffi::OsStr) -> Option<SocketAddr> {
    use std::os::{linux::net::SocketAddrExt, unix::ffi::OsStrExt};
    SocketAddr::from_abstract_name(socket.as_bytes().strip_prefix(b"@")?).ok()
}

#[cfg(not(target_os = "linux"))]
fn address(_: &std::ffi::OsStr) -> Option<SocketAddr> {
    None
}
