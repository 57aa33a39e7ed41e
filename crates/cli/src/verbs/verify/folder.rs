//! `claviger verify` for a folder: checks every file's header, and that its contents are complete.

use std::io::{self, Write};

use claviger_engine::file_formats::{FolderSurvey, Problem};
use claviger_engine::opening::OpenFolder;
use claviger_engine::store::Access;
use claviger_engine::trees::Tree;
use serde::Serialize;

use crate::opening::OpenArgs;
use crate::terminal::exit::Silent;
use crate::terminal::file_name::FileName;
use crate::terminal::output::{self, Report};
use crate::terminal::size;
use crate::terminal::size::count;
use crate::verbs::survey;

#[derive(Serialize)]
struct Checked {
    #[serde(flatten)]
    path: FileName,
    format: &'static str,
    /// Whether the contents were authenticated, too.
    contents_verified: bool,
    #[serde(flatten)]
    survey: FolderSurvey,
    damaged: bool,
}

/// Checks the folder itself, or the one to which `inside` leads.
pub fn run(open: &OpenArgs, inside: Option<&std::ffi::OsStr>, json: bool) -> anyhow::Result<()> {
    let found = open.find_folder(Access::ReadOnly, inside)?;
    let path = found.path.clone();
    let OpenFolder { tree, lower, format, .. } = found.unlock(&mut found.credentials()?)?;
    tree.warnings().iter().for_each(|warning| output::warn(warning));
    let survey = survey::with_contents(format, &*lower, &tree)?;
    let damaged = survey.problems.iter().any(Problem::is_damage);
    let contents_verified = format.verifies() && tree.verifies();
    output::print(&Checked { path, format: format.name(), contents_verified, survey, damaged }, json)?;
    if damaged { Err(Silent::damaged().into()) } else { Ok(()) }
}

impl Report for Checked {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { path, format, contents_verified, survey, damaged: _ } = self;
        let FolderSurvey { files, folders, bytes, clear, problems, .. } = survey;
        let (files, folders) = (count(*files, "file"), count(*folders, "folder"));
        writeln!(out, "{path}: {format}, {files} and {folders}, {}", size::exact(*bytes))?;
        survey::tell(problems, out)?;
        if *clear > 0 {
            writeln!(out, "{} not encrypted.", are(*clear, "file"))?;
        }
        match problems.iter().filter(|problem| problem.is_damage()).count() as u64 {
            0 if *contents_verified => {
                writeln!(
                    out,
                    "Every name decrypts. Every block of every file was read and verified, and every encrypted attribute."
                )
            }
            0 => writeln!(
                out,
                "Every file has a sound header and complete, readable contents. Their correctness was not checked."
            ),
            some => writeln!(out, "{} found. To copy what is left: claviger cp -r --salvage", count(some, "problem")),
        }
    }
}

fn are(n: u64, what: &str) -> String {
    format!("{} {}", count(n, what), if n == 1 { "is" } else { "are" })
}
