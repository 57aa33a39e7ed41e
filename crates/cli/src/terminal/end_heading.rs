//! Headings of `--help`.

/// Ends the heading of a group of options. Without it, clap puts everything that is defined after the group under its heading, too.
pub trait EndHeading {
    /// Puts what follows under no heading.
    fn end_heading(self) -> Self;
}

impl EndHeading for clap::Command {
    fn end_heading(self) -> Self {
        self.next_help_heading(None)
    }
}
