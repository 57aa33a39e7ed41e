//! What is planned, measured, published and asked: data, and what can be said of it without touching the machine.

pub mod answers;
pub mod case;
pub mod ciphers;
pub mod figures;
pub mod machine;
pub mod parameters;
pub mod plan;
pub mod published;
pub mod random;
pub mod statistics;
pub mod study;
pub mod words;
