//! Rows, sessions and transactions.

use crate::set::Set;

pub const SESSIONS: usize = 3;
pub const SLOTS: usize = 3;
pub const CLIENTS: usize = 2;
pub const FORMER: usize = 0;
pub const SUCCESSOR: usize = 1;
/// The number of fences that may be drawn, and one for none.
pub const FENCES: usize = 10;

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub enum Holder {
    #[default]
    Nobody,
    Session(u8),
    /// A private session. `of`: the session that may acquire the lease; `fencer`: the one that let go of it.
    Grace {
        of: u8,
        fencer: u8,
    },
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub struct Row {
    pub holder: Holder,
    pub fence: u8,
    /// The lease was held before the last resize, by this session or by one from which it inherits.
    pub older: bool,
}

/// A slot: its committed row, the transaction that has locked it, and that transaction's new row.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub struct Slot {
    pub row: Row,
    pub by: Option<u8>,
    pub new: Row,
    /// Whether the private session has lapsed. `buried`: whether a row says that it has.
    pub lapsed: bool,
    pub buried: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub enum Life {
    #[default]
    Unopened,
    Alive,
    /// The session lives again after a crash, unless a row tells of its death.
    Expired,
    Ended,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    #[default]
    Idle,
    /// Has seen a slot that may be granted.
    Looked {
        slot: u8,
        seen: Row,
        how: How,
    },
    Written,
    TakesOver,
    Fenced {
        slot: u8,
        fence: u8,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum How {
    Granted,
    TakenBack,
    TakenOver,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub struct Transaction {
    pub phase: Phase,
    pub me: u8,
    /// The number of permits when the transaction looked.
    pub permits: u8,
    /// Sessions that the transaction has counted as gone. `lapsed`: the slots of private sessions that it has counted
    /// as gone.
    pub gone: Set,
    pub lapsed: Set,
    /// Locks: the Seat of `me`, the declaration, and F, exclusively, of these slots' fences.
    pub seat: bool,
    pub declaration: bool,
    pub excludes: [u8; SLOTS],
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct State {
    pub slots: [Slot; SLOTS],
    pub lives: [Life; SESSIONS],
    /// Dead sessions with a row of their death.
    pub recorded: Set,
    pub permits: u8,
    pub transactions: [Transaction; CLIENTS],
    pub last_fence: u8,
    /// The session that has been told each fence, plus one; zero for none.
    pub told: [u8; FENCES],
    pub shared: bool,
    pub calls: u8,
    pub resizes: u8,
    pub crashes: u8,
}

impl State {
    pub fn lives(&self, slot: usize) -> bool {
        match self.slots[slot].row.holder {
            Holder::Nobody => false,
            Holder::Session(s) => self.lives[usize::from(s)] == Life::Alive,
            Holder::Grace { .. } => !self.slots[slot].lapsed,
        }
    }

    pub fn is_of(&self, slot: usize, s: usize) -> bool {
        self.slots[slot].row.holder == Holder::Session(s as u8)
    }

    /// Returns whether another transaction has checked the fence of a slot and is open.
    pub fn is_fenced(&self, x: usize, slot: usize) -> bool {
        let at = |phase: Phase| matches!(phase, Phase::Fenced { slot: of, .. } if usize::from(of) == slot);
        self.transactions.iter().enumerate().any(|(y, other)| y != x && at(other.phase))
    }

    pub fn is_locked(&self, x: usize, slot: usize) -> bool {
        self.slots[slot].by.is_some_and(|by| usize::from(by) != x)
    }

    pub fn write(&mut self, x: usize, slot: usize, new: Row) {
        (self.slots[slot].by, self.slots[slot].new) = (Some(x as u8), new);
    }

    pub fn draw(&mut self) -> u8 {
        self.last_fence += 1;
        self.last_fence
    }

    pub fn tell(&mut self, row: Row) {
        if let Holder::Session(s) = row.holder {
            let told = &mut self.told[usize::from(row.fence)];
            self.shared |= *told != 0 && *told != s + 1;
            *told = s + 1;
        }
    }

    pub fn holders(&self) -> usize {
        (0..SLOTS).filter(|slot| self.lives(*slot)).count()
    }
}
