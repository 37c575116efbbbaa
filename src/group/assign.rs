//! Who gets which partition: pure functions of the members and of the present owners, so that whoever computes an assignment, and on
//! whatever server, computes the same.
//!
//! Members are ranked by their ids, never by where they stand in a list. Of P partitions each of N members gets P / N, and P % N of
//! them get one more.

use std::collections::HashMap;
use std::hash::Hash;
use std::iter::repeat_n;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assignor {
    /// Neighbouring partitions to each, whoever has them now.
    Range,
    /// As few partitions change hands as balance allows.
    Sticky,
}

impl Assignor {
    pub const ALL: [Assignor; 2] = [Assignor::Range, Assignor::Sticky];

    pub fn parse(name: &str) -> Option<Assignor> {
        Assignor::ALL.into_iter().find(|assignor| assignor.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            Assignor::Range => "range",
            Assignor::Sticky => "sticky",
        }
    }
}

/// For each partition, given its present owner, who is to own it: an index into `members`, which are distinct. `None` only where
/// there are no members. Owners that are not among the members count for nobody.
pub fn assign<Id: Ord + Hash>(assignor: Assignor, members: &[Id], owners: &[Option<Id>]) -> Vec<Option<usize>> {
    let mut ranked: Vec<(&Id, usize)> = members.iter().zip(0..).collect();
    ranked.sort_unstable();
    let ranks = match assignor {
        Assignor::Range => range(members.len(), owners.len()),
        Assignor::Sticky => {
            let rank_of: HashMap<&Id, usize> = ranked.iter().zip(0..).map(|((id, _), rank)| (*id, rank)).collect();
            let rank_of = |owner: &Option<Id>| owner.as_ref().and_then(|id| rank_of.get(id).copied());
            sticky(members.len(), owners.iter().map(rank_of).collect())
        }
    };
    ranks.into_iter().map(|rank| Some(ranked.get(rank?)?.1)).collect()
}

/// Rank i owns the partitions from i * P / N, rounded down, to before (i + 1) * P / N.
fn range(members: usize, partitions: usize) -> Vec<Option<usize>> {
    if members == 0 {
        return vec![None; partitions];
    }
    let start = |rank: usize| rank * partitions / members;
    (0..members).flat_map(|rank| repeat_n(Some(rank), start(rank + 1) - start(rank))).collect()
}

/// Takes and gives the rank of each partition's owner.
///
/// A member keeps what fits into its share. The larger shares go first to those who have enough to fill them, since only there they
/// save a move; that makes the moves the fewest possible.
fn sticky(members: usize, mut owners: Vec<Option<usize>>) -> Vec<Option<usize>> {
    if members == 0 {
        return owners;
    }
    let (share, larger) = (owners.len() / members, owners.len() % members);
    let mut owned = vec![0; members];
    owners.iter().flatten().for_each(|rank| owned[*rank] += 1);
    let (filling, others): (Vec<usize>, Vec<usize>) = (0..members).partition(|rank| owned[*rank] > share);
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
