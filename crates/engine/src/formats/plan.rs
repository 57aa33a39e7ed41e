//! What trying keyslots will cost, so that it can be said before it is tried.

use serde::Serialize;

/// The keyslots that would be tried, in this order and one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct UnlockPlan {
    /// Each of them.
    pub keyslots: Vec<PlannedSlot>,
    /// Bytes of memory that are available: a keyslot that wants more is left out.
    pub available: u64,
}

/// What one keyslot costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PlannedSlot {
    /// Its number.
    pub keyslot: u32,
    /// Bytes of memory that its derivation fills, where that matters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// About how long it takes on this machine, in microseconds.
    pub microseconds: u64,
}

impl UnlockPlan {
    /// A plan for this machine, or for at most `limit` bytes of memory.
    pub fn new(keyslots: Vec<PlannedSlot>, limit: Option<u64>) -> Self {
        Self { keyslots, available: crate::memory::available().min(limit.unwrap_or(u64::MAX)) }
    }

    /// Bytes of memory that are taken at once: what the most demanding keyslot takes of those that fit.
    pub fn memory(&self) -> u64 {
        self.keyslots
            .iter()
            .filter_map(|slot| slot.memory)
            .filter(|memory| *memory <= self.available)
            .max()
            .unwrap_or(0)
    }

    /// Bytes of memory that it takes to try them all.
    pub fn needed(&self) -> u64 {
        self.keyslots.iter().filter_map(|slot| slot.memory).max().unwrap_or(0)
    }

    /// About how long trying them all takes, in microseconds.
    pub fn microseconds(&self) -> u64 {
        self.keyslots.iter().fold(0, |sum, slot| sum.saturating_add(slot.microseconds))
    }

    /// What is planned for one keyslot.
    pub fn of(&self, keyslot: u32) -> Option<&PlannedSlot> {
        self.keyslots.iter().find(|slot| slot.keyslot == keyslot)
    }
}
