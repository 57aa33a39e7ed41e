//! Workloads on bytes at offsets.

use super::Workload;

/// All of them.
pub(super) static WORKLOADS: &[&dyn Workload] = &[];
