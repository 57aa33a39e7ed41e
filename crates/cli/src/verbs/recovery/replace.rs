//! `claviger recovery replace`: makes another recovery key and removes the old one.

use claviger_engine::formats::Removal;
use claviger_engine::store::Access;
use claviger_engine::{Error, Result};

use super::output_args::OutputArgs;
use super::{RecoveryKind, alone, by_any_keyslot, command, kind_of, make};
use crate::opening::OpenArgs;
use crate::opening::editing::Editing;
use crate::terminal::{advice, output, prompt};

/// Replace the recovery key by another one
///
/// Any credential opens the volume for it, the old recovery key, too. The old key is removed only after the new one
/// was saved and has opened the volume. If the command is interrupted before that, both work.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger recovery replace --output recovery.txt disk.luks
  claviger recovery replace --old 2 --output recovery.txt disk.luks")]
pub struct Args {
    #[command(flatten)]
    open: OpenArgs,

    #[command(flatten)]
    output: OutputArgs,

    /// Keyslot of the old recovery key, if there are several
    #[arg(long, value_name = "N")]
    old: Option<u32>,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    args.output.check(args.json)?;
    if let Some(kind) = kind_of(&args.open)? {
        check_kind(kind).map_err(|e| e.at(&args.open.path))?;
    }
    let editing = args.open.edit(Access::ReadWrite)?;
    let at = |e: Error| e.at(editing.path());
    let kind = RecoveryKind::of(editing.format, editing.path()).map_err(at)?;
    check_kind(kind).map_err(at)?;
    let old = old_keyslot(&editing, args.old).map_err(at)?;
    if !args.yes {
        let path = output::printable(&editing.path().to_string_lossy());
        let question = format!("The recovery key in keyslot {old} of {path} will no longer work. Replace it?");
        prompt::consent(&question, "--yes", |why| Error::misuse(format!("the recovery key was not replaced{why}")))?;
    }
    let mut new = args.output.new_key(kind.fresh(editing.format)?)?;
    let mut made = make::add_to(&editing, kind, &mut new)?;
    // The person has the new key before the old one ends.
    new.show()?;
    // From here on, both keys open the volume. The new one must open another keyslot than the one to remove.
    let key = alone(&new.key);
    let removed =
        editing.editor.remove(&*editing.store, Removal::Number(old, Some(&by_any_keyslot(&editing, &key))), false);
    let kept = |what: &str, e: Error| {
        let hint = e.hint.as_ref().map(|hint| format!("{what} {hint}")).unwrap_or_else(|| what.to_owned());
        at(Error { hint: Some(hint), ..e })
    };
    let prepared = removed.map_err(|e| kept("The new recovery key works, and so does the old one.", e))?;
    let carried_out = prepared.edit.carry_out(&*editing.store);
    carried_out.map_err(|e| kept("The new recovery key works. The old one may work, too.", e))?;
    // BitLocker's protectors are numbered by their places.
    let opened = editing.opens_with(&key, None, None, None);
    made.keyslot = opened.map_err(|e| kept("The old recovery key was removed.", e))?.keyslot;
    made.removed = Some(old);
    made.warnings.extend(advice::warn(&prepared.warnings));
    output::print(&made, args.json)
}

fn check_kind(kind: RecoveryKind) -> Result<()> {
    match kind {
        RecoveryKind::Letters | RecoveryKind::Digits => Ok(()),
        RecoveryKind::Backup => Err(Error::unsupported("revoking the recovery key of this format: the header backup that it opens stays valid")
            .hint(
                "Destroy that backup. If somebody may have a copy, copy the data to a new volume: claviger convert. To make \
                 another one: claviger recovery make --backup FILE",
            )),
    }
}

/// The keyslot of the recovery key to replace.
fn old_keyslot(editing: &Editing<'_>, named: Option<u32>) -> Result<u32> {
    let all = editing.editor.recovery_keyslots(&*editing.store)?;
    let listed = || all.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    match (named, &all[..]) {
        (_, []) => {
            Err(Error::misuse("this volume has no recovery key to replace").hint(command("To make one:", "make")))
        }
        (Some(number), all) if all.contains(&number) => Ok(number),
        (Some(number), _) => Err(Error::misuse(format!("keyslot {number} has no recovery key"))
            .hint(format!("These have one: {}.", listed()))),
        (None, [one]) => Ok(*one),
        (None, _) => Err(Error::misuse(format!("this volume has several recovery keys, in the keyslots {}", listed()))
            .hint(command("To replace one of them:", &format!("replace --old {}", all[0])))),
    }
}
