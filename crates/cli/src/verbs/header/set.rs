//! `claviger header set`: sets UUID, labels and flags.

use claviger_engine::formats::HeaderAttributes;
use claviger_engine::store::Access;

use crate::opening::OpenArgs;

/// Set the UUID, label, subsystem and flags of a LUKS volume, or the label of a BitLocker volume
///
/// LUKS needs no passphrase for this. BitLocker's metadata are sealed, so you are asked for a credential.
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true), after_help = "Examples:
  claviger header set --label backup disk.luks
  claviger header set --label 'HOST D: 22.11.2026' --password-file password.txt disk.bitlocker
  claviger header set --flag allow-discards --flag no-read-workqueue disk.luks")]
pub struct Args {
    #[command(flatten)]
    open: OpenArgs,

    /// New UUID
    #[arg(long, value_name = "UUID", group = "what")]
    uuid: Option<String>,

    /// New label; empty for none. LUKS2 and BitLocker only
    #[arg(long, value_name = "TEXT", group = "what")]
    label: Option<String>,

    /// New subsystem, a second label. LUKS2 only
    #[arg(long, value_name = "TEXT", group = "what")]
    subsystem: Option<String>,

    /// Set the stored flags to exactly those given: allow-discards, same-cpu-crypt, submit-from-crypt-cpus,
    /// no-journal, no-read-workqueue, no-write-workqueue. May be repeated. LUKS2 only
    #[arg(long = "flag", value_name = "FLAG", group = "what")]
    flags: Vec<String>,

    /// Remove all stored flags
    #[arg(long, group = "what", conflicts_with = "flags")]
    no_flags: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}
pub fn run(args: &Args) -> anyhow::Result<()> {
    let flags = (args.no_flags || !args.flags.is_empty()).then_some(args.flags.as_slice());
    let to = HeaderAttributes {
        uuid: args.uuid.as_deref(),
        label: args.label.as_deref(),
        subsystem: args.subsystem.as_deref(),
        priority: None,
        flags,
    };
    let header = args.open.header_args();
    let named = header.find(Access::ReadWrite)?;
    if !named.editor.sealed() {
        let prepared = named.editor.set(&*named.store, None, &to).map_err(|e| e.at(&header.path))?;
        return named.carry_out(prepared, args.json);
    }
    // The lock would block the next one.
    drop(named);
    let editing = args.open.edit(Access::ReadWrite)?;
    let prepared = editing.editor.set(&*editing.store, Some(&editing.narrow()), &to);
    editing.carry_out(prepared.map_err(|e| e.at(editing.path()))?, args.json)
}
