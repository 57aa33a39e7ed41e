//! Findings of an audit, with their certainty.

use std::io::{self, Write};

use serde::Serialize;

use crate::terminal::{advice, output};

/// A finding: what an observer can see.
#[derive(Serialize)]
pub struct Finding {
    /// The name for programs, and for the guide.
    pub name: &'static str,
    /// The observer's view.
    pub seen_from: View,
    /// What the finding reveals, if anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gives_away: Option<What>,
    /// How certain the finding is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sure: Option<Sure>,
    /// The observation, in whole sentences.
    pub sees: String,
    /// Advice to the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_do: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum View {
    OneCopy,
    TwoCopies,
    /// The volume's password, in addition to its copies.
    Password,
    /// The surrounding file system.
    FileSystem,
    Host,
}

#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// That the file is an encrypted volume.
    Encryption,
    /// When and how the volume was used, or where it holds data.
    Use,
    /// That the volume hides something.
    Hidden,
}

#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sure {
    Certain,
    Likely,
    Possible,
}

impl Finding {
    /// A finding that reveals nothing.
    pub fn nothing(name: &'static str, seen_from: View, sees: impl Into<String>) -> Self {
        Self { name, seen_from, gives_away: None, sure: None, sees: sees.into(), to_do: None }
    }

    pub fn gives(self, what: What, sure: Sure) -> Self {
        Self { gives_away: Some(what), sure: Some(sure), ..self }
    }

    pub fn advised(self, what: &'static str) -> Self {
        Self { to_do: Some(advice::with_volume(what)), ..self }
    }

    /// Prints the finding.
    pub fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let what = match self.gives_away {
            None => "gives nothing away",
            Some(What::Encryption) => "shows an encrypted volume",
            Some(What::Use) => "shows how it is used",
            Some(What::Hidden) => "shows that something is hidden",
        };
        let sure = match self.sure {
            None => "",
            Some(Sure::Certain) => ", certain",
            Some(Sure::Likely) => ", likely",
            Some(Sure::Possible) => ", possible",
        };
        writeln!(out, "  {} ({what}{sure})\n    {}", self.name, output::printable(&self.sees))?;
        self.to_do.as_ref().map_or(Ok(()), |to_do| writeln!(out, "    To do: {to_do}"))
    }
}
