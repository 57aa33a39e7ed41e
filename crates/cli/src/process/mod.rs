//! Processes: this program's own, and those that it starts.

pub mod background;
pub mod command_line;
pub mod guard;
pub mod helper;
pub mod key_process;
pub mod served;
pub mod traced;
