//! Why something does not open.
mod forms;
mod layouts;
pub use forms::{Change, Form, forms};
