//! Small sets of sessions or of resources, one bit for each member.

use std::fmt::{self, Debug, Formatter};

#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Set(u8);

impl Set {
    pub fn has(self, member: usize) -> bool {
        self.0 & 1 << member != 0
    }

    pub fn add(&mut self, member: usize) {
        self.0 |= 1 << member;
    }

    pub fn remove(&mut self, member: usize) {
        self.0 &= !(1 << member);
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn members(self) -> impl Iterator<Item = usize> {
        (0..8).filter(move |member| self.has(*member))
    }

    /// Returns the set with new numbers for its members.
    pub fn renamed(self, numbers: &[usize]) -> Set {
        let mut set = Set::default();
        self.members().for_each(|member| set.add(numbers[member]));
        set
    }
}

impl Debug for Set {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        f.debug_set().entries(self.members()).finish()
    }
}
