//! Assignments: pure functions of the members and of the present owners. Every process that computes one, on any
//! server, gets the same result.
//!
//! Members are ranked by their ids, never by their position in a list. Of P partitions each of N members gets P / N,
//! and P % N members get one more.
//!
//! The choice of the members that get one more decides everything in small groups. By ids alone, or by age, one member
//! would own all of a hundred groups of one partition. So within a named group the sticky assignor ranks members by a
//! hash of the group's name and of their own. The first members in that ranking get one more, whatever they own now.
//! When a member leaves, no other share becomes smaller, so no partition moves between the members that stay. A join
//! moves partitions only to the new member, at most one more than the fewest possible.

use crate::base::error::{Error, Result};
use crate::base::limits;
use crate::call::Given;
use crate::keys;
use crate::pg::text::{Text, TextArray, Texts};
use pgrx::prelude::*;
use std::collections::HashMap;
use std::hash::Hash;
use std::iter::repeat_n;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assignor {
    /// Gives each member neighbouring partitions, whatever it owns now.
    Range,
    /// Moves as few partitions as balance allows.
    Sticky,
}

impl Assignor {
    pub const ALL: [Assignor; 2] = [Assignor::Range, Assignor::Sticky];

    pub fn parse(name: &str) -> Option<Assignor> {
        Assignor::ALL.into_iter().find(|assignor| assignor.name() == name)
    }

    /// Returns the assignor of a name, or an error that lists the known names.
    pub fn named(name: &str) -> Result<Assignor> {
        let known = || Assignor::ALL.map(Assignor::name).join(" and ");
        Assignor::parse(name).ok_or_else(|| Error::Assignor { name: name.to_owned(), known: known() }.into())
    }

    pub fn name(self) -> &'static str {
        match self {
            Assignor::Range => "range",
            Assignor::Sticky => "sticky",
        }
    }
}

/// Ranks a member within a group; the id ranks members of the same lot.
type Lot = (i64, i64);

/// Returns the lot of a member: a hash of its name, which ends at a NUL, then one of its whole id. The second tells
/// members of one name apart.
pub fn lot(group: &str, id: &str) -> Lot {
    let hash = |of: &str| keys::fold_sha256(&format!("{group}:{of}"));
    (hash(id.split('\0').next().unwrap_or_default()), hash(id))
}

/// Returns the new owner of each partition as an index into `members`, which must be distinct. `None` appears only if
/// there are no members. Owners that are not among the members do not count. `lot`: given for a group that has a name.
pub fn assign<Id: Ord + Hash>(
    assignor: Assignor,
    members: &[Id],
    owners: &[Option<Id>],
    lot: Option<&dyn Fn(&Id) -> Lot>,
) -> Vec<Option<usize>> {
    let lot = lot.filter(|_| assignor == Assignor::Sticky);
    let ranked = members.iter().zip(0..).map(|(id, at)| (lot.map(|lot| lot(id)), id, at));
    let mut ranked: Vec<(Option<Lot>, &Id, usize)> = ranked.collect();
    ranked.sort_unstable();
    let ranks = match assignor {
        Assignor::Range => range(members.len(), owners.len()),
        Assignor::Sticky => {
            let rank_of: HashMap<&Id, usize> = ranked.iter().zip(0..).map(|((_, id, _), rank)| (*id, rank)).collect();
            let rank_of = |owner: &Option<Id>| owner.as_ref().and_then(|id| rank_of.get(id).copied());
            sticky(members.len(), owners.iter().map(rank_of).collect(), lot.is_some())
        }
    };
    debug_assert!(is_balanced(members.len(), &ranks), "shares differ by one at most");
    ranks.into_iter().map(|rank| Some(ranked.get(rank?)?.2)).collect()
}

/// Returns whether each member owns P / N partitions, or one more; with no members, none owns any.
fn is_balanced(members: usize, ranks: &[Option<usize>]) -> bool {
    let mut owned = vec![0; members];
    ranks.iter().flatten().for_each(|rank| owned[*rank] += 1);
    let all = if members == 0 { 0 } else { ranks.len() };
    let share = all.checked_div(members).unwrap_or(0);
    owned.iter().sum::<usize>() == all && owned.iter().all(|owned| (share..=share + 1).contains(owned))
}

/// Gives rank i the partitions from i * P / N, rounded down, to before (i + 1) * P / N.
fn range(members: usize, partitions: usize) -> Vec<Option<usize>> {
    if members == 0 {
        return vec![None; partitions];
    }
    let start = |rank: usize| rank * partitions / members;
    (0..members).flat_map(|rank| repeat_n(Some(rank), start(rank + 1) - start(rank))).collect()
}

/// Maps the rank of each partition's present owner to the rank of its new owner.
///
/// A member keeps the partitions that fit into its share. Without `by_rank` the larger shares go first to the members
/// that own enough to fill them. Only for such a member does a larger share save a move, so the moves are the fewest
/// possible. With `by_rank` the larger shares go by rank, and the moves are the fewest possible for these shares.
fn sticky(members: usize, mut owners: Vec<Option<usize>>, by_rank: bool) -> Vec<Option<usize>> {
    if members == 0 {
        return owners;
    }
    let (share, larger) = (owners.len() / members, owners.len() % members);
    let mut owned = vec![0; members];
    owners.iter().flatten().for_each(|rank| owned[*rank] += 1);
    let (filling, others): (Vec<usize>, Vec<usize>) = (0..members).partition(|rank| by_rank || owned[*rank] > share);
    let mut room = vec![share; members];
    filling.into_iter().chain(others).take(larger).for_each(|rank| room[rank] += 1);

    for owner in &mut owners {
        *owner = owner.filter(|rank| room[*rank] > 0);
        owner.iter().for_each(|rank| room[*rank] -= 1);
    }
    let mut vacancies = room.into_iter().enumerate().flat_map(|(rank, room)| repeat_n(rank, room));
    owners.iter_mut().filter(|owner| owner.is_none()).for_each(|owner| *owner = vacancies.next());
    owners
}

#[pg_extern(schema = "eskit_lease", name = "partition_assign", immutable, parallel_safe)]
fn partition_assign_in(
    assignor: Option<Text>,
    members: Option<TextArray>,
    owners: Option<TextArray>,
    group_name: default!(Option<Text>, "''"),
) -> Result<Texts> {
    let group = group_name.given("group_name")?;
    let assignor = assignor.given("assignor")?;
    let members = members.given("members")?.0;
    let owners = owners.given("owners")?.0;
    let assignor = Assignor::named(&assignor)?;
    within("members", members.len(), 0, limits::MAX_NAMES as i64)?;
    within("partitions", owners.len(), 1, limits::MAX_SLOTS.into())?;
    let members = members.into_iter().collect::<Option<Vec<Text>>>().given("member")?;
    let mut sorted: Vec<&Text> = members.iter().collect();
    sorted.sort_unstable();
    if let Some([twice, _]) = sorted.array_windows().find(|[a, b]| a == b) {
        return Err(Error::Twice { what: "member", given: twice.0.clone() }.into());
    }
    let lot = |member: &Text| lot(&group, member);
    let lot: Option<&dyn Fn(&Text) -> Lot> = if group.is_empty() { None } else { Some(&lot) };
    Ok(Texts { elements: assign(assignor, &members, &owners, lot), texts: members })
}

/// Keeps the signature that versions up to 0.2.0 declare.
#[pg_extern(sql = false)]
fn partition_assign(assignor: Option<Text>, members: Option<TextArray>, owners: Option<TextArray>) -> Result<Texts> {
    partition_assign_in(assignor, members, owners, Some(Text(String::new())))
}

fn within(what: &'static str, given: usize, min: i64, max: i64) -> Result<()> {
    let given = given as i64;
    if (min..=max).contains(&given) { Ok(()) } else { Err(Error::Number { what, given, min, max }.into()) }
}

#[cfg(test)]
mod tests;
