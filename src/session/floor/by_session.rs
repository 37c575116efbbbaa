//! Rows of lines by session, in the order of sessions, lines and numbers. Deleted rows of a session stay in the index
//! while an old snapshot is open. A walk skips rows below the floor of their line.

use super::{lane, of};
use crate::pg::table::{Key, Sight, Stand, Table, Tuple};
use crate::pg::text::Text;
use pgrx::Uuid;
use std::ffi::CStr;

pub struct BySession {
    name: &'static CStr,
    pub table: Table,
    /// The columns of the line's name and of the row's number.
    line: usize,
    number: usize,
}

/// How a walk ended.
enum Went<T> {
    Answer(T),
    /// The walk met a line whose rows count only from this number on.
    Below(String, i64),
    End,
}

impl BySession {
    pub fn open(name: &'static CStr, index: &'static CStr, line: usize, number: usize) -> BySession {
        BySession { name, table: Table::open(name, index), line, number }
    }

    /// Shows the rows of a session to `visit`, in the order of lines, until `visit` returns an answer.
    pub fn each<T>(&self, session: Uuid, visit: &mut impl FnMut(&Tuple) -> Option<T>) -> Option<T> {
        // No line has an empty name.
        let mut after = String::new();
        loop {
            match self.walk(&[Key::Uuid(session), Key::After(&after)], visit) {
                Went::Answer(answer) => return Some(answer),
                Went::End => return None,
                Went::Below(line, floor) => {
                    let answer = self.each_of(session, &line, floor, visit);
                    if answer.is_some() {
                        return answer;
                    }
                    after = line;
                }
            }
        }
    }

    /// Shows the rows of a session in one line, from a number on, until `visit` returns an answer.
    pub fn each_of<T>(
        &self,
        session: Uuid,
        line: &str,
        from: i64,
        visit: &mut impl FnMut(&Tuple) -> Option<T>,
    ) -> Option<T> {
        let mut from = from;
        loop {
            match self.walk(&[Key::Uuid(session), Key::Text(line), Key::From(from)], visit) {
                Went::Answer(answer) => return Some(answer),
                Went::End => return None,
                Went::Below(_, floor) => from = floor,
            }
        }
    }

    /// Shows the rows of a key. Before 0.3.0 the index had no numbers, or sessions alone; then one walk shows every row
    /// of every line.
    fn walk<T>(&self, key: &[Key], visit: &mut impl FnMut(&Tuple) -> Option<T>) -> Went<T> {
        let can_go_on = self.table.key_columns() > 2;
        let key = &key[..key.len().min(self.table.key_columns())];
        let mut walk = self.table.walk_versions(Sight::Latest, key);
        loop {
            match walk.step() {
                Stand::Row(_) => {
                    if let Some(answer) = visit(&self.table.row()) {
                        return Went::Answer(answer);
                    }
                }
                Stand::Stale if can_go_on => {
                    let row = self.table.row();
                    let (Text(line), number) = (row.required(self.line), row.required::<i64>(self.number));
                    if number >= 0
                        && let floor = of(lane(self.name, &line))
                        && floor > number
                    {
                        return Went::Below(line, floor);
                    }
                }
                Stand::Stale => (),
                Stand::End => return Went::End,
            }
        }
    }
}
