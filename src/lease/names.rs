//! Declared names of leases. Another case or a blank in a name is another lease, and nothing tells. Where the setting
//! `declared_names` is on, a lease is granted under a declared name only.
//!
//! A declaration is a row: a name, or a prefix, which covers itself and every name that begins with it. It says only
//! that the name may be asked for; so it has nothing to do with the lease's row, and may be made and dropped while the
//! lease is held. Semaphores and bridges, whose own verbs declare them ([`crate::lease::declaration`]), need no row
//! here. A name may have both kinds of declaration.
//!
//! Only a session's own ask for a name is checked, after the look: what a session has, or inherits, and what it waits
//! for already, it may ask for again. No grant looks: renewals, take-overs and hand-overs to sessions in line go on.
//!
//! A declaration counts once it is committed, and until its drop is. The check reads with the latest snapshot and locks
//! nothing.
//!
//! **One descent for the name, few for its prefixes** ([`covers`]). In the order of bytes all prefixes of a name come
//! before it. The check takes the last entry of the index up to the name. If this entry is not the beginning of the
//! name, every declared prefix of the name is also a beginning of this entry. So the check goes on from what both have
//! in common; and if the entry is a beginning that does not count, from the beginning that is shorter by a letter. Each
//! step shortens the name, so there are at most as many steps as the name has bytes. An entry is found whether or not
//! its row still counts, so rows that an old snapshot keeps cost no more than their entries.

use super::declaration;
use super::fence;
use super::line;
use crate::base::error::{Error, Result};
use crate::base::nearest::{distance, few, folded};
use crate::base::{limits, settings};
use crate::call::{Call, Given, enter_writing, text_arg};
use crate::keys;
use crate::pg::catalog;
use crate::pg::guard::{Guard, Mode};
use crate::pg::spi::{Statement, Value};
use crate::pg::table::{Flight, Key, Locked, Sight, Stand, Table};
use crate::pg::text::{Text, role_name};
use pgrx::Uuid;
use pgrx::pg_sys::{BOOLOID, Oid, TEXTOID};
use pgrx::prelude::*;
use std::ffi::CStr;

/// The table of declared names, and its columns.
pub const TABLE: &CStr = c"_lease_names";
const NAME: usize = 1;
const PREFIX: usize = 2;
const OWNER: usize = 3;
/// Grows with each declaration of a name.
const NUMBER: usize = 4;

/// What messages call a declaration.
const KIND: &str = "declared name";

static INSERT: Statement =
    Statement::writes(include_str!("../../sql/query/name/insert.sql"), &[TEXTOID, BOOLOID, TEXTOID]);
static DELETE: Statement = Statement::writes(include_str!("../../sql/query/name/delete.sql"), &[TEXTOID]);

fn table(call: &Call) -> &Table {
    call.tables.names.get_or_init(|| Table::open(TABLE, c"_lease_names_pkey"))
}

/// Returns whether only declared names may be leased.
pub fn are_required() -> bool {
    settings::DECLARED_NAMES.get()
}

/// Refuses to lease a name that is not declared, if names must be. The caller has seen that the name is no semaphore
/// and no bridge, and that `asker` does not have the lease. A session in line may ask again.
pub fn require(call: &Call, resource: &str, asker: Option<Uuid>) -> Result<()> {
    // Versions up to 0.2.0 of the SQL have no declared names.
    let is_there = || catalog::relation(TABLE) != Oid::INVALID;
    if !are_required() || is_there() && covers(table(call), resource) {
        return Ok(());
    }
    if asker.is_some_and(|asker| line::may_wait(asker) && line::has_place(resource, asker)) {
        return Ok(());
    }
    // Raises 55000 if the table is not there.
    Err(Error::Undeclared { name: resource.to_owned(), nearest: nearest(call, resource) }.into())
}

/// Returns whether a name, or a prefix of it, is declared.
fn covers(table: &Table, name: &str) -> bool {
    let mut rest = name;
    while !rest.is_empty() {
        let key = [Key::UpTo(rest)];
        let stand = table.walk_versions(Sight::Latest, &key).backward().one_version();
        if matches!(stand, Stand::End) {
            return false;
        }
        let entry = table.row().required::<Text>(NAME).0;
        let shorter = if name.starts_with(&entry) {
            let counts = matches!(stand, Stand::Row(_))
                || table.find_numbered(Sight::Latest, &[Key::Text(&entry)], NUMBER).is_some();
            if counts && (entry.len() == name.len() || table.row().required(PREFIX)) {
                return true;
            }
            entry.char_indices().next_back().map_or(0, |(last, _)| last)
        } else {
            common(rest, &entry)
        };
        // Only text that is not valid in the database's encoding could fail to become shorter.
        rest = rest.get(..shorter.min(rest.len() - 1)).unwrap_or_default();
    }
    false
}

/// Returns how many bytes two texts have in common at their beginnings, in whole letters.
fn common(one: &str, other: &str) -> usize {
    let differs = one.char_indices().zip(other.chars()).find(|((_, a), b)| a != b);
    differs.map_or_else(|| one.len().min(other.len()), |((at, _), _)| at)
}

/// Returns the declared name or prefix that a caller may have meant, as a hint calls it. Compares a bounded number.
fn nearest(call: &Call, name: &str) -> Option<String> {
    let (asked, table) = (folded(name), table(call));
    let mut best: Option<(usize, String)> = None;
    let mut compare = |declared: &str, prefix: bool| {
        let other = folded(declared);
        let length = if prefix { other.chars().count() } else { usize::MAX };
        let beginning: String = asked.chars().take(length).collect();
        let most = best.as_ref().map_or(usize::MAX, |(letters, _)| letters.saturating_sub(1)).min(few(&other));
        if best.as_ref().is_none_or(|(letters, _)| *letters > 0)
            && let Some(letters) = distance(&beginning, &other, most)
        {
            best = Some((letters, format!("{}\"{declared}\"", if prefix { "the prefix " } else { "" })));
        }
    };
    let mut walk = table.walk_versions(Sight::Latest, &[]);
    for _ in 0..limits::MAX_COMPARED {
        match walk.one_version() {
            Stand::Row(_) => compare(&table.row().required::<Text>(NAME), table.row().required(PREFIX)),
            Stand::Stale => (),
            Stand::End => break,
        }
    }
    call.declarations().each_leasable(limits::MAX_COMPARED, |declared| compare(declared, false));
    best.map(|(_, declared)| declared)
}

fn declare(call: &Call, name: &str, prefix: bool) -> Result<()> {
    // As for a declaration of a semaphore: its number exceeds those of all former ones.
    fence::raise(call);
    catalog::lock(catalog::FENCES);
    let table = table(call);
    let stripe = Guard::Stripe(keys::stripe(name, 0));
    stripe.lock(Mode::Exclusive);
    match table.find_numbered(Sight::Dirty, &[Key::Text(name)], NUMBER) {
        None => (),
        Some(Flight::None) => {
            let is = if table.row().required(PREFIX) { "prefix" } else { "name" };
            return Err(Error::NameDeclared { name: name.to_owned(), is }.into());
        }
        Some(_) => return Err(Error::BeingDeclared { name: name.to_owned() }.into()),
    }
    call.db().execute(&INSERT, vec![Value::Text(name), Value::Bool(prefix), Value::Text(&role_name(call.caller))]);
    stripe.unlock(Mode::Exclusive);
    Ok(())
}

/// Drops a declaration that the caller owns. Returns whether there was one.
fn undeclare(call: &Call, name: &str) -> Result<bool> {
    let table = table(call);
    declaration::patiently(name, || {
        if table.find_numbered(Sight::Latest, &[Key::Text(name)], NUMBER).is_none() {
            return Ok(Some(false));
        }
        let row = table.row();
        let (tid, number) = (row.tid(), row.required(NUMBER));
        declaration::require_owner(call, KIND, name, &row.required::<Text>(OWNER))?;
        if table.lock(tid, false) != Locked::Mine {
            return Ok(None);
        }
        let deleted = table.delete_rows(&[Key::Text(name), Key::Long(number)]);
        call.written(deleted, &DELETE, vec![Value::Text(name)]);
        Ok(Some(true))
    })
}

#[pg_extern(schema = "eskit_lease")]
fn lease_declare(name: Option<Text>, prefix: default!(Option<bool>, "false")) -> Result<()> {
    let shared = enter_writing("lease_declare()")?;
    let name = text_arg("name", name)?;
    let prefix = prefix.given("prefix")?;
    declare(&Call::open(shared)?, &name, prefix)
}

#[pg_extern(schema = "eskit_lease")]
fn lease_undeclare(name: Option<Text>, missing_ok: default!(Option<bool>, "false")) -> Result<bool> {
    let shared = enter_writing("lease_undeclare()")?;
    let name = text_arg("name", name)?;
    let missing_ok = missing_ok.given("missing_ok")?;
    if undeclare(&Call::open(shared)?, &name)? {
        return Ok(true);
    }
    if missing_ok { Ok(false) } else { Err(Error::Unknown { kind: KIND, name }.into()) }
}

#[cfg(test)]
mod tests {
    use super::common;

    #[test]
    fn texts_have_whole_letters_in_common() {
        assert_eq!(
            [("abc", "abd"), ("ab", "abc"), ("", "a"), ("xé", "xè")].map(|(one, other)| common(one, other)),
            [2, 2, 0, 1]
        );
    }
}
