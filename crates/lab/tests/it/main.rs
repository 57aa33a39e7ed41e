//! The integration tests, as one program: linking is most of what building them takes.

mod benchmark;
mod changes;
mod floors;
mod pooled;
mod published;
mod recommend;
mod report;
mod sample;
mod simulation;
mod statistics;
mod verdicts;
