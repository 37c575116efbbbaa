//! The SQL functions of queues.

use super::{ITEMS, LATER, Order, Queue, heads};
use crate::base::error::{Error, Result};
use crate::base::interval;
use crate::call::{Call, Given, enter_writing, text_arg};
use crate::group::bound::Bound;
use crate::keys;
use crate::lease::declaration::{self, Kind, Stands};
use crate::pg::guard::{Guard, Mode};
use crate::pg::role;
use crate::pg::spi::{Statement, Value};
use crate::pg::table::{Flight, Key, Locked, Sight, Table, Tuple};
use crate::pg::text::{Text, role_name, role_of_name};
use pgrx::datum::Interval;
use pgrx::pg_sys::{INT4OID, Oid, TEXTOID};
use pgrx::prelude::*;
use std::ffi::CStr;

static INSERT: Statement = Statement::writes(
    include_str!("../../sql/query/item/create_queue.sql"),
    &[TEXTOID, INT4OID, INT4OID, TEXTOID, TEXTOID, TEXTOID],
);
static ALTER: Statement =
    Statement::writes(include_str!("../../sql/query/item/alter_queue.sql"), &[TEXTOID, INT4OID, INT4OID]);
static DROP: Statement = Statement::writes(include_str!("../../sql/query/item/drop_queue.sql"), &[INT4OID]);
static DROP_ITEMS: [Statement; 3] = [
    Statement::writes(include_str!("../../sql/query/item/drop_items.sql"), &[INT4OID]),
    Statement::writes(include_str!("../../sql/query/item/drop_later.sql"), &[INT4OID]),
    Statement::writes(include_str!("../../sql/query/item/drop_dead.sql"), &[INT4OID]),
];
static DROP_CLAIMS: Statement = Statement::writes(include_str!("../../sql/query/item/drop_claims.sql"), &[INT4OID]);
static BOUND: Statement = Statement::reads(include_str!("../../sql/query/item/bound.sql"), &[TEXTOID]);

/// The tables of items that are not dead, with their indexes by queue.
const NOT_DEAD: [(&CStr, &CStr); 2] = [(ITEMS, c"_items_pkey"), (LATER, c"_later_pkey")];

fn attempts_arg(attempts: i32) -> Result<i32> {
    if (1..=1_000_000).contains(&attempts) {
        return Ok(attempts);
    }
    Err(Error::Number { what: "attempts", given: attempts.into(), min: 1, max: 1_000_000 }.into())
}

#[pg_extern(schema = "eskit_lease")]
fn queue_create(
    queue: Option<Text>,
    max_attempts: default!(Option<i32>, "20"),
    retry_backoff: default!(Option<Interval>, "'1 s'"),
    ordering: default!(Option<Text>, "'none'"),
    group_name: default!(Option<Text>, "NULL"),
) -> Result<()> {
    let shared = enter_writing("queue_create()")?;
    let name = text_arg("queue", queue)?;
    let attempts = attempts_arg(max_attempts.given("max_attempts")?)?;
    let backoff = interval::delay_ms("retry_backoff", retry_backoff.given("retry_backoff")?)?;
    let ordering = ordering.given("ordering")?;
    let order = Order::named(&ordering).ok_or(Error::Ordering(ordering.0))?;
    let group = group_name.map(|group| text_arg("group_name", Some(group))).transpose()?;
    let call = Call::open(shared)?;
    if let Some(group) = &group {
        declaration::of_kind(group, Kind::Group)?;
    }
    create(&call, &name, attempts, backoff, order, group.as_deref())?;
    // A drop of the group looks for queues after it has deleted the declaration.
    match &group {
        Some(group) if !matches!(declaration::stands(group), Stands::Declared(_)) => {
            Err(Error::BeingDeclared { name: group.clone() }.into())
        }
        _ => Ok(()),
    }
}

/// Makes the row of a queue. Refuses if a queue has the name, or if another transaction is making or changing such a
/// queue.
fn create(call: &Call, name: &str, attempts: i32, backoff: i32, order: Order, group: Option<&str>) -> Result<()> {
    let stripe = Guard::Stripe(keys::stripe(name, -1));
    stripe.lock(Mode::Exclusive);
    let (mut known, mut in_flight) = (Queue::find(name).is_some(), false);
    Queue::table().scan(Sight::Dirty, &[Key::Text(name)], |_, flight| {
        in_flight |= flight != Flight::None;
        known = true;
        None::<()>
    });
    if in_flight {
        return Err(Error::BeingDeclared { name: name.to_owned() }.into());
    }
    if known {
        return Err(Error::QueueExists { name: name.to_owned() }.into());
    }
    let owner = role_name(call.caller);
    call.db().execute(
        &INSERT,
        vec![
            Value::Text(name),
            Value::Int(attempts),
            Value::Int(backoff),
            Value::Text(order.name()),
            Value::Text(&owner),
            Value::MaybeText(group),
        ],
    );
    stripe.unlock(Mode::Exclusive);
    Ok(())
}

#[pg_extern(schema = "eskit_lease")]
fn queue_alter(
    queue: Option<Text>,
    max_attempts: default!(Option<i32>, "NULL"),
    retry_backoff: default!(Option<Interval>, "NULL"),
) -> Result<()> {
    let shared = enter_writing("queue_alter()")?;
    let name = text_arg("queue", queue)?;
    let attempts = max_attempts.map(attempts_arg).transpose()?;
    let backoff = retry_backoff.map(|backoff| interval::delay_ms("retry_backoff", backoff)).transpose()?;
    let call = Call::open(shared)?;
    lock_owned(&call, &name)?;
    call.db().execute(&ALTER, vec![Value::Text(&name), Value::MaybeInt(attempts), Value::MaybeInt(backoff)]);
    Ok(())
}

#[pg_extern(schema = "eskit_lease", name = "queue_drop")]
fn queue_drop_if(
    queue: Option<Text>,
    items: default!(Option<bool>, "false"),
    missing_ok: default!(Option<bool>, "false"),
) -> Result<bool> {
    let shared = enter_writing("queue_drop()")?;
    let name = text_arg("queue", queue)?;
    let items = items.given("items")?;
    let missing_ok = missing_ok.given("missing_ok")?;
    let call = Call::open(shared)?;
    let Some(queue) = lock_if_any(&call, &name)? else {
        return if missing_ok { Ok(false) } else { Err(Queue::unknown(&name)) };
    };
    call.db().execute(&DROP, vec![Value::Int(queue.number)]);
    // The items are looked for after the queue's row is deleted. An addition looks at the queue after it has added, so
    // one of the two sees the other.
    let found = any_item(&queue)?;
    let in_use = || Error::InUse { kind: "queue", name: name.clone(), why: "It has items.".to_owned() };
    if found && !items {
        return Err(in_use().into());
    }
    let drop = |statement| call.db().execute(statement, vec![Value::Int(queue.number)]);
    // This deletion also finds dead items, and items that moved between the tables during the look above.
    let dropped: u64 = DROP_ITEMS.iter().map(drop).sum();
    if dropped > 0 && !items {
        return Err(in_use().into());
    }
    drop(&DROP_CLAIMS);
    drop(&heads::DROP);
    Ok(true)
}

/// Keeps the signature that versions up to 0.2.0 declare.
#[pg_extern(sql = false)]
fn queue_drop(queue: Option<Text>, items: Option<bool>) -> Result<()> {
    queue_drop_if(queue, items, Some(false)).map(|_| ())
}

/// Returns whether a queue has items that are not dead. Refuses while another transaction is changing one of them.
fn any_item(queue: &Queue) -> Result<bool> {
    let mut found = false;
    for (table, key) in NOT_DEAD {
        let table = Table::open(table, key);
        let in_flight = table.scan(Sight::Dirty, &[Key::Int(queue.number)], |_, flight| {
            found = true;
            (flight != Flight::None).then_some(())
        });
        // The look above may miss an item that is just moving.
        found |= table.scan(Sight::Latest, &[Key::Int(queue.number)], |_, _| Some(())).is_some();
        if in_flight.is_some() {
            return Err(Error::BeingDeclared { name: queue.name.clone() }.into());
        }
    }
    Ok(found)
}

/// Returns whether a queue has items that are not dead and that no other transaction is changing.
fn any_settled_item(queue: &Queue) -> bool {
    NOT_DEAD.iter().any(|(table, key)| {
        let settled = |_: &Tuple, flight| (flight == Flight::None).then_some(());
        Table::open(table, key).scan(Sight::Dirty, &[Key::Int(queue.number)], settled).is_some()
    })
}

/// Returns a queue that the caller owns, with its row locked.
fn lock_owned(call: &Call, name: &str) -> Result<Queue> {
    lock_if_any(call, name)?.ok_or_else(|| Queue::unknown(name))
}

fn lock_if_any(call: &Call, name: &str) -> Result<Option<Queue>> {
    declaration::patiently(name, || {
        let Some(queue) = Queue::find(name) else { return Ok(Some(None)) };
        queue.authorize(call)?;
        Ok((Queue::table().lock(queue.tid, false) == Locked::Mine).then_some(Some(queue)))
    })
}

impl Queue {
    /// Refuses unless the caller is, or is a member of, the role that made the queue or the extension's owner.
    /// Declarations have the same rule.
    pub fn authorize(&self, call: &Call) -> Result<()> {
        let may_use = |role: Oid| role != Oid::INVALID && role::acts_as(call.caller, role);
        if may_use(role_of_name(&self.owner)) || may_use(call.owner()) {
            return Ok(());
        }
        Err(Error::NotOwner { kind: "queue", name: self.name.clone(), owner: self.owner.clone() }.into())
    }

    /// Returns the number of the queue's partitions, which are those of its group.
    pub fn partitions(&self) -> Result<i32> {
        self.group.as_ref().map_or(Ok(1), |group| Ok(declaration::of_kind(group, Kind::Group)?.slots))
    }

    /// Refuses if another transaction is dropping the queue, or if its number of partitions is no longer `partitions`.
    /// A caller that has written items checks this after the write.
    pub fn require_still(&self, partitions: i32) -> Result<()> {
        let still = |group: &String| declaration::still(group, (Kind::Group, partitions));
        if self.stands() && self.group.as_ref().is_none_or(still) {
            return Ok(());
        }
        Err(Error::BeingDeclared { name: self.name.clone() }.into())
    }
}

/// Returns the queues that are bound to a group.
fn bound(call: &Call, group: &str) -> Vec<String> {
    call.db().run(&BOUND, vec![Value::Text(group)], |row| row.text(1))
}

/// The queues, as their groups see them (see [`Bound`]).
pub struct Queues;

impl Bound for Queues {
    fn require_unbound(&self, call: &Call, group: &str) -> Result<()> {
        let table = Table::open(c"_queues", c"_queues_group_name");
        let in_flight =
            table.scan(Sight::Dirty, &[Key::Text(group)], |_, flight| (flight != Flight::None).then_some(()));
        if in_flight.is_some() {
            return Err(Error::BeingDeclared { name: group.to_owned() }.into());
        }
        match bound(call, group).first() {
            None => Ok(()),
            Some(queue) => Err(Error::Bound { name: group.to_owned(), queue: queue.clone(), with_items: false }.into()),
        }
    }

    fn has_items(&self, call: &Call, group: &str) -> bool {
        bound(call, group).iter().filter_map(|name| Queue::find(name)).any(|queue| any_settled_item(&queue))
    }

    fn require_no_items(&self, call: &Call, group: &str) -> Result<()> {
        for name in bound(call, group) {
            if let Some(queue) = Queue::find(&name)
                && any_item(&queue)?
            {
                return Err(Error::Bound { name: group.to_owned(), queue: name, with_items: true }.into());
            }
        }
        Ok(())
    }
}
