//! `claviger keyslot`: the passphrases of a volume that can have several.

use std::borrow::Cow;
use std::io::{self, Write};

use claviger_engine::formats::{Attributes, NewCredential, Removal};
use claviger_engine::store::Access;
use claviger_engine::{Error, Unlock};
use serde::Serialize;
use serde_json::Value;

use crate::opening::OpenArgs;
use crate::opening::cost::CostArgs;
use crate::opening::credentials::NewCredentialArgs;
use crate::opening::editing::{HeaderArgs, Written};
use crate::process::guard;
use crate::terminal::output::{self, Report};
use crate::terminal::{cancel, prompt};
use crate::verbs::change;

/// List, add, change, remove and test the passphrases of a LUKS volume
///
/// A keyslot holds the volume's key, encrypted with a passphrase or a key file: LUKS1 has 8 of them, LUKS2 up to 32.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    List(ListArgs),
    Add(Box<AddArgs>),
    Change(Box<change::Args>),
    Remove(RemoveArgs),
    Kill(KillArgs),
    Test(TestArgs),
    Priority(PriorityArgs),
}

/// Show the keyslots. No passphrase is needed
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger keyslot list disk.luks
  claviger keyslot list --json disk.luks")]
struct ListArgs {
    #[command(flatten)]
    header: HeaderArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Add a passphrase or a key file, which opens the volume too
///
/// The new key is written to a free area before the header refers to it, so the old passphrases work at every moment.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger keyslot add disk.luks
  claviger keyslot add --no-new-password --new-keyfile key.bin disk.luks
  claviger keyslot add --at 5 --iter-time 5000 disk.luks
  claviger keyslot add --kdf pbkdf2 disk.luks")]
struct AddArgs {
    #[command(flatten)]
    open: OpenArgs,

    #[command(flatten)]
    new: NewCredentialArgs,

    #[command(flatten)]
    cost: CostArgs,

    /// The number of the new keyslot [default: the first free one]
    #[arg(long, value_name = "N")]
    at: Option<u32>,

    /// Hash of PBKDF2 and of the splitter
    #[arg(long, value_name = "NAME")]
    new_hash: Option<String>,

    /// Store a new key of this many bits that is not the volume key (unbound). Only asks for the new passphrase
    #[arg(long, value_name = "BITS")]
    unbound: Option<u32>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Remove the keyslot that a passphrase opens
///
/// Its place is overwritten. The last one is not removed without --last.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger keyslot remove disk.luks")]
struct RemoveArgs {
    #[command(flatten)]
    open: OpenArgs,

    /// Remove it even if it is the last one: the data are then lost
    #[arg(long)]
    last: bool,

    /// Answer the question with yes
    #[arg(long)]
    yes: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Remove a keyslot by its number, without its passphrase
///
/// Asks for the passphrase of another keyslot, which stays.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger keyslot kill disk.luks 1
  claviger keyslot kill --unproven --yes disk.luks 1")]
struct KillArgs {
    #[command(flatten)]
    open: OpenArgs,

    /// The keyslot's number
    #[arg(value_name = "N")]
    number: u32,

    /// Do not ask for the passphrase of a keyslot that stays
    #[arg(long)]
    unproven: bool,

    /// Remove it even if it is the last one: the data are then lost
    #[arg(long, requires = "unproven")]
    last: bool,

    /// Answer the question with yes
    #[arg(long)]
    yes: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Say which keyslot a passphrase opens
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger keyslot test disk.luks
  claviger keyslot test --no-password --keyfile key.bin disk.luks")]
struct TestArgs {
    #[command(flatten)]
    open: OpenArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Say which keyslots are tried first, and which only if they are named
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger keyslot priority disk.luks 1 prefer")]
struct PriorityArgs {
    #[command(flatten)]
    header: HeaderArgs,

    /// The keyslot's number
    #[arg(value_name = "N")]
    number: u32,

    /// The new priority
    #[arg(value_name = "PRIORITY")]
    priority: Priority,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Priority {
    /// Tried only if it is named
    Ignore,
    /// Tried in its turn
    Normal,
    /// Tried before the others
    Prefer,
}

#[derive(Serialize)]
struct Listed {
    path: String,
    format: &'static str,
    keyslots: Vec<Value>,
}

#[derive(Serialize)]
struct Tested {
    path: String,
    format: &'static str,
    keyslot: Option<u32>,
    hash: Cow<'static, str>,
    iterations: u32,
}

impl Args {
    /// Whether errors are told as JSON.
    pub fn json(&self) -> bool {
        match &self.what {
            What::List(args) => args.json,
            What::Add(args) => args.json,
            What::Change(args) => args.json,
            What::Remove(args) => args.json,
            What::Kill(args) => args.json,
            What::Test(args) => args.json,
            What::Priority(args) => args.json,
        }
    }
}

/// Carries the verb out.
pub fn run(args: &Args) -> anyhow::Result<()> {
    match &args.what {
        What::List(args) => list(args),
        What::Add(args) => add(args),
        What::Change(args) => change::run(args),
        What::Remove(args) => remove(args),
        What::Kill(args) => kill(args),
        What::Test(args) => test(args),
        What::Priority(args) => priority(args),
    }
}

fn list(args: &ListArgs) -> anyhow::Result<()> {
    let named = args.header.find(Access::ReadOnly)?;
    let described = named.header.describe().unwrap_or_default();
    let Some(keyslots) = described.get("keyslots").and_then(Value::as_array) else {
        return Err(Error::unsupported(format!("keyslots: {} has none", named.format.name()))
            .at(&args.header.path)
            .into());
    };
    // LUKS1 has all eight in its header, LUKS2 those that there are.
    let keyslots = keyslots.iter().filter(|slot| slot.get("active") != Some(&Value::Bool(false)));
    let keyslots = keyslots.cloned().collect();
    output::print(&Listed { path: named.path(), format: named.format.name(), keyslots }, args.json)
}

fn add(args: &AddArgs) -> anyhow::Result<()> {
    if args.open.password_on_stdin() && args.new.on_stdin() {
        return Err(Error::misuse("standard input can give one password, not both").into());
    }
    let cost = args.cost.cost()?;
    if args.unbound.is_some() {
        guard::no_dumps();
        cancel::install()?;
        let named = args.open.header_args().find(Access::ReadWrite)?;
        let credentials = args.new.read(&[])?;
        let new = new_keyslot(args, &credentials, cost);
        let with = Unlock { cancel: Some(cancel::flag()), ..Unlock::with(&[]) };
        let prepared = named.editor.add(&*named.store, &with, &new, args.at).map_err(|e| e.at(&args.open.path))?;
        return named.carry_out(prepared, args.json);
    }
    let editing = args.open.edit(Access::ReadWrite)?;
    let at = |e: Error| e.at(editing.path());
    // A new key file takes the place of the passphrase, it does not go with what opens the volume now.
    let credentials = args.new.read(&[])?;
    let new = new_keyslot(args, &credentials, cost);
    let prepared = editing.editor.add(&*editing.store, &editing.narrow(), &new, args.at).map_err(at)?;
    cancel::check()?;
    prepared.edit.carry_out(&*editing.store).map_err(at)?;
    editing.opens_with(&credentials, None, None, prepared.keyslot).map_err(at)?;
    output::print(&Written::of(editing.path(), prepared), args.json)
}

fn new_keyslot<'a>(
    args: &'a AddArgs,
    credentials: &'a [claviger_engine::Credential],
    cost: claviger_engine::spec::Cost<'a>,
) -> NewCredential<'a> {
    NewCredential { credentials, hash: args.new_hash.as_deref(), cost, unbound_bits: args.unbound, pim: None }
}

fn remove(args: &RemoveArgs) -> anyhow::Result<()> {
    let editing = args.open.edit(Access::ReadWrite)?;
    let at = |e: Error| e.at(editing.path());
    let with = editing.narrow();
    let prepared = editing.editor.remove(&*editing.store, Removal::Opened(&with), args.last).map_err(at)?;
    consent(args.yes, &editing.path().display().to_string(), prepared.keyslot)?;
    prepared.edit.carry_out(&*editing.store).map_err(at)?;
    output::print(&Written::of(editing.path(), prepared), args.json)
}

fn kill(args: &KillArgs) -> anyhow::Result<()> {
    guard::no_dumps();
    cancel::install()?;
    let named = args.open.header_args().find(Access::ReadWrite)?;
    let at = |e: Error| e.at(&args.open.path);
    let credentials = if args.unproven { Vec::new() } else { args.open.read_credentials()? };
    let with = Unlock { cancel: Some(cancel::flag()), ..args.open.unlock_with(&credentials) };
    let with = (!args.unproven).then_some(&with);
    let prepared = named.editor.remove(&*named.store, Removal::Number(args.number, with), args.last).map_err(at)?;
    consent(args.yes, &named.path(), prepared.keyslot)?;
    named.carry_out(prepared, args.json)
}

fn consent(yes: bool, path: &str, keyslot: Option<u32>) -> claviger_engine::Result<()> {
    if yes {
        return Ok(());
    }
    let number = keyslot.map(|n| n.to_string()).unwrap_or_default();
    let question = format!(
        "Keyslot {number} of {path} is overwritten: its passphrase will open nothing any more. Remove it? (yes/no) "
    );
    prompt::consent(&question, "--yes", |why| Error::misuse(format!("the keyslot was not removed{why}")))
}

fn test(args: &TestArgs) -> anyhow::Result<()> {
    let editing = args.open.edit(Access::ReadOnly)?;
    let facts = &editing.facts;
    let tested = Tested {
        path: editing.path().display().to_string(),
        format: facts.format,
        keyslot: facts.keyslot,
        hash: facts.hash.clone(),
        iterations: facts.iterations,
    };
    output::print(&tested, args.json)
}

fn priority(args: &PriorityArgs) -> anyhow::Result<()> {
    let named = args.header.find(Access::ReadWrite)?;
    let to = Attributes { priority: Some((args.number, args.priority as u32)), ..Attributes::default() };
    let prepared = named.editor.set(&*named.store, &to).map_err(|e| e.at(&args.header.path))?;
    named.carry_out(prepared, args.json)
}

fn counted(keyslots: usize) -> String {
    format!("{keyslots} keyslot{}", if keyslots == 1 { "" } else { "s" })
}

impl Report for Listed {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { path, format, keyslots } = self;
        writeln!(out, "{path}: {format}, {} in use", counted(keyslots.len()))?;
        for slot in keyslots {
            writeln!(out, "  {}", row(slot))?;
        }
        Ok(())
    }
}

/// A keyslot on one line. What comes from the header is shown as text on one line, whatever it is.
fn row(slot: &Value) -> String {
    let number = slot.get("number").or(slot.get("keyslot")).and_then(Value::as_u64).unwrap_or(0);
    let kdf = match slot.get("kdf") {
        Some(Value::String(name)) => Some((name.clone(), slot)),
        Some(kdf @ Value::Object(_)) => Some((kdf["type"].as_str().unwrap_or_default().to_owned(), kdf)),
        _ => None,
    };
    let mut parts = Vec::new();
    if let Some((name, kdf)) = kdf {
        let hash = kdf.get("hash").and_then(Value::as_str).map(|hash| format!(" with {hash}")).unwrap_or_default();
        parts.push(format!("{name}{hash}, {} iterations", kdf["iterations"]));
    }
    if let Some(memory) = slot.get("memory").and_then(Value::as_u64) {
        parts.push(crate::terminal::size::short(memory));
    }
    for field in ["priority", "opens", "damaged"] {
        let shown = slot.get(field).and_then(Value::as_str).filter(|text| !["normal", "the volume"].contains(text));
        parts.extend(shown.map(str::to_owned));
    }
    format!("{number:>2}  {}", output::printable(&parts.join(", ")))
}

impl Report for Tested {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        match self.keyslot {
            Some(keyslot) => writeln!(out, "{}: opens keyslot {keyslot}", self.path),
            None => writeln!(out, "{}: opens", self.path),
        }
    }
}
