//! The cost of trying keyslots, to be announced before the trial.

use serde::Serialize;

/// The keyslots to try, one after the other in this order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct UnlockPlan {
    /// The keyslots.
    pub keyslots: Vec<PlannedSlot>,
    /// How much memory is available, in bytes. Keyslots that need more are skipped.
    pub available: u64,
}

/// The cost of one keyslot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PlannedSlot {
    /// Its number.
    pub keyslot: u32,
    /// How much memory its derivation fills, in bytes, where that matters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// The estimated time on this machine, in microseconds.
    pub microseconds: u64,
}

impl UnlockPlan {
    /// A plan for this machine, or for at most `limit` bytes of memory.
    pub fn new(keyslots: Vec<PlannedSlot>, limit: Option<u64>) -> Self {
        Self { keyslots, available: crate::memory::available().min(limit.unwrap_or(u64::MAX)) }
    }

    /// How much memory the trials use at once, in bytes: that of the most demanding keyslot that fits.
    pub fn memory(&self) -> u64 {
        self.keyslots
            .iter()
            .filter_map(|slot| slot.memory)
            .filter(|memory| *memory <= self.available)
            .max()
            .unwrap_or(0)
    }

    /// How much memory it takes to try all of them, in bytes.
    pub fn needed(&self) -> u64 {
        self.keyslots.iter().filter_map(|slot| slot.memory).max().unwrap_or(0)
    }

    /// The estimated time to try all of them, in microseconds.
    pub fn microseconds(&self) -> u64 {
        self.keyslots.iter().fold(0, |sum, slot| sum.saturating_add(slot.microseconds))
    }

    /// Returns the plan for one keyslot.
    pub fn of(&self, keyslot: u32) -> Option<&PlannedSlot> {
        self.keyslots.iter().find(|slot| slot.keyslot == keyslot)
    }
}
