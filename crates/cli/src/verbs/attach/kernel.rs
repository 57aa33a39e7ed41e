//! `claviger attach --kernel`: the kernel's device-mapper decrypts.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context;
use claviger_engine::formats::Facts;
use claviger_engine::opening::OpenVolume;
use claviger_engine::store::Access;
use claviger_engine::{Error, Store};
use claviger_serve::inherited;
use claviger_serve::kernel::{self, MapRequest};
use serde::Serialize;

use crate::opening::OpenArgs;
use crate::opening::plaintext::smaller_sectors;
use crate::terminal::advice;
use crate::terminal::exit::Silent;
use crate::terminal::file_name::FileName;
use crate::terminal::output::{self, Report};

/// The report of an attached volume.
#[derive(Serialize)]
pub struct Attached {
    name: String,
    #[serde(flatten)]
    volume: FileName,
    /// The block device with the plaintext.
    pub device: String,
    format: &'static str,
    cipher: String,
    /// Size of the plaintext, in bytes.
    size: u64,
    read_only: bool,
    /// How the kernel got the key: through the `keyring`, or in the `table`, which root can read.
    key: &'static str,
    /// Whether a swap area was created on it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub swap: bool,
}

/// Attaches the volume through the kernel.
pub fn attach(mut open: OpenArgs, name: &str, read_only: bool, json: bool) -> anyhow::Result<()> {
    if let Some(disk) = open.disk_in_file()? {
        let hint = "To attach it without the kernel's dm-crypt: `claviger serve`, then nbd-client.";
        return Err(Error::unsupported(format!("{} in the kernel's dm-crypt", disk.what()))
            .hint(hint)
            .at(&open.path)
            .into());
    }
    // Checked before asking for a password.
    kernel::available()?;
    open.how.for_kernel = true;
    let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
    let opened = open.open(access)?;
    advice::warn(&opened.warnings);
    smaller_sectors(&opened.volume);
    output::print(&set_up(&open, opened, name, read_only)?, json)
}

/// Hands an open volume to the kernel.
pub fn set_up(open: &OpenArgs, opened: OpenVolume, name: &str, read_only: bool) -> anyhow::Result<Attached> {
    let Facts { format, cipher, uuid, .. } = &opened.facts;
    let cannot = || {
        Error::unsupported(format!("{cipher} of this volume in the kernel's dm-crypt"))
            .hint("Omit --kernel to let this program do the work.")
            .in_format(format)
            .at(&open.path)
    };
    let mapping = opened.mapping.as_ref().ok_or_else(cannot)?;
    let all_writable = mapping.parts.iter().all(|part| part.writable);
    if !read_only && !all_writable {
        output::warn("It is attached read-only: part of it must not be written, which the kernel cannot express.");
    }
    let size = opened.volume.len();
    // The kernel needs exclusive access to the device.
    drop(opened.volume);
    let store = open.store_path();
    let request = MapRequest { name, store, mapping, uuid: uuid.as_deref(), read_only: read_only || !all_writable };
    let attached = kernel::attach(&request)?;
    if !attached.keyring {
        output::warn(
            "The kernel's keyring did not accept the key, so it is in the mapping's table, which root can \
             read.",
        );
    }
    Ok(Attached {
        name: name.to_owned(),
        volume: FileName::new("volume", &open.path),
        device: attached.device.display().to_string(),
        format,
        cipher: cipher.clone(),
        size,
        read_only: attached.read_only,
        key: if attached.keyring { "keyring" } else { "table" },
        swap: false,
    })
}

/// Attaches through a process of its own; `options` come from a line of the table.
pub fn start(options: Vec<OsString>, device: &Path, name: &str, stdin: Stdio) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("this program")?;
    let mut command = Command::new(program);
    command.args(["attach", "--kernel"]).args(options).arg("--").arg(device).arg(name);
    inherited::pass_on_all();
    let status = command.stdin(stdin).status().context("this program again")?;
    match status.code() {
        Some(0) => Ok(()),
        Some(code) => Err(Silent(u8::try_from(code).unwrap_or(u8::MAX)).into()),
        None => Err(Error::from(io::Error::other(format!("the process that sets it up ended with {status}"))).into()),
    }
}

impl Report for Attached {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { name, volume, device, format, cipher, size: _, read_only, key: _, swap } = self;
        let how = if *read_only { ", read-only" } else { "" };
        writeln!(out, "{volume}: {format}, {cipher}, is {device} in the kernel{how}.")?;
        if *swap {
            writeln!(out, "To swap to it: swapon {}", output::command([device]))?;
        }
        writeln!(out, "To detach: claviger detach {}", output::command([name]))
    }
}
