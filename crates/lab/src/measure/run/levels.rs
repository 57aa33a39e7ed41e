//! What the levels of a run set.

use crate::model::plan::{Level, Plan};

/// What a level sets unless somebody says otherwise.
pub(super) struct Defaults {
    pub scale: f64,
    pub min_repeats: usize,
    pub max_repeats: usize,
    /// The longest pass, in seconds. Longer workloads are left to the next level.
    pub pass_s: f64,
}

impl Defaults {
    pub fn of(level: Level) -> Self {
        match level {
            Level::Quick => Self { scale: 0.01, min_repeats: 5, max_repeats: 7, pass_s: 4.0 },
            Level::Standard => Self { scale: 0.05, min_repeats: 5, max_repeats: 10, pass_s: 60.0 },
            Level::Thorough => Self { scale: 1.0, min_repeats: 5, max_repeats: 25, pass_s: f64::INFINITY },
        }
    }
}

/// A size of this level in bytes, at the scale of the plan. The sizes differ from the level's only if the plan has another
/// scale.
pub(crate) fn at_scale(size: u64, plan: &Plan) -> u64 {
    (size as f64 * (plan.scale / Defaults::of(plan.level).scale)) as u64
}
