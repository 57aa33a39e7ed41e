//! A window over the program `claviger`. Pages are values, made by functions that need no window; [`draw`] shows them and says what was
//! asked for; [`App`] starts the program for it.
#![forbid(unsafe_code)]

pub mod app;
pub mod change;
pub mod chooser;
pub mod create;
pub mod desktop;
pub mod draw;
pub mod form;
pub mod header;
pub mod home;
pub mod icons;
pub mod measure;
pub mod open;
pub mod parts;
pub mod portal;
pub mod program;
pub mod recovery;
pub mod secret_field;
pub mod steps;
pub mod strength;
pub mod texts;
pub mod theme;
pub mod usage;
pub mod words;

pub use app::App;
