//! Images of virtual disks. What such a file says may name other files, which are neither read nor written: the image is looked at
//! beforehand, by a program behind walls that has nothing but this one file, and what it looks at is what is opened.

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

use super::parents;
use super::walls::{self, Output, Walls};

/// Numbers of descriptors that shells leave alone.
const NUMBERS: i32 = 20;

/// How long looking at an image may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A file that holds an image, under the only name that a helper has for it: that of its descriptor.
pub(super) struct Image {
    file: OwnedFd,
    /// What its user calls it.
    called: String,
    /// qemu's name of the format.
    format: String,
    block: bool,
}

impl Image {
    /// # Errors
    /// `Io`; `Misuse` for what is neither a file nor a block device.
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

    /// The image as qemu's options, with no file behind it.
    pub(super) fn node(&self) -> String {
        let driver = if self.block { "host_device" } else { "file" };
        let file = json!({ "driver": driver, "filename": self.name() });
        format!("json:{}", json!({ "driver": self.format, "backing": null, "file": file }))
    }

    fn name(&self) -> String {
        format!("/proc/self/fd/{}", self.file.as_raw_fd())
    }

    /// What a program says, with the name that people know.
    pub(super) fn said(&self, text: &str) -> String {
        text.replace(&self.node(), &self.called).replace(&self.name(), &self.called)
    }

    /// Calls `start`, which starts a program that gets the descriptor. It has no more than the file's name, so that it does no harm
    /// in another program that is started meanwhile.
    pub(super) fn handed<T>(&self, start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        fcntl_setfd(&self.file, FdFlags::empty())?;
        let started = start();
        fcntl_setfd(&self.file, FdFlags::CLOEXEC)?;
        started
    }

    /// Looks whether all of the disk is in this file. `qemu_img` begins as a helper does.
    ///
    /// # Errors
    /// `Unsupported` with the other file, `Io`.
    pub(super) fn check(&self, mut qemu_img: Command, package: &str, deadline: Deadline) -> Result<()> {
        // qemu reads a differencing disk of Virtual PC as if all that is missing were zeros, and calls one of Hyper-V an invalid argument.
        let parent = match &*self.format {
            "vpc" => parents::of_vhd(&File::open(self.name())?),
            "vhdx" => parents::of_vhdx(&File::open(self.name())?),
            _ => None,
        };
        if let Some(parent) = parent {
            return Err(self.names("parent", &parent));
        }
        qemu_img.args(["info", "--output=json", "--force-share", &self.node()]);
        let program = qemu_img.get_program().to_string_lossy().into_owned();
        let missing = |e: io::Error| match e.kind() {
            io::ErrorKind::NotFound => {
                io::Error::new(e.kind(), format!("{program} is not installed: install the package {package}"))
            }
            _ => e,
        };
        let walls = self.walls(false, &program)?;
        let start = |command| self.handed(|| walls::spawn(command, walls)).map_err(missing);
        let Output { ended, out, err } = walls::output(qemu_img, deadline.at_most(PATIENCE), start)?;
        if !ended?.success() {
            return Err(self.not_opened(&err));
        }
        let told: Value = serde_json::from_str(&out).map_err(io::Error::from)?;
        self.others(&told, true).map_or(Ok(()), Err)
    }

    /// The error for a file besides this one in what qemu-img says of the image; `outer` is all of that.
    fn others(&self, told: &Value, outer: bool) -> Option<Error> {
        const NAMES: [(&str, &str); 4] = [
            ("backing-filename", "backing file"),
            ("full-backing-filename", "backing file"),
            ("data-file", "data file"),
            ("filename", "extent"),
        ];
        let named = |(key, what): &(&str, &str)| {
            let name = told.get(key)?.as_str()?;
            // It repeats what it was called with.
            let own = *key == "filename" && (outer || name == self.name());
            (!own).then(|| self.names(what, name))
        };
        let within = || match told {
            Value::Object(fields) => fields.values().find_map(|value| self.others(value, false)),
            Value::Array(values) => values.iter().find_map(|value| self.others(value, false)),
            _ => None,
        };
        NAMES.iter().find_map(named).or_else(within)
    }

    /// The error for an image that cannot be opened. One that needs another file finds none.
    fn not_opened(&self, said: &str) -> Error {
        let tried = said.rsplit_once("Could not open '").and_then(|(_, rest)| Some(rest.split_once('\'')?.0));
        match tried.filter(|name| *name != self.name() && *name != self.node()) {
            Some(other) => self.names("extent", other.strip_prefix("/proc/self/fd/").unwrap_or(other)),
            None => {
                let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("qemu-img gave no reason");
                io::Error::other(self.said(last)).into()
            }
        }
    }

    fn names(&self, what: &str, other: &str) -> Error {
        let Self { called, format, .. } = self;
        let quoted = |text: &str| format!("'{}'", text.replace('\'', r"'\''"));
        let command = format!("qemu-img convert -f {format} -O raw {} whole.img", quoted(called));
        Error::unsupported(format!(
            "this image refers to another file: the {what} {other:?}, which was neither read nor written"
        ))
        .hint(format!(
            "Only the given file is opened. If you trust the image's author and {other:?} belongs to it, merge both \
             into one file: {command}"
        ))
    }
}
