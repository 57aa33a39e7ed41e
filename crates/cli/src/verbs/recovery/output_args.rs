//! Where a new recovery key goes: to a file, to files with its shares, or to the terminal.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use claviger_engine::{Error, Result, Secret, recovery};
use serde::Serialize;

use crate::opening::new_file;
use crate::terminal::end_heading::EndHeading;
use crate::terminal::file_name::FileName;
use crate::terminal::{output, qr};

/// Where the new recovery key goes.
#[derive(clap::Args)]
#[command(next_help_heading = "The new recovery key", end_heading())]
pub struct OutputArgs {
    /// Write it to the new FILE, readable only by you, instead of showing it
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Also show it as a QR code on the terminal
    #[arg(long, conflicts_with = "shares")]
    qr: bool,

    /// Split it into N shares, any M of which give it back. With --output, they go to the new files FILE.1, FILE.2 …
    #[arg(long, value_name = "M:N", value_parser = Shares::parse)]
    shares: Option<Shares>,
}

/// How many shares suffice, and how many there are.
#[derive(Clone, Copy)]
struct Shares {
    threshold: u32,
    count: u32,
}

impl Shares {
    fn parse(text: &str) -> std::result::Result<Self, String> {
        let numbers = text.split_once(':').and_then(|(m, n)| Some((m.parse().ok()?, n.parse().ok()?)));
        match numbers {
            Some((threshold, count)) if (2..=count).contains(&threshold) && count <= recovery::MOST_SHARES => {
                Ok(Self { threshold, count })
            }
            _ => Err(format!(
                "give two numbers, at most {}: 3:5 makes 5 shares, of which 3 suffice",
                recovery::MOST_SHARES
            )),
        }
    }
}

/// A new key and its shares, on the way to where they are kept.
pub struct NewKey<'a> {
    args: &'a OutputArgs,
    pub key: Secret,
    shares: Vec<Secret>,
    saved: Vec<(File, PathBuf)>,
}

/// Where the key was saved.
#[derive(Serialize)]
pub struct Saved {
    /// The file with the recovery key.
    #[serde(flatten)]
    file: Option<FileName>,
    /// The files with its shares.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    shares: Vec<FileName>,
    /// How many of them give the key back.
    #[serde(skip_serializing_if = "Option::is_none")]
    threshold: Option<u32>,
}

impl OutputArgs {
    /// Checks that the key can be saved or shown, before anybody types a password.
    pub fn check(&self, json: bool) -> Result<()> {
        self.files().iter().try_for_each(|file| new_file::must_be_new(file))?;
        if self.output.is_none() && json {
            return Err(
                Error::misuse("recovery keys are not printed as JSON").hint("Write it to a file: --output FILE")
            );
        }
        if (self.output.is_none() || self.qr) && !io::stdout().is_terminal() {
            return Err(Error::misuse("standard output is no terminal on which to show the recovery key")
                .hint("Write it to a file: --output FILE"));
        }
        Ok(())
    }

    fn files(&self) -> Vec<PathBuf> {
        let numbered = |file: &Path, number: u32| {
            let mut name = file.as_os_str().to_owned();
            name.push(format!(".{number}"));
            PathBuf::from(name)
        };
        match (&self.output, self.shares) {
            (None, _) => Vec::new(),
            (Some(file), None) => vec![file.clone()],
            (Some(file), Some(shares)) => (1..=shares.count).map(|number| numbered(file, number)).collect(),
        }
    }

    /// The key with its shares.
    pub fn new_key(&self, key: Secret) -> Result<NewKey<'_>> {
        let shares =
            self.shares.map(|Shares { threshold, count }| recovery::split(&key, threshold, count)).transpose()?;
        Ok(NewKey { args: self, key, shares: shares.unwrap_or_default(), saved: Vec::new() })
    }
}

impl NewKey<'_> {
    /// Writes the files. Those that were written are removed if one cannot be.
    pub fn save(&mut self) -> Result<()> {
        let texts = self.texts();
        for (path, text) in self.args.files().into_iter().zip(texts) {
            match new_file::write(&path, &text) {
                Ok(file) => self.saved.push((file, path)),
                Err(e) => {
                    self.unsave();
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    /// Removes the files.
    pub fn unsave(&mut self) {
        self.saved.drain(..).for_each(|(file, path)| new_file::remove(&file, &path));
    }

    /// The text of each file.
    fn texts(&self) -> Vec<Secret> {
        let Some(Shares { threshold, count }) = self.args.shares else { return vec![new_file::line(&self.key)] };
        let text = |(number, share): (usize, &Secret)| {
            let head = format!(
                "Share {} of {count} of a recovery key. Any {threshold} of them give it back:\nclaviger recovery join \
                 FILE...\n\n",
                number + 1
            );
            Secret::concat(&[head.as_bytes(), share, b"\n"])
        };
        self.shares.iter().enumerate().map(text).collect()
    }

    /// Where it was saved.
    pub fn saved(&self) -> Saved {
        let names = |field| self.saved.iter().map(move |(_, path)| FileName::new(field, path));
        let threshold = self.args.shares.map(|shares| shares.threshold);
        match threshold {
            Some(_) => Saved { file: None, shares: names("file").collect(), threshold },
            None => Saved { file: names("file").next(), shares: Vec::new(), threshold },
        }
    }

    /// Shows what has no file, and the QR code.
    pub fn show(&self) -> anyhow::Result<()> {
        let mut stdout = output::raw()?;
        if self.args.output.is_none() {
            output::write(&mut stdout, b"\n")?;
            for text in self.texts() {
                output::write(&mut stdout, &new_file::line(&text))?;
            }
            output::write(&mut stdout, b"It is not shown again. Write it down, and keep it somewhere else.\n")?;
        }
        if self.args.qr {
            output::write(&mut stdout, &qr::of(&self.key))?;
        }
        Ok(())
    }
}

impl Saved {
    /// Writes the files for people.
    pub fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        if let Some(file) = &self.file {
            writeln!(out, "{}: the recovery key. Print it, and keep it somewhere else.", output::printable(file))?;
        }
        if let ([first, .., last], Some(threshold)) = (&self.shares[..], self.threshold) {
            let (first, last) = (output::printable(first), output::printable(last));
            writeln!(
                out,
                "{first} to {last}: {} shares of the recovery key. Give each to somebody else.",
                self.shares.len()
            )?;
            writeln!(out, "Any {threshold} of them give it back: claviger recovery join FILE...")?;
        }
        Ok(())
    }
}
