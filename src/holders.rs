//! Who lives among the holders of leases and the owners of places.

use crate::call::Call;
use crate::liveness::slots::Standing;
use crate::session::{self, SessionRow};
use pgrx::Uuid;
use std::collections::{HashMap, HashSet};

/// The living among some sessions, each with its row.
pub struct Holders(HashMap<Uuid, (SessionRow, Standing)>);

impl Holders {
    pub fn of(call: &Call, sessions: impl Iterator<Item = Uuid>) -> Holders {
        let sessions: Vec<Uuid> = sessions.collect::<HashSet<_>>().into_iter().collect();
        let mut living = HashMap::new();
        if !sessions.is_empty() {
            for row in session::rows(&sessions) {
                if let Some(standing) = call.standing_of(&row) {
                    living.insert(row.session, (row, standing));
                }
            }
        }
        Holders(living)
    }

    pub fn living(&self, session: Option<Uuid>) -> Option<&(SessionRow, Standing)> {
        self.0.get(&session?)
    }
}
