//! Every mistake and refusal that raises, and every warning. Each concept has an enum; each variant has its SQLSTATE,
//! message, detail and hint in one place. A verb that asks for something, such as a lease, does not raise because
//! another session is in the way: it answers with a reason.

mod argument;
mod bridge;
mod cursor;
mod execution;
mod fenced;
mod group;
mod item;
mod lease;
mod name;
mod position;
mod report;
mod server;
mod session;
mod stored;
mod table;

use pgrx::pg_sys::panic::ErrorReport;

pub type Result<T> = std::result::Result<T, ErrorReport>;

/// The variants of all enums. Callers write `Error::SessionsFull`, whatever the concept.
pub mod all {
    pub use super::argument::ArgumentError::*;
    pub use super::bridge::BridgeError::*;
    pub use super::cursor::CursorError::*;
    pub use super::execution::ExecutionError::*;
    pub use super::fenced::FencedError::*;
    pub use super::group::GroupError::*;
    pub use super::item::ItemError::*;
    pub use super::lease::LeaseError::*;
    pub use super::name::NameError::*;
    pub use super::position::PositionError::*;
    pub use super::server::ServerError::*;
    pub use super::session::SessionError::*;
    pub use super::stored::StoredError::*;
    pub use super::table::TableError::*;
}
pub use all as Error;
pub use report::{log, raise};
