//! What an observer can tell, and how surely.

use std::io::{self, Write};

use serde::Serialize;

use crate::terminal::output;

/// What an observer sees.
#[derive(Serialize)]
pub struct Finding {
    /// For programs, and to look it up in the guide.
    pub name: &'static str,
    /// Where it is visible.
    pub seen_from: View,
    /// What it reveals, if anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gives_away: Option<What>,
    /// How certain that is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sure: Option<Sure>,
    /// The observation, in whole sentences.
    pub sees: String,
    /// Advice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_do: Option<&'static str>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum View {
    OneCopy,
    TwoCopies,
    /// The password of the volume, beside its copies.
    Password,
    /// The file system that the volume is in.
    FileSystem,
    Host,
}

#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// That it is an encrypted volume.
    Encryption,
    /// When it was used, how, or where it has data.
    Use,
    /// That something is hidden in it.
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
        Self { to_do: Some(what), ..self }
    }

    /// Tells it.
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
        self.to_do.map_or(Ok(()), |to_do| writeln!(out, "    To do: {to_do}"))
    }
}
