//! What people see and type: prompts, progress, tables, sizes, JSON, exit codes.

pub mod advice;
pub mod cancel;
pub mod date;
pub mod duration;
pub mod end_heading;
pub mod exit;
pub mod file_name;
pub mod foreign;
pub mod left_out;
pub mod output;
pub mod progress;
pub mod prompt;
pub mod qr;
pub mod rate;
pub mod session;
pub mod size;
