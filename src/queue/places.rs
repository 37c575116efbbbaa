//! Places by who has them. What a session has had of a line stays in the index while an old snapshot is open; below the floor of that line (see
//! [`crate::floor`]) it is not looked at.

use super::{MAX_PLACES, PLACE, RESOURCE, TABLE};
use crate::floor;
use crate::table::{Key, Sight, Stand, Table, Tuple};
use crate::text::Text;
use pgrx::Uuid;
use pgrx::pg_sys::ItemPointerData;
use std::collections::HashMap;

type Places = HashMap<(String, Uuid), Vec<ItemPointerData>>;

struct BySession(Table);

/// How far places have been shown.
enum Went<T> {
    Answer(T),
    /// Up to a line whose places count only from this one on.
    Below(String, i64),
    End,
}

impl BySession {
    fn open() -> BySession {
        BySession(Table::open(TABLE, c"_waiters_session"))
    }

    /// Shows the places of a session in the order of names, until `visit` has an answer.
    fn each<T>(&self, session: Uuid, visit: &mut impl FnMut(&Tuple) -> Option<T>) -> Option<T> {
        // Nothing has an empty name.
        let mut after = String::new();
        loop {
            match self.walk(&[Key::Uuid(session), Key::After(&after)], visit) {
                Went::Answer(answer) => return Some(answer),
                Went::End => return None,
                Went::Below(resource, floor) => {
                    let answer = self.each_of(session, &resource, floor, visit);
                    if answer.is_some() {
                        return answer;
                    }
                    after = resource;
                }
            }
        }
    }

    /// The same in one line, from a place on.
    fn each_of<T>(
        &self,
        session: Uuid,
        resource: &str,
        from: i64,
        visit: &mut impl FnMut(&Tuple) -> Option<T>,
    ) -> Option<T> {
        let mut from = from;
        loop {
            let key = [Key::Uuid(session), Key::Text(resource), Key::From(from)];
            // Before 0.3.0 the index had no places, and the first walk is the last.
            match self.walk(&key[..key.len().min(self.0.key_columns())], visit) {
                Went::Answer(answer) => return Some(answer),
                Went::End => return None,
                Went::Below(_, floor) => from = floor,
            }
        }
    }

    fn walk<T>(&self, key: &[Key], visit: &mut impl FnMut(&Tuple) -> Option<T>) -> Went<T> {
        let can_go_on = self.0.key_columns() > 2;
        let mut walk = self.0.walk_versions(Sight::Latest, key);
        loop {
            match walk.step() {
                Stand::Row(_) => {
                    if let Some(answer) = visit(&self.0.row()) {
                        return Went::Answer(answer);
                    }
                }
                Stand::Stale if can_go_on => {
                    let row = self.0.row();
                    if let (Some(Text(resource)), Some(place)) = (row.get(RESOURCE), row.get::<i64>(PLACE))
                        && place >= 0
                        && let floor = floor::of(floor::lane(TABLE, &resource))
                        && floor > place
                    {
                        return Went::Below(resource, floor);
                    }
                }
                Stand::Stale => (),
                Stand::End => return Went::End,
            }
        }
    }
}

/// The places of sessions in the queues of resources, pair by pair. Looked up by key and not by a statement, whose plan may have been made
/// while nobody waited, and then reads all places there are.
pub fn places(resources: &[&str], sessions: &[Uuid]) -> Places {
    let (table, mut places) = (BySession::open(), Places::new());
    for (resource, session) in resources.iter().zip(sessions) {
        table.each_of(*session, resource, i64::MIN, &mut |row| {
            places.entry(((*resource).to_owned(), *session)).or_default().push(row.tid());
            None::<()>
        });
    }
    places
}

/// Whether a session may have any place: what has been given up is counted until it is cleaned away.
pub fn may_wait(session: Uuid) -> bool {
    BySession::open().0.has_entry(&[Key::Uuid(session)])
}

/// Whether a session waits for as many resources as it may.
pub fn is_full(session: Uuid) -> bool {
    let (table, mut count) = (BySession::open(), 0);
    let mut enough = |_: &Tuple| {
        count += 1;
        (count == MAX_PLACES).then_some(())
    };
    table.0.entries(&[Key::Uuid(session)], MAX_PLACES) == MAX_PLACES && table.each(session, &mut enough).is_some()
}

/// Up to `most` places of sessions, after the first `skip`, with their resources.
pub fn places_of(sessions: &[Uuid], most: usize, skip: usize) -> Vec<(String, ItemPointerData)> {
    let (table, mut found, mut passed) = (BySession::open(), Vec::new(), 0);
    for session in sessions {
        if found.len() == most {
            break;
        }
        table.each(*session, &mut |row| {
            passed += 1;
            if passed > skip {
                found.extend(row.get::<Text>(RESOURCE).map(|resource| (resource.0, row.tid())));
            }
            (found.len() == most).then_some(())
        });
    }
    found
}

pub fn has_place(resource: &str, session: Uuid) -> bool {
    !places(&[resource], &[session]).is_empty()
}
