//! Tests of the promises of assignments, for all kinds of members and owners.

use super::*;
use proptest::collection::{hash_set, vec};
use proptest::option;
use proptest::prelude::*;

/// Returns the partitions of each member, in the order of `members`.
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

/// Returns how many partitions can stay at most. An owner keeps what fits into the smaller share, and one more for each
/// larger share that it fills.
fn most_that_stay(members: usize, owners: &[Option<usize>]) -> usize {
    let (share, larger) = (owners.len() / members, owners.len() % members);
    let mut owned = vec![0; members];
    owners.iter().flatten().filter(|m| **m < members).for_each(|member| owned[*member] += 1);
    let filling = owned.iter().filter(|owned| **owned > share).count();
    owned.iter().map(|owned| share.min(*owned)).sum::<usize>() + filling.min(larger)
}

/// Assigns with the numbers from 0 to `members` - 1 as ids. Owners with greater numbers are not members.
fn assign_numbers(assignor: Assignor, members: usize, owners: &[Option<usize>]) -> Vec<Option<usize>> {
    assign(assignor, &(0..members).collect::<Vec<_>>(), owners, None)
}

/// Returns all lists of `length` elements, each below `choices`.
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
    // Ids sort by bytes: capitals, small letters, then non-ASCII letters. A prefix sorts before the longer id.
    assert_eq!(range(&["é", "z", "Z", ""]), [[6, 7], [4, 5], [2, 3], [0, 1]]);
    assert_eq!(range(&["a1", "a"]), [[4, 5, 6, 7], [0, 1, 2, 3]]);
}

#[test]
fn sticky_moves() {
    let sticky = |members: &[&str], owners: &[Option<&str>]| assign(Assignor::Sticky, members, owners, None);
    let (a, b, c) = (Some("a"), Some("b"), Some("c"));
    // A member joins. Each of the others has one partition too many, and its last one moves.
    assert_eq!(sticky(&["a", "b", "c"], &[a, a, a, b, b, b]), [Some(0), Some(0), Some(2), Some(1), Some(1), Some(2)]);
    // A member leaves. Only its own partitions move.
    assert_eq!(sticky(&["a", "c"], &[a, a, b, b, c, c]), [Some(0), Some(0), Some(0), Some(1), Some(1), Some(1)]);
    // The member that owns more keeps the larger share, whatever the ids.
    assert_eq!(sticky(&["a", "b"], &[a, b, b]), [Some(0), Some(1), Some(1)]);
    assert_eq!(sticky(&["a", "b"], &[None, b, b]), [Some(0), Some(1), Some(1)]);
    // No member owned anything.
    assert_eq!(sticky(&["b", "a"], &[None; 3]), [Some(1), Some(1), Some(0)]);
    // There are more members than partitions.
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

/// Compares with every balanced assignment of every small case: sticky moves the fewest partitions of all.
/// `most_that_stay`, which judges the large cases, must agree.
#[test]
fn sticky_moves_the_fewest_of_all() {
    for (members, partitions) in (1..=4).flat_map(|n| (1..=6).map(move |p| (n, p))) {
        let all_owned = |list: Vec<usize>| list.into_iter().map(Some).collect::<Vec<_>>();
        let possible = all_lists(partitions, members).map(all_owned).filter(|list| balanced(members, list));
        let possible: Vec<_> = possible.collect();
        // How many partitions can stay depends only on how many each owner has. So each such list of numbers is
        // searched once.
        let mut most_of = HashMap::new();
        // The choices include one more number, for an owner that is not a member.
        for owners in all_lists(partitions, members + 1).map(all_owned) {
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

/// Tests the largest input that partition_assign takes. The test would not end if the time grew with members times
/// partitions.
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

/// Assigns a hundred groups of one partition, and writes the new owners to `owners`. Returns how many partitions each
/// member owns.
fn shares_of_small_groups(members: &[&'static str], owners: &mut [Option<&'static str>; 100]) -> Vec<usize> {
    for (group, owner) in owners.iter_mut().enumerate() {
        let name = format!("orders-{group}");
        let assigned = assign(Assignor::Sticky, members, &[*owner], Some(&|id: &&str| lot(&name, id)));
        *owner = assigned[0].map(|member| members[member]);
    }
    members.iter().map(|member| owners.iter().filter(|owner| **owner == Some(*member)).count()).collect()
}

/// Tests that many small groups are shared fairly, even after one member has died and another has joined, and with
/// members that join one by one.
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
    // All members have one name. The rest of the id tells them apart, and the shares are as fair.
    let shares = shares_of_small_groups(&["w\0a", "w\0b", "w\0c", "w\0d"], &mut [None; 100]);
    assert!(fair(shares.clone()), "{shares:?}");
}

proptest! {
    /// Members of a named group join and leave one by one. Shares stay balanced. A leave makes only the fewest moves
    /// possible, a join at most one more.
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
            let assigned = assign(assignor, members, &owners, lots).into_iter();
            assigned.map(|i| i.map(|i| members[i].clone())).collect::<Vec<_>>()
        };
        for assignor in Assignor::ALL {
            for lots in [None, Some(&(|id: &String| lot("g", id)) as &dyn Fn(&String) -> Lot)] {
                prop_assert_eq!(ids(assignor, &members, lots), ids(assignor, &shuffled, lots));
            }
        }
    }

    /// Members join and leave, and each assignment starts from the former one.
    #[test]
    fn sticky_stays_balanced_over_joins_and_leaves(
        partitions in 1usize..64,
        steps in vec(vec(0u8..24, 1..4), 1..200),
    ) {
        let mut members: Vec<u8> = Vec::new();
        let mut owners: Vec<Option<u8>> = vec![None; partitions];
        for step in steps {
            // An id that is not a member joins; a member leaves.
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
