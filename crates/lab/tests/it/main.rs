//! The integration tests, as one program: linking is most of what building them takes.

mod benchmark;
mod floors;
mod simulation;
