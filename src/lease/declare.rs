//! Declaring a name, changing the number of its slots, and dropping the declaration.

use super::declaration::{self, Kind, Stands, of, stands, table};
use super::fence;
use super::line;
use super::row::{Leases, Probe};
use crate::base::error::{Error, Result};
use crate::call::Call;
use crate::keys;
use crate::pg::catalog;
use crate::pg::guard::{Guard, Mode};
use crate::pg::spi::{Statement, Value};
use crate::pg::table::{Locked, Tuple};
use crate::pg::text::role_name;
use crate::session::holders::Holders;
use pgrx::pg_sys::{INT4OID, TEXTOID};

static INSERT: Statement =
    Statement::writes(include_str!("../../sql/query/declaration/insert.sql"), &[TEXTOID, TEXTOID, INT4OID, TEXTOID]);
static UPDATE: Statement =
    Statement::writes(include_str!("../../sql/query/declaration/update.sql"), &[TEXTOID, INT4OID]);
static DELETE: Statement = Statement::writes(include_str!("../../sql/query/declaration/delete.sql"), &[TEXTOID]);
static DELETE_SLOTS: Statement =
    Statement::writes(include_str!("../../sql/query/declaration/delete_slots.sql"), &[TEXTOID, INT4OID]);

/// Declares a name. Refuses a name that is declared already or in use.
pub fn declare(call: &Call, resource: &str, kind: Kind, slots: i32) -> Result<()> {
    // A declaration draws its number from the sequence of fences. The number must exceed those of all former
    // declarations.
    fence::raise(call);
    catalog::lock(c"fence_seq");
    let stripe = Guard::Stripe(keys::stripe(resource, 0));
    stripe.lock(Mode::Exclusive);
    match stands(resource) {
        Stands::Absent => (),
        Stands::InFlight(_) => return Err(Error::BeingDeclared { name: resource.to_owned() }.into()),
        Stands::Declared(declaration) => {
            return Err(Error::Declared { name: resource.to_owned(), is: declaration.kind.name() }.into());
        }
    }
    if let Some(why) = in_use(call, resource, None)? {
        return Err(Error::NameInUse { name: resource.to_owned(), why }.into());
    }
    forget_slots(call, resource, 0);
    call.db().execute(
        &INSERT,
        vec![Value::Text(resource), Value::Text(kind.name()), Value::Int(slots), Value::Text(&role_name(call.caller))],
    );
    stripe.unlock(Mode::Exclusive);
    Ok(())
}

/// Drops a declaration whose row the caller has locked. Refuses while the name is in use.
pub fn undeclare(call: &Call, resource: &str, kind: Kind) -> Result<()> {
    let deleted = of(resource).map_or(Some(0), |known| table().delete_rows(&known.key(resource)));
    call.written(deleted, &DELETE, vec![Value::Text(resource)]);
    if let Some(why) = in_use(call, resource, Some(kind))? {
        return Err(Error::InUse { kind: kind.name(), name: resource.to_owned(), why }.into());
    }
    forget_slots(call, resource, 0);
    Ok(())
}

/// Drops a declaration that the caller owns. If there is none, returns false with `missing_ok`, and refuses without.
pub fn drop_owned(call: &Call, resource: &str, kind: Kind, missing_ok: bool) -> Result<bool> {
    if declaration::lock_if_any(call, resource, kind)?.is_some() {
        return undeclare(call, resource, kind).map(|()| true);
    }
    if missing_ok { Ok(false) } else { Err(declaration::unknown(resource, kind)) }
}

/// Changes the number of slots. The caller has locked the row of the declaration.
pub fn resize(call: &Call, resource: &str, slots: i32) {
    let change = |_: &Tuple| Some(vec![(3, Some(slots.into()))]);
    let resized = of(resource).map_or(Some(0), |known| table().update_rows(&known.key(resource), change));
    call.written(resized, &UPDATE, vec![Value::Text(resource), Value::Int(slots)]);
}

/// Deletes the rows of all slots numbered `from` or higher. The caller has seen that no living session holds them.
pub fn forget_slots(call: &Call, resource: &str, from: i32) {
    let deleted = Leases::open().delete_from(resource, from);
    call.written(deleted, &DELETE_SLOTS, vec![Value::Text(resource), Value::Int(from)]);
    call.shared.removed_permits(call.home);
}

/// Returns a message that says what uses a name: a session that holds it or waits for it, or an open fenced
/// transaction. `kind`: the kind of the name, if it is declared. If nothing uses the name, returns `None`; this
/// transaction has then locked the rows of the slots.
fn in_use(call: &Call, resource: &str, kind: Option<Kind>) -> Result<Option<String>> {
    if let Some(why) = slots_in_use(call, resource, kind)? {
        return Ok(Some(why));
    }
    let (waiting, arriving) = line::waiting(resource);
    if arriving {
        return Err(Error::BeingDeclared { name: resource.to_owned() }.into());
    }
    let holders = Holders::of(call, waiting.iter().copied());
    if let Some(waiter) = waiting.iter().find_map(|session| holders.living(Some(*session))) {
        return Ok(Some(format!("\"{}\" waits for it.", waiter.consumer)));
    }
    // These dead sessions waited for the name with its former meaning. So a restart must not revive them: their deaths
    // are recorded.
    call.taken_from(&waiting);
    Ok(None)
}

/// Returns a message that names a living holder of a slot, or the fence of an open fenced transaction. If there is
/// neither, returns `None`; this transaction has then locked the rows of the slots.
pub fn slots_in_use(call: &Call, resource: &str, kind: Option<Kind>) -> Result<Option<String>> {
    let busy = || Error::BeingDeclared { name: resource.to_owned() };
    let leases = Leases::open();
    let mut rows = Vec::new();
    for (_, probe) in leases.slots(resource).0 {
        match probe {
            Probe::Row(row) => rows.push(row),
            _ => return Err(busy().into()),
        }
    }
    let holders = Holders::of(call, rows.iter().filter_map(|row| row.session));
    for row in rows {
        if let Some(holder) = holders.living(row.session) {
            let held = match kind {
                Some(Kind::Group) => format!("owns partition {}", row.slot),
                Some(Kind::Semaphore) => "holds a permit".to_owned(),
                Some(Kind::Bridge) | None => "holds it".to_owned(),
            };
            return Ok(Some(format!("\"{}\" {held} under fence {}.", holder.consumer, row.fence)));
        }
        // A dead holder's fenced transaction may still be open.
        if row.session.is_some() && !Guard::Fence(row.fence).is_free() {
            return Ok(Some(format!("A transaction under fence {} is open.", row.fence)));
        }
        if leases.lock(row.tid, false) != Locked::Mine {
            return Err(busy().into());
        }
        // The caller is about to delete this row, and with it the lease of a dead session.
        if let Some(dead) = row.session {
            call.taken_from(&[dead]);
        }
    }
    Ok(None)
}
