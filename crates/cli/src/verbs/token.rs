//! `claviger token`: manages the tokens in a LUKS2 header, from which other programs learn how to get a passphrase.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;

use claviger_engine::formats::TokenChange;
use claviger_engine::store::Access;
use claviger_engine::{Error, ErrorKind};
use serde::Serialize;
use serde_json::Value;

use crate::opening::editing::HeaderArgs;
use crate::opening::new_file;
use crate::terminal::file_name::FileName;
use crate::terminal::output::{self, Report};
use crate::terminal::size;
use crate::verbs::keyslot::only_for_keyslots;

/// The longest token file, in bytes: more than a header can hold.
const TOKEN_MAX: u64 = 4 << 20;

/// List, show, import, export, assign and remove the tokens of a LUKS2 volume
///
/// In tokens, systemd, clevis and others record where to find a passphrase: in a TPM, on a FIDO2 key, in the kernel's
/// keyring. Tokens are stored unchanged.
#[derive(clap::Args)]
#[command(mut_subcommands(|part| part.mut_args(only_for_keyslots)))]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Show all tokens
    List(ListArgs),
    /// Show one token, as JSON
    Show(ShowArgs),
    /// Import a token from a JSON file
    Import(ImportArgs),
    /// Save a token in a JSON file
    Export(ExportArgs),
    /// Remove a token
    Remove(RemoveArgs),
    /// Assign a token to a keyslot
    Assign(AssignArgs),
}

#[derive(clap::Args)]
struct ListArgs {
    #[command(flatten)]
    header: HeaderArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct ShowArgs {
    #[command(flatten)]
    header: HeaderArgs,

    /// The token's number
    #[arg(value_name = "N")]
    number: u32,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger token import disk.luks token.json
  claviger token import --at 3 --replace disk.luks token.json")]
struct ImportArgs {
    #[command(flatten)]
    header: HeaderArgs,

    /// The token: a JSON object with \"type\" and \"keyslots\"
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Its number [default: the first free one]
    #[arg(long, value_name = "N")]
    at: Option<u32>,

    /// Replace an existing token
    #[arg(long, requires = "at")]
    replace: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger token export disk.luks 0 token.json")]
struct ExportArgs {
    #[command(flatten)]
    header: HeaderArgs,

    /// The token's number
    #[arg(value_name = "N")]
    number: u32,

    /// The file to create
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

#[derive(clap::Args)]
struct RemoveArgs {
    #[command(flatten)]
    header: HeaderArgs,

    /// The token's number
    #[arg(value_name = "N")]
    number: u32,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger token assign disk.luks 0 1
  claviger token assign --not disk.luks 0 1")]
struct AssignArgs {
    #[command(flatten)]
    header: HeaderArgs,

    /// The token's number
    #[arg(value_name = "N")]
    number: u32,

    /// The keyslot's number
    #[arg(value_name = "KEYSLOT")]
    keyslot: u32,

    /// Unassign the token from this keyslot
    #[arg(long)]
    not: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Listed {
    #[serde(flatten)]
    path: FileName,
    tokens: BTreeMap<u32, Value>,
    /// The device or server that releases the passphrase of each token.
    #[serde(skip)]
    needs: BTreeMap<u32, String>,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    match &args.what {
        What::List(args) => {
            let named = args.header.find(Access::ReadOnly)?;
            let tokens = named.editor.tokens(&*named.store).map_err(|e| e.at(&args.header.path))?;
            let needs = named.header.sealed().into_iter().map(|sealed| (sealed.token, sealed.needs)).collect();
            output::print(&Listed { path: named.path(), tokens, needs }, args.json)
        }
        What::Show(args) => {
            let token = token(&args.header, args.number)?;
            let mut text = serde_json::to_vec_pretty(&token)?;
            text.push(b'\n');
            output::write(&mut output::raw()?, &text)
        }
        What::Export(args) => {
            new_file::must_be_new(&args.file)?;
            let token = token(&args.header, args.number)?;
            Ok(new_file::write(&args.file, &serde_json::to_vec(&token)?).map(drop)?)
        }
        What::Import(args) => {
            let token = read(&args.file)?;
            let import = TokenChange::Import { token: &token, at: args.at, replace: args.replace };
            change(&args.header, import, args.json)
        }
        What::Remove(args) => change(&args.header, TokenChange::Remove(args.number), args.json),
        What::Assign(args) => {
            let assign = TokenChange::Assign { token: args.number, keyslot: args.keyslot, assigned: !args.not };
            change(&args.header, assign, args.json)
        }
    }
}

fn tokens(header: &HeaderArgs) -> anyhow::Result<BTreeMap<u32, Value>> {
    let named = header.find(Access::ReadOnly)?;
    Ok(named.editor.tokens(&*named.store).map_err(|e| e.at(&header.path))?)
}

fn token(header: &HeaderArgs, number: u32) -> anyhow::Result<Value> {
    let missing = || Error::misuse(format!("there is no token {number}")).at(&header.path);
    Ok(tokens(header)?.remove(&number).ok_or_else(missing)?)
}

fn read(file: &std::path::Path) -> claviger_engine::Result<Value> {
    let read = || -> claviger_engine::Result<Value> {
        if std::fs::metadata(file)?.len() > TOKEN_MAX {
            return Err(Error::misuse("too long for a token"));
        }
        let bytes = std::fs::read(file)?;
        serde_json::from_slice(&bytes).map_err(|e| ErrorKind::Misuse(format!("not JSON: {e}")).into())
    };
    read().map_err(|e| e.at(file))
}

fn change(header: &HeaderArgs, change: TokenChange<'_>, json: bool) -> anyhow::Result<()> {
    let named = header.find(Access::ReadWrite)?;
    let prepared = named.editor.change_tokens(&*named.store, change).map_err(|e| e.at(&header.path))?;
    named.carry_out(prepared, json)
}

impl Report for Listed {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { path, tokens, needs } = self;
        let path = output::printable(path);
        writeln!(out, "{path}: {}", size::count(tokens.len() as u64, "token"))?;
        for (number, token) in tokens {
            let kind = token.get("type").and_then(Value::as_str).unwrap_or_default();
            let keyslots = token.get("keyslots").and_then(Value::as_array);
            let keyslots: Vec<_> = keyslots.into_iter().flatten().filter_map(Value::as_str).collect();
            let keyslots = if keyslots.is_empty() { "none".to_owned() } else { keyslots.join(", ") };
            let needs = needs.get(number).map(|needs| format!(": {}", output::printable(needs))).unwrap_or_default();
            writeln!(
                out,
                "  {number:>2}  {}, keyslots: {}{needs}",
                output::printable(kind),
                output::printable(&keyslots)
            )?;
        }
        Ok(())
    }
}
