//! Who gets which partition: pure functions of the members and of the present owners, so that whoever computes an assignment, and on
//! whatever server, computes the same.
//!
//! Members are ranked by their ids, never by where they stand in a list. Of P partitions each of N members gets P / N, and P % N of
//! them get one more.
//!
//! Who gets one more decides everything where groups have few partitions: a hundred groups of one would all go to one member, the first of
//! the ids, or the first that came. So within a named group the sticky assignor ranks members by a hash of the group's name and theirs, and the
//! first of that rank get one more, whatever they have now. A member that leaves changes nothing between those that stay: no share becomes
//! smaller. One that comes may get one more than the fewest moves would give it, and no other partition moves for that.

use crate::base::error::{Error, Result};
use crate::base::limits;
use crate::keys;
use crate::pg::text::{Text, TextArray, Texts};
use pgrx::prelude::*;
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

    /// The assignor of a name, or an error that says which there are.
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

/// What ranks a member within a group, before its id.
type Lot = (i64, i64);

/// The lots of a group's members: by their names, and behind these, after a NUL, by what tells two of one name apart.
pub fn lot(group: &str, id: &str) -> Lot {
    let hash = |of: &str| keys::fold_sha256(&format!("{group}:{of}"));
    (hash(id.split('\0').next().unwrap_or_default()), hash(id))
}

/// For each partition, given its present owner, who is to own it: an index into `members`, which are distinct. `None` only where
/// there are no members. Owners that are not among the members count for nobody. `lot`: of a group that has a name.
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
    ranks.into_iter().map(|rank| Some(ranked.get(rank?)?.2)).collect()
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
/// save a move; that makes the moves the fewest possible. Or they go by rank: that makes them the fewest possible for these shares.
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
    let group = group_name.ok_or(Error::Null("group_name"))?;
    let assignor = assignor.ok_or(Error::Null("assignor"))?;
    let members = members.ok_or(Error::Null("members"))?.0;
    let owners = owners.ok_or(Error::Null("owners"))?.0;
    let assignor = Assignor::named(&assignor)?;
    within("members", members.len(), 0, limits::MAX_NAMES as i64)?;
    within("partitions", owners.len(), 1, limits::MAX_SLOTS.into())?;
    let members = members.into_iter().collect::<Option<Vec<Text>>>().ok_or(Error::Null("member"))?;
    let mut sorted: Vec<&Text> = members.iter().collect();
    sorted.sort_unstable();
    if let Some([twice, _]) = sorted.array_windows().find(|[a, b]| a == b) {
        return Err(Error::Twice { what: "member", given: twice.0.clone() }.into());
    }
    let lot = |member: &Text| lot(&group, member);
    let lot: Option<&dyn Fn(&Text) -> Lot> = if group.is_empty() { None } else { Some(&lot) };
    Ok(Texts { elements: assign(assignor, &members, &owners, lot), texts: members })
}

/// As versions up to 0.2.0 declare it.
#[pg_extern(sql = false)]
fn partition_assign(assignor: Option<Text>, members: Option<TextArray>, owners: Option<TextArray>) -> Result<Texts> {
    partition_assign_in(assignor, members, owners, Some(Text(String::new())))
}

fn within(what: &'static str, given: usize, min: i64, max: i64) -> Result<()> {
    let given = given as i64;
    if (min..=max).contains(&given) { Ok(()) } else { Err(Error::Number { what, given, min, max }.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::{hash_set, vec};
    use proptest::option;
    use proptest::prelude::*;

    /// What each member gets, in the order of `members`.
    fn shares(members: usize, assigned: &[Option<usize>]) -> Vec<Vec<usize>> {
        let of = |member| (0..assigned.len()).filter(|p| assigned[*p] == Some(member)).collect();
        (0..members).map(of).collect()
    }

    fn balanced(members: usize, assigned: &[Option<usize>]) -> bool {
        let mut counts = vec![0; members];
        assigned.iter().flatten().for_each(|member| counts[*member] += 1);
        let (least, most) = (counts.iter().min(), counts.iter().max());
        assigned.iter().all(Option::is_some) && least.zip(most).is_some_and(|(least, most)| most - least <= 1)
    }

    fn stay(owners: &[Option<usize>], assigned: &[Option<usize>]) -> usize {
        owners.iter().zip(assigned).filter(|(before, after)| before.is_some() && before == after).count()
    }

    /// How many partitions can stay at most: what fits into the smaller shares, and one more for each larger share that an owner fills.
    fn most_that_stay(members: usize, owners: &[Option<usize>]) -> usize {
        let (share, larger) = (owners.len() / members, owners.len() % members);
        let mut owned = vec![0; members];
        owners.iter().flatten().filter(|m| **m < members).for_each(|member| owned[*member] += 1);
        let filling = owned.iter().filter(|owned| **owned > share).count();
        owned.iter().map(|owned| share.min(*owned)).sum::<usize>() + filling.min(larger)
    }

    /// With the numbers 0.. as the ids of so many members; higher numbers are owners that are not among them.
    fn assign_numbers(assignor: Assignor, members: usize, owners: &[Option<usize>]) -> Vec<Option<usize>> {
        assign(assignor, &(0..members).collect::<Vec<_>>(), owners, None)
    }

    /// All lists of so many elements, each below `choices`.
    fn all_lists(length: u32, choices: usize) -> impl Iterator<Item = Vec<usize>> {
        (0..choices.pow(length)).map(move |i| (0..length).map(|digit| i / choices.pow(digit) % choices).collect())
    }

    #[test]
    fn names() {
        for assignor in Assignor::ALL {
            assert_eq!(Assignor::parse(assignor.name()), Some(assignor));
        }
        for unknown in ["", "RANGE", "range ", "roundrobin"] {
            assert_eq!(Assignor::parse(unknown), None);
        }
    }

    #[test]
    fn ranges() {
        let range = |members: &[&str]| shares(members.len(), &assign(Assignor::Range, members, &[None; 8], None));
        assert_eq!(range(&["a"]), [[0, 1, 2, 3, 4, 5, 6, 7]]);
        assert_eq!(range(&["a", "c"]), [[0, 1, 2, 3], [4, 5, 6, 7]]);
        assert_eq!(range(&["a", "b", "c"]), [vec![0, 1], vec![2, 3, 4], vec![5, 6, 7]]);
        assert_eq!(range(&["c", "a", "b"]), [vec![5, 6, 7], vec![0, 1], vec![2, 3, 4]]);
        assert_eq!(range(&["a", "b", "c", "d", "e"]), [vec![0], vec![1, 2], vec![3], vec![4, 5], vec![6, 7]]);
        // By bytes: capitals, then small letters, then what is not ASCII; a beginning before what goes on.
        assert_eq!(range(&["é", "z", "Z", ""]), [[6, 7], [4, 5], [2, 3], [0, 1]]);
        assert_eq!(range(&["a1", "a"]), [[4, 5, 6, 7], [0, 1, 2, 3]]);
    }

    #[test]
    fn sticky_moves() {
        let sticky = |members: &[&str], owners: &[Option<&str>]| assign(Assignor::Sticky, members, owners, None);
        let (a, b, c) = (Some("a"), Some("b"), Some("c"));
        // One joins: two that are too many go to it, the last of each.
        assert_eq!(
            sticky(&["a", "b", "c"], &[a, a, a, b, b, b]),
            [Some(0), Some(0), Some(2), Some(1), Some(1), Some(2)]
        );
        // One leaves: only its own move.
        assert_eq!(sticky(&["a", "c"], &[a, a, b, b, c, c]), [Some(0), Some(0), Some(0), Some(1), Some(1), Some(1)]);
        // Whoever has more keeps the larger share, whatever the ids.
        assert_eq!(sticky(&["a", "b"], &[a, b, b]), [Some(0), Some(1), Some(1)]);
        assert_eq!(sticky(&["a", "b"], &[None, b, b]), [Some(0), Some(1), Some(1)]);
        // Nobody had anything.
        assert_eq!(sticky(&["b", "a"], &[None; 3]), [Some(1), Some(1), Some(0)]);
        // More members than partitions.
        assert_eq!(sticky(&["a", "b", "c"], &[c, c]), [Some(2), Some(0)]);
    }

    #[test]
    fn nobody_and_nothing() {
        for assignor in Assignor::ALL {
            assert_eq!(assign(assignor, &[], &[Some("a"), None], None), [None, None]);
            assert_eq!(assign(assignor, &["a"], &[], None), []);
            assert_eq!(assign::<&str>(assignor, &[], &[], None), []);
        }
    }

    /// The fewest moves of all balanced assignments, against every assignment of every small case; and the closed form, by which
    /// the large cases are judged, says the same.
    #[test]
    fn sticky_moves_the_fewest_of_all() {
        for (members, partitions) in (1..=4).flat_map(|n| (1..=6).map(move |p| (n, p))) {
            let somebody = |list: Vec<usize>| list.into_iter().map(Some).collect::<Vec<_>>();
            let possible = all_lists(partitions, members).map(somebody).filter(|list| balanced(members, list));
            let possible: Vec<_> = possible.collect();
            // Which partitions an owner has makes no difference to how many can stay, so each set of numbers is searched once.
            let mut most_of = HashMap::new();
            // One number more, for an owner that is not a member.
            for owners in all_lists(partitions, members + 1).map(somebody) {
                let assigned = assign_numbers(Assignor::Sticky, members, &owners);
                let numbers: Vec<_> = shares(members, &owners).iter().map(Vec::len).collect();
                let search = || possible.iter().map(|possible| stay(&owners, possible)).max();
                let most = *most_of.entry(numbers).or_insert_with(search);
                assert!(balanced(members, &assigned), "{owners:?} -> {assigned:?}");
                assert_eq!(Some(stay(&owners, &assigned)), most, "{owners:?} -> {assigned:?}");
                assert_eq!(Some(most_that_stay(members, &owners)), most, "{owners:?}");
            }
        }
    }

    /// The largest that partition_assign takes; would not end if the time grew with members times partitions.
    #[test]
    fn many_members_and_partitions() {
        let owners: Vec<_> = (0..limits::MAX_SLOTS as usize).map(|p| Some(p * p % 20_000)).collect();
        for members in [10_000, limits::MAX_NAMES] {
            let assigned = assign_numbers(Assignor::Sticky, members, &owners);
            assert!(balanced(members, &assigned));
            assert_eq!(stay(&owners, &assigned), most_that_stay(members, &owners));
            assert!(balanced(members, &assign_numbers(Assignor::Range, members, &owners)));
        }
    }

    /// How many partitions each member has of a hundred groups of one, which go from owners to owners.
    fn shares_of_small_groups(members: &[&'static str], owners: &mut [Option<&'static str>; 100]) -> Vec<usize> {
        for (group, owner) in owners.iter_mut().enumerate() {
            let name = format!("orders-{group}");
            let assigned = assign(Assignor::Sticky, members, &[*owner], Some(&|id: &&str| lot(&name, id)));
            *owner = assigned[0].map(|member| members[member]);
        }
        members.iter().map(|member| owners.iter().filter(|owner| **owner == Some(*member)).count()).collect()
    }

    /// Also after one has died and one has come, and where the members came one after the other.
    #[test]
    fn many_small_groups_are_shared() {
        let mut owners = [None; 100];
        let fair = |shares: Vec<usize>| shares.into_iter().all(|share| (15..=35).contains(&share));
        let steps: &[&[&str]] = &[&["w1", "w2", "w3", "w4"], &["w2", "w3", "w4", "w5"], &["w2", "w3", "w4", "w1"]];
        for members in steps {
            let shares = shares_of_small_groups(members, &mut owners);
            assert!(fair(shares.clone()), "{members:?}: {shares:?}");
        }
        let mut owners = [None; 100];
        for count in 1..4 {
            shares_of_small_groups(&steps[0][..count], &mut owners);
        }
        assert!(fair(shares_of_small_groups(steps[0], &mut owners)));
        // One name for all: what follows it tells them apart, and shares as fairly.
        let shares = shares_of_small_groups(&["w\0a", "w\0b", "w\0c", "w\0d"], &mut [None; 100]);
        assert!(fair(shares.clone()), "{shares:?}");
    }

    proptest! {
        /// Members of a group with a name join and leave one by one: balanced, no move more than the fewest at a leave, and one at a join.
        #[test]
        fn lots_cost_one_move_of_a_join(partitions in 1usize..64, steps in vec(0u8..24, 1..200)) {
            let (mut members, mut owners): (Vec<u8>, Vec<Option<u8>>) = (Vec::new(), vec![None; partitions]);
            let known: Vec<Lot> = (0..24).map(|id: u8| lot("g", &id.to_string())).collect();
            let lots: &dyn Fn(&u8) -> Lot = &|id| known[usize::from(*id)];
            for id in steps {
                let joins = !members.contains(&id);
                if joins { members.push(id) } else { members.retain(|member| *member != id) }
                let assigned = assign(Assignor::Sticky, &members, &owners, Some(lots));
                let place = |owner: &Option<u8>| members.iter().position(|member| Some(*member) == *owner);
                let before: Vec<_> = owners.iter().map(place).collect();
                if !members.is_empty() {
                    prop_assert!(balanced(members.len(), &assigned));
                    let stayed = stay(&before, &assigned);
                    prop_assert!(stayed + usize::from(joins) >= most_that_stay(members.len(), &before));
                }
                owners = assigned.iter().map(|i| i.map(|i| members[i])).collect();
                let again = assign(Assignor::Sticky, &members, &owners, Some(lots));
                prop_assert_eq!(again, assigned);
            }
        }

        #[test]
        fn range_is_balanced_in_order_and_blind(
            members in 1usize..40,
            owners in vec(option::of(0usize..50), 0..200),
        ) {
            let assigned = assign_numbers(Assignor::Range, members, &owners);
            prop_assert!(balanced(members, &assigned));
            prop_assert!(assigned.is_sorted());
            prop_assert_eq!(assigned, assign_numbers(Assignor::Range, members, &vec![None; owners.len()]));
        }

        #[test]
        fn the_order_of_members_does_not_matter(
            (members, shuffled) in hash_set(".{0,3}", 1..20)
                .prop_flat_map(|ids| { let ids = Vec::from_iter(ids); (Just(ids.clone()), Just(ids).prop_shuffle()) }),
            owners in vec(option::of(0usize..25), 0..100),
        ) {
            let owners: Vec<_> = owners.iter().map(|owner| owner.and_then(|i| members.get(i).cloned())).collect();
            let ids = |assignor, members: &[String], lots: Option<&dyn Fn(&String) -> Lot>| {
                assign(assignor, members, &owners, lots).into_iter().map(|i| i.map(|i| members[i].clone())).collect::<Vec<_>>()
            };
            for assignor in Assignor::ALL {
                for lots in [None, Some(&(|id: &String| lot("g", id)) as &dyn Fn(&String) -> Lot)] {
                    prop_assert_eq!(ids(assignor, &members, lots), ids(assignor, &shuffled, lots));
                }
            }
        }

        /// Members join and leave, and each assignment starts from the one before.
        #[test]
        fn sticky_stays_balanced_over_joins_and_leaves(
            partitions in 1usize..64,
            steps in vec(vec(0u8..24, 1..4), 1..200),
        ) {
            let mut members: Vec<u8> = Vec::new();
            let mut owners: Vec<Option<u8>> = vec![None; partitions];
            for step in steps {
                // Who is not there joins, who is there leaves.
                for id in step {
                    match members.iter().position(|member| *member == id) {
                        Some(at) => { members.swap_remove(at); }
                        None => members.push(id),
                    }
                }
                let assigned = assign(Assignor::Sticky, &members, &owners, None);
                let after: Vec<Option<u8>> = assigned.iter().map(|i| i.map(|i| members[i])).collect();
                if members.is_empty() {
                    prop_assert!(after.iter().all(Option::is_none));
                } else {
                    let place = |owner: &Option<u8>| members.iter().position(|member| Some(*member) == *owner);
                    let before: Vec<_> = owners.iter().map(place).collect();
                    prop_assert!(balanced(members.len(), &assigned));
                    prop_assert_eq!(stay(&before, &assigned), most_that_stay(members.len(), &before));
                }
                owners = after;
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        #[test]
        fn sticky_is_balanced_and_moves_the_fewest(
            members in 1usize..40,
            owners in vec(option::of(0usize..50), 0..100),
        ) {
            let assigned = assign_numbers(Assignor::Sticky, members, &owners);
            prop_assert!(balanced(members, &assigned));
            prop_assert_eq!(stay(&owners, &assigned), most_that_stay(members, &owners));
            prop_assert_eq!(&assign_numbers(Assignor::Sticky, members, &assigned), &assigned);
        }
    }
}
