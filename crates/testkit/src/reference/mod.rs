//! Slow scalar references, written straight from the descriptions, for the fast kernels to agree with.

pub mod legacy;
