//! Walks along lines: which session is the first in each.

use super::places::{self, PLACE, SESSION, TABLE, places};
use crate::base::limits;
use crate::call::Call;
use crate::lease::seat;
use crate::pg::table::{Key, Sight, Stand, Table, Tuple};
use crate::session::{self, floor, succession};
use fnv::FnvHashMap;
use pgrx::Uuid;
use pgrx::pg_sys::ItemPointerData;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};

/// The first in line for a resource. It may be a session that is granted nothing but has a successor, whose place this
/// is: no session behind that place is first.
pub struct First {
    pub session: Uuid,
    /// All places of the session in the line; `None` if the line is so long that the walk stopped before its end.
    places: Option<Vec<ItemPointerData>>,
}

/// The first in line for each resource. The map is sorted by name, because neighbouring rows of an index share the
/// processor's cache.
#[derive(Default)]
pub struct Line {
    pub first: BTreeMap<String, First>,
    /// Resources without a first in line, although an open transaction has deleted a place there: a rollback restores
    /// that place.
    pub leaving: Vec<String>,
}

impl Line {
    /// Puts a session first wherever one of `left` is. `left`: the dead predecessors whose places are the session's.
    pub fn inherit(&mut self, left: &[Uuid], session: Uuid) {
        let inherited = self.first.iter_mut().filter(|(_, first)| left.contains(&first.session));
        for (resource, first) in inherited {
            let sessions: Vec<Uuid> = left.iter().copied().chain([session]).collect();
            let found = places(&vec![resource.as_str(); sessions.len()], &sessions);
            *first = First { session, places: Some(found.into_values().flatten().collect()) };
        }
    }
}

/// Returns the first in line for each of the resources.
pub fn first_in_line(call: &Call, resources: Vec<&str>) -> Line {
    next_in_line(call, resources, &HashSet::new())
}

/// Returns the first in line for each of the resources. The sessions in `but` may be granted nothing.
pub fn next_in_line(call: &Call, resources: Vec<&str>, but: &HashSet<Uuid>) -> Line {
    let table = call.waiters();
    // Usually no session waits for a single resource, or for any. A look at the index tells that faster than a scan.
    let all_or_one = if let [one] = *resources { Some(Key::Text(one)) } else { None };
    if !table.has_entry(all_or_one.as_slice()) {
        return Line::default();
    }
    let mut lines = Lines::of(call, Some(but));
    let first =
        resources.into_iter().filter_map(|resource| Some((resource.to_owned(), lines.first(resource)?))).collect();
    Line { first, leaving: lines.leaving }
}

/// The lines, walked one after the other. The walks ask only once for each session whether it may be granted a lease,
/// because the same few sessions may wait for many resources. The answer holds only during these walks.
pub struct Lines<'a> {
    call: &'a Call,
    but: Option<&'a HashSet<Uuid>>,
    turns: FnvHashMap<Uuid, Turn>,
    /// As in [`Line`].
    pub leaving: Vec<String>,
}

/// What a walk needs to know of a session that has a place.
#[derive(Clone, Copy)]
struct Turn {
    /// Whether no session behind this one may be served: this one may be granted the resource, or its successor may.
    has: bool,
    /// Whether its places may have moved to a successor since the walk began. A take-over that moves places has deleted
    /// the row of their session, at the latest in the same transaction. So while that row exists, the places are where
    /// the walk shows them.
    may_have_moved: bool,
}

impl Lines<'_> {
    /// `but`: sessions that may be granted nothing.
    pub fn of<'a>(call: &'a Call, but: Option<&'a HashSet<Uuid>>) -> Lines<'a> {
        Lines { call, but, turns: FnvHashMap::default(), leaving: Vec::new() }
    }

    pub fn first(&mut self, resource: &str) -> Option<First> {
        loop {
            let known = self.turns.len();
            let walked = self.walk(resource);
            // A walk shows places as they were when it began. It may have passed over a place that has since moved from
            // a session without a turn to a successor. Another walk shows the successor.
            if walked.may_have_moved && self.turns.len() > known {
                continue;
            }
            if walked.leaving && walked.first.is_none() {
                self.leaving.push(resource.to_owned());
            }
            return walked.first;
        }
    }

    fn walk(&mut self, resource: &str) -> Walked {
        let Lines { call, but, turns, .. } = self;
        let look = |session: &Uuid| {
            let is_left_out = but.is_some_and(|but| but.contains(session));
            let has_row = Cell::new(false);
            let lives = || {
                let row = session::row(*session);
                has_row.set(row.is_some());
                row.is_some_and(|row| call.is_eligible(&row))
            };
            // The order of these checks matters. If a take-over is rolled back meanwhile, the checks see the take-over
            // open, or see that the session lives. If a session is in `but` because of a take-over, it keeps its turn
            // after the rollback, since its guard is released a little later.
            let has = !is_left_out && lives()
                || succession::has_successor(call, *session)
                || lives() && !(is_left_out && session::ending::is_ending(*session));
            Turn { has, may_have_moved: is_left_out || !has_row.get() }
        };
        let mut turn = |session: Uuid| *turns.entry(session).or_insert_with(|| look(&session));
        let (mut walked, mut beyond) = (Walked::default(), 0);
        let mut visit = |row: &Tuple| {
            let session = row.required::<Uuid>(SESSION);
            match &mut walked.first {
                None => match turn(session) {
                    Turn { has: false, may_have_moved } => walked.may_have_moved |= may_have_moved,
                    _ if seat::has_permit(call, resource, session) => (),
                    _ if row.is_being_deleted() => walked.leaving = true,
                    _ => walked.first = Some(First { session, places: Some(vec![row.tid()]) }),
                },
                Some(first) => {
                    beyond += 1;
                    if beyond > limits::MAX_BEYOND {
                        first.places = None;
                    } else if session == first.session {
                        first.places.iter_mut().for_each(|places| places.push(row.tid()));
                    }
                }
            }
            (beyond > limits::MAX_BEYOND).then_some(())
        };
        if let Some(floor) = walk_line(call.waiters(), resource, None, &mut visit) {
            walk_line(call.waiters(), resource, Some(floor), &mut visit);
        }
        walked
    }
}

/// The result of a walk along a line.
#[derive(Default)]
struct Walked {
    first: Option<First>,
    /// Whether the walk passed a place of a session without a turn that may be a successor's by now.
    may_have_moved: bool,
    /// Whether the walk passed a place that an open transaction is giving up.
    leaving: bool,
}

/// Shows the places of a line to `visit`, in order, until `visit` returns an answer. Without `floor` it may find a
/// floor behind the first places; then it returns the floor, and the caller walks again from there.
fn walk_line(
    table: &Table,
    resource: &str,
    floor: Option<i64>,
    visit: &mut impl FnMut(&Tuple) -> Option<()>,
) -> Option<i64> {
    let (key, mut may_ask) = ([Key::Text(resource), Key::From(floor.unwrap_or(i64::MIN))], floor.is_none());
    let mut walk = table.walk_versions(Sight::Latest, &key);
    loop {
        match walk.step() {
            Stand::Row(_) => {
                if visit(&table.row()).is_some() {
                    return None;
                }
            }
            Stand::Stale => {
                let place = table.row().required::<i64>(PLACE);
                if may_ask && place >= 0 {
                    may_ask = false;
                    // The walk of `table` is still open, so another table is opened.
                    let key = |from| vec![Key::Text(resource), Key::From(from)];
                    let floor = floor::raise(floor::lane(TABLE, resource), &places::table(), PLACE, key);
                    if floor > place {
                        return Some(floor);
                    }
                }
            }
            Stand::End => return None,
        }
    }
}

/// Returns the places of the first in line, by resource.
pub fn places_of_first(first: &BTreeMap<String, First>) -> HashMap<String, Vec<ItemPointerData>> {
    let (mut found, mut unknown) = (HashMap::new(), (Vec::new(), Vec::new()));
    for (resource, First { session, places }) in first {
        match places {
            Some(places) => drop(found.insert(resource.clone(), places.clone())),
            None => {
                unknown.0.push(resource.as_str());
                unknown.1.push(*session);
            }
        }
    }
    let looked_up = places(&unknown.0, &unknown.1);
    found.extend(looked_up.into_iter().map(|((resource, _), places)| (resource, places)));
    found
}
