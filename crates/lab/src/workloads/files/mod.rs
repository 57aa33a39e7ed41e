//! Workloads on files in folders.

use super::Workload;

/// All of them.
pub(super) static WORKLOADS: &[&dyn Workload] = &[];
