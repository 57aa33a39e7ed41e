//! What this project's own crates share with the engine. It is not part of the interface: it may change with any version.

pub mod files;
pub mod in_order;
pub mod random;
pub mod read_secret;
