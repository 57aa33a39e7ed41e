//! Disk images. An image may name other files, which must be neither read nor written. A sandboxed program with access
//! to only this file checks the image first, and exactly the checked file is then opened.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use claviger_engine::deadline::Deadline;
use claviger_engine::{Error, Result};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use serde_json::{Value, json};

use super::other_files;
use super::walls::{self, Output, Walls};

/// The first descriptor number that shells leave alone.
const NUMBERS: i32 = 20;

/// Time limit for checking an image.
const PATIENCE: Duration = Duration::from_secs(60);

/// An image file. The helper knows it only by the name of its descriptor.
pub(super) struct Image {
    file: OwnedFd,
    /// The user's name for the file.
    called: String,
    /// qemu's name of the format.
    format: String,
    block: bool,
}

impl Image {
    /// # Errors
    /// `Io`; `Misuse` if this is neither a file nor a block device.
    pub(super) fn open(path: &str, format: &str) -> Result<Self> {
        let file = walls::place(Path::new(path))?;
        let kind = file.metadata()?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(Error::misuse(format!("{path} is neither a file nor a block device")));
        }
        let block = kind.is_block_device();
        let file = fcntl_dupfd_cloexec(&file, NUMBERS).map_err(io::Error::from)?;
        Ok(Self { file, called: path.to_owned(), format: format.to_owned(), block })
    }

    pub(super) fn walls(&self, writable: bool, program: &str) -> io::Result<Walls> {
        Ok(Walls::OneFile { file: self.file.try_clone()?, writable, program: program.to_owned() })
    }

    /// The image as options for qemu, without a backing file.
    pub(super) fn node(&self) -> String {
        let driver = if self.block { "host_device" } else { "file" };
        let file = json!({ "driver": driver, "filename": self.name() });
        format!("json:{}", json!({ "driver": self.format, "backing": null, "file": file }))
    }

    fn name(&self) -> String {
        format!("/proc/self/fd/{}", self.file.as_raw_fd())
    }

    /// A program's message, with the user's name for the file.
    pub(super) fn with_the_users_name(&self, text: &str) -> String {
        text.replace(&self.node(), &self.called).replace(&self.name(), &self.called)
    }

    /// Calls `start`, which starts a program that inherits the descriptor. The descriptor only names the file, so other
    /// programs that are started at the same time cannot use it.
    pub(super) fn handed<T>(&self, start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        fcntl_setfd(&self.file, FdFlags::empty())?;
        let started = start();
        fcntl_setfd(&self.file, FdFlags::CLOEXEC)?;
        started
    }

    /// Checks that the whole disk is in this file. `qemu_img` is started like a helper.
    ///
    /// # Errors
    /// `Unsupported`, naming the other file; `Io`.
    pub(super) fn check(&self, mut qemu_img: Command, package: &str, deadline: Deadline) -> Result<()> {
        // qemu-img opens some of the files that an image names, which only a sandbox prevents. It reads missing parts of a Virtual PC
        // differencing disk as zeros, and reports "invalid argument" for a Hyper-V one.
        if let Some((what, name)) = other_files::named(&self.format, &File::open(self.name())?) {
            return Err(self.names(what, &name));
        }
        qemu_img.args(["info", "--output=json", "--force-share", &self.node()]);
        let program = qemu_img.get_program().to_string_lossy().into_owned();
        let missing = |e: io::Error| match e.kind() {
            io::ErrorKind::NotFound => Error::not_installed("a disk image", (&program, package), ""),
            _ => e.into(),
        };
        let walls = self.walls(false, &program)?;
        let start = |command| self.handed(|| walls::spawn(command, walls));
        let output = walls::output(qemu_img, deadline.at_most(PATIENCE), start);
        let Output { ended, out, err } = output.map_err(missing)?;
        if !ended?.success() {
            return Err(self.not_opened(&err));
        }
        let report: Value = serde_json::from_str(&out).map_err(io::Error::from)?;
        self.others(&report, true).map_or(Ok(()), Err)
    }

    /// The error for another file in qemu-img's report about the image; `outer` marks the top level of the report.
    fn others(&self, report: &Value, outer: bool) -> Option<Error> {
        const NAMES: [(&str, &str); 4] = [
            ("backing-filename", "backing file"),
            ("full-backing-filename", "backing file"),
            ("data-file", "data file"),
            ("filename", "extent"),
        ];
        let named = |(key, what): &(&str, &str)| {
            let name = report.get(key)?.as_str()?;
            // The report repeats the name that qemu-img was called with.
            let own = *key == "filename" && (outer || name == self.name());
            (!own).then(|| self.names(what, name))
        };
        let within = || match report {
            Value::Object(fields) => fields.values().find_map(|value| self.others(value, false)),
            Value::Array(values) => values.iter().find_map(|value| self.others(value, false)),
            _ => None,
        };
        NAMES.iter().find_map(named).or_else(within)
    }

    /// The error for an image that cannot be opened. If it needs another file, that file is not found.
    fn not_opened(&self, message: &str) -> Error {
        let tried = message.rsplit_once("Could not open '").and_then(|(_, rest)| Some(rest.split_once('\'')?.0));
        match tried.filter(|name| *name != self.name() && *name != self.node()) {
            Some(other) => self.names("extent", other.strip_prefix("/proc/self/fd/").unwrap_or(other)),
            None => {
                let last = message.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("qemu-img gave no reason");
                io::Error::other(self.with_the_users_name(last)).into()
            }
        }
    }

    fn names(&self, what: &str, other: &str) -> Error {
        let Self { called, format, .. } = self;
        let quoted = |text: &str| format!("'{}'", text.replace('\'', r"'\''"));
        let command = format!("qemu-img convert -f {format} -O raw {} whole.img", quoted(called));
        if other == other_files::NAMELESS {
            return Error::unsupported(format!("this image refers to another file, a {what} without a name"));
        }
        Error::unsupported(format!(
            "this image refers to another file: the {what} {other:?}, which was neither read nor written"
        ))
        .hint(format!(
            "Only the given file is opened. If you trust the image's author and {other:?} belongs to it, merge both \
             into one file: {command}"
        ))
    }
}
