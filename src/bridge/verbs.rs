//! The SQL functions of bridges.

use super::row;
use super::side::{Side, table};
use super::target::Target;
use crate::base::error::{Error, Result};
use crate::base::limits;
use crate::call::{Call, Given, enter_writing, text_arg};
use crate::lease::declaration::Kind;
use crate::lease::declare;
use crate::pg::catalog;
use crate::pg::oids::Class;
use crate::pg::spi::{Statement, Value};
use crate::pg::table::Sight;
use crate::pg::table::user::Shut;
use crate::pg::text::Text;
use crate::pg::types;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::{INT8OID, OIDOID, TEXTOID};
use pgrx::prelude::*;

static CREATE: Statement = Statement::writes(
    include_str!("../../sql/query/bridge/create.sql"),
    &[TEXTOID, INT8OID, OIDOID, TEXTOID, TEXTOID, TEXTOID],
);
static OF_ROW: Statement = Statement::reads(include_str!("../../sql/query/bridge/of_row.sql"), &[OIDOID, TEXTOID]);
static DROP: Statement = Statement::writes(include_str!("../../sql/query/bridge/drop.sql"), &[TEXTOID]);

fn is_full() -> bool {
    let (table, mut count) = (table(), 0);
    let mut enough = || {
        count += 1;
        (count == limits::MAX_BRIDGES).then_some(())
    };
    table.entries(&[], limits::MAX_BRIDGES) == limits::MAX_BRIDGES
        && table.scan(Sight::Latest, &[], |_, _| enough()).is_some()
}

#[pg_extern(schema = "eskit_lease")]
fn bridge_create(resource: Option<Text>, lock_key: Option<i64>) -> Result<()> {
    let shared = enter_writing("bridge_create()")?;
    let resource = text_arg("resource", resource)?;
    let lock_key = lock_key.given("lock_key")?;
    create(&Call::open(shared)?, &resource, &Side::Lock(lock_key))
}

#[pg_extern(schema = "eskit_lease")]
fn bridge_create_row(
    resource: Option<Text>,
    target: Option<Class>,
    key: Option<Text>,
    owner_column: Option<Text>,
    until_column: Option<Text>,
) -> Result<()> {
    let shared = enter_writing("bridge_create_row()")?;
    let resource = text_arg("resource", resource)?;
    let Class(table) = target.given("target")?;
    let text = |what, text: Option<Text>| text.map(|text| text.0).given(what);
    let (key, owner_column) = (text("key", key)?, text("owner_column", owner_column)?);
    let until_column = text("until_column", until_column)?;
    catalog::require_owner(table)?;
    let call = Call::open(shared)?;
    let (target, without_time_zone) = require_row(&call, &resource, Target { table, key, owner_column, until_column })?;
    let rows = vec![Value::Oid(table.to_u32()), Value::Text(&target.key)];
    if let Some(other) = call.db().run(&OF_ROW, rows, |row| row.text(1)).into_iter().next() {
        return Err(Error::BridgedAlready { to: target.told(), resource: other }.into());
    }
    let until_column = target.until_column.clone();
    create(&call, &resource, &Side::Row(target))?;
    if without_time_zone {
        ErrorReport::from(Error::ReadAsUtc { column: until_column }).report(pgrx::PgLogLevel::WARNING);
    }
    Ok(())
}

/// Refuses a row that cannot be bridged to. Returns the row, with its key as the key's type writes it, and whether its
/// time has no time zone.
fn require_row(call: &Call, resource: &str, target: Target) -> Result<(Target, bool)> {
    let id = target.table;
    let table = || catalog::table_name(id).unwrap_or_else(|| id.to_u32().to_string());
    let refused = |shut| match shut {
        Shut::Busy => Error::TableLocked { table: table() },
        Shut::NoColumn(column) => Error::NoColumn { table: table(), column },
        Shut::Unfit(why) => Error::Unbridgeable {
            table: table(),
            why,
            hint: "Keep the columns of the lease in a table of their own: an ordinary one, with types that can be bridged to.",
        },
        Shut::Unplain(why) => Error::Unbridgeable {
            table: table(),
            why,
            hint: "The row is written by its place, without triggers and the like: take away what is in the way, or keep the columns of the lease in a table of their own.",
        },
        Shut::Narrow(why) => Error::Unbridgeable {
            table: table(),
            why,
            hint: "Make the column longer, or give the bridge a shorter name.",
        },
    };
    let row = target.open(pg_sys::RowExclusiveLock).map_err(refused)?;
    row.require_fit(call).and_then(|()| row.require_room(row::marker_length(resource))).map_err(refused)?;
    let without_time_zone = row.is_without_time_zone();
    let key = types::canonical(row.key_type().map_err(refused)?, &target.key);
    drop(row);
    let target = Target { key, ..target };
    match target.open(pg_sys::RowExclusiveLock).and_then(|row| row.find()).map_err(refused)? {
        Some(_) => Ok((target, without_time_zone)),
        None => Err(Error::NoRow { table: table(), key: target.key }.into()),
    }
}

fn create(call: &Call, resource: &str, side: &Side) -> Result<()> {
    if is_full() {
        return Err(Error::BridgesFull.into());
    }
    declare::declare(call, resource, Kind::Bridge, 1)?;
    let mut values = vec![Value::Text(resource)];
    values.extend(match side {
        Side::Lock(key) => [Value::Long(*key), Value::Null, Value::Null, Value::Null, Value::Null],
        Side::Row(row) => [
            Value::Null,
            Value::Oid(row.table.to_u32()),
            Value::Text(&row.key),
            Value::Text(&row.owner_column),
            Value::Text(&row.until_column),
        ],
    });
    call.db().execute(&CREATE, values);
    Ok(())
}

/// Serves the declaration of versions up to 0.2.0.
#[pg_extern(sql = false)]
fn bridge_drop(resource: Option<Text>) -> Result<bool> {
    bridge_drop_if(resource, Some(true))
}

#[pg_extern(schema = "eskit_lease", name = "bridge_drop")]
fn bridge_drop_if(resource: Option<Text>, missing_ok: default!(Option<bool>, "false")) -> Result<bool> {
    let shared = enter_writing("bridge_drop()")?;
    let resource = text_arg("resource", resource)?;
    let missing_ok = missing_ok.given("missing_ok")?;
    let call = Call::open(shared)?;
    if !declare::drop_owned(&call, &resource, Kind::Bridge, missing_ok)? {
        return Ok(false);
    }
    call.db().execute(&DROP, vec![Value::Text(&resource)]);
    // The worker may still hold the lock, and releases it when it judges the name. A row stays ours until its time is
    // over.
    call.seam().judge(&resource);
    Ok(true)
}
