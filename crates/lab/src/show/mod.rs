//! What figures show: summaries, changes, what others published, recommendations, and reports of all of it.

pub mod changes;
pub mod pooled;
pub mod published;
pub mod recommend;
pub mod report;
pub mod study;
pub mod summary;
