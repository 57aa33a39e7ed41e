//! What a facility costs besides throughput: time to make and open it, memory, processor time; and a whole system on it.

use super::Workload;

/// All of them.
pub(super) static WORKLOADS: &[&dyn Workload] = &[];
