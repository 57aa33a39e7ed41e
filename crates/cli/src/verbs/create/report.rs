//! The report of `claviger create`.

use std::borrow::Cow;
use std::io::{self, Write};
use std::time::Duration;

use claviger_engine::file_formats::{self, FILE_FORMATS};
use claviger_engine::formats::{Choices, FORMATS};
use claviger_engine::password_strength::RTX_4090;
use claviger_engine::spec::{Reserved, Spec};
use serde::Serialize;

use super::protectors::ProtectorReport;
use crate::terminal::file_name::FileName;
use crate::terminal::output::{self, Report};
use crate::terminal::size;

#[derive(Serialize)]
pub struct Listed {
    pub format: &'static str,
    #[serde(flatten)]
    pub choices: Choices,
    /// Whether it is an encrypted folder.
    pub folder: bool,
}

#[derive(Serialize)]
pub struct Created {
    #[serde(flatten)]
    pub path: FileName,
    pub format: &'static str,
    pub cipher: String,
    pub hash: Cow<'static, str>,
    /// Size of the file or device, in bytes.
    pub stored: u64,
    /// Size of the plaintext, in bytes.
    pub size: u64,
    pub quick: bool,
    /// The time for everything, in seconds.
    pub seconds: f64,
    /// The time to fill the data area and flush it, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filling_seconds: Option<f64>,
    /// The options needed to open the volume.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub opened_with: Vec<String>,
    /// The new key file.
    #[serde(flatten)]
    pub keyfile: Option<FileName>,
    /// The other protectors.
    #[serde(flatten)]
    pub protectors: ProtectorReport,
    /// The file system that was created in the volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filesystem: Option<&'static str>,
    /// Reserved areas, which no file system may use.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<Reserved>,
    /// The command that mounts it, if a password is all that it needs.
    #[serde(skip)]
    pub mount: Option<String>,
}

impl Report for Created {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { path, format, cipher, hash, size, seconds, filling_seconds, opened_with, keyfile, .. } = self;
        let (shown, whole) = (output::printable(path), size::short(self.stored));
        writeln!(out, "{shown}: {format} volume, {cipher}, {hash}, {} of {whole} for files", size::exact(*size))?;
        tell_filling(out, *size, *seconds, *filling_seconds)?;
        if let Some(keyfile) = keyfile {
            writeln!(out, "{keyfile}: its key file. Without it the volume does not open: keep a copy somewhere else.")?;
        }
        self.protectors.text(out)?;
        self.tell_kept(out)?;
        if !opened_with.is_empty() {
            writeln!(
                out,
                "The volume does not record its parameters. To open it, use: {}",
                output::command(opened_with)
            )?;
        }
        if let Some(mount) = &self.mount {
            writeln!(out, "To mount it: {mount}")?;
        }
        Ok(())
    }
}

impl Created {
    fn tell_kept(&self, out: &mut dyn Write) -> io::Result<()> {
        match (self.filesystem, self.kept.iter().map(|part| part.offset).min()) {
            (Some(name), _) => writeln!(out, "It holds an empty {name} file system."),
            (None, Some(end)) => {
                writeln!(out, "A file system in it may use only the first {end} bytes ({}).", size::short(end))
            }
            (None, None) => {
                writeln!(out, "It has no file system yet. To create one with a new volume, use --filesystem.")
            }
        }
    }
}

/// Prints the time, and the rate at which the volume was filled.
pub fn tell_filling(out: &mut dyn Write, size: u64, seconds: f64, filling: Option<f64>) -> io::Result<()> {
    match filling {
        None => writeln!(out, "Created in {seconds:.1} s; not filled (--quick)."),
        Some(filling) => {
            let rate = size::rate(size, Duration::from_secs_f64(filling));
            writeln!(out, "Filled {} with random-looking bytes in {filling:.1} s: {rate}.", size::short(size))
        }
    }
}

/// What can be created: the volumes, then the encrypted folders.
pub fn listed() -> Vec<Listed> {
    let volumes = FORMATS.iter().filter_map(|format| Some((format.name(), format.creator()?.choices(), false)));
    let of_folder = |ciphers| Choices { ciphers, hashes: Vec::new(), complete: true, min_len: 0 };
    let folders = FILE_FORMATS.iter().map(|format| (format.name(), format.ciphers()));
    let folders = folders.filter(|(_, ciphers)| !ciphers.is_empty());
    let folders = folders.map(|(name, ciphers)| (name, of_folder(ciphers), true));
    volumes.chain(folders).map(|(format, choices, folder)| Listed { format, choices, folder }).collect()
}

impl Report for Vec<Listed> {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        for Listed { format, choices, folder } in self {
            match choices.min_len {
                _ if *folder => writeln!(out, "{format}, an encrypted folder")?,
                len => writeln!(out, "{format}, from {} on", size::exact(len))?,
            }
            writeln!(out, "  ciphers: {}", choices.ciphers.join(", "))?;
            if !choices.hashes.is_empty() {
                writeln!(out, "  hashes:  {}", choices.hashes.join(", "))?;
            }
        }
        writeln!(out, "The first of each is the default.")
    }

    fn json(&self) -> serde_json::Result<String> {
        #[derive(Serialize)]
        struct Guessed<'a> {
            #[serde(flatten)]
            listed: &'a Listed,
            guesses_per_second: Vec<f64>,
        }
        let guessed = self.iter().map(|listed| Guessed { listed, guesses_per_second: listed.guesses_per_second() });
        output::json_list(&guessed.collect::<Vec<_>>())
    }
}

impl Listed {
    /// How many guesses of a new password one graphics card makes per second: for each hash, or a single number if there is no
    /// choice. Empty if the format has no passwords. The cost of LUKS is measured, in a fraction of a second.
    fn guesses_per_second(&self) -> Vec<f64> {
        let format = FORMATS.iter().find(|format| format.name() == self.format);
        let rate = |hash: Option<&str>| {
            let work = match format {
                Some(format) => format.guess_work(&Spec { hash, ..Spec::default() }),
                None => file_formats::named(self.format).ok().and_then(|format| format.guess_work()),
            };
            work.map(|work| work.per_second(&RTX_4090))
        };
        let rates: Option<Vec<f64>> = match &self.choices.hashes[..] {
            [] => rate(None).map(|rate| vec![rate]),
            hashes => hashes.iter().copied().map(Some).map(rate).collect(),
        };
        rates.unwrap_or_default()
    }
}
