//! `claviger header repair`: repairs a header from its intact parts.

use claviger_engine::formats::Prepared;
use claviger_engine::store::Access;
use claviger_engine::{Advice, Credential, Error, ErrorKind, Unlock};

use crate::opening::credentials::CredentialArgs;
use crate::opening::editing::{HeaderArgs, Named, needs_backup};
use crate::opening::patience::PatienceArgs;
use crate::process::guard;
use crate::terminal::exit::Silent;
use crate::terminal::progress::Progress;
use crate::terminal::{cancel, prompt};

/// Repair a damaged header, mostly without a passphrase
///
/// BitLocker has three copies of its metadata, and a first sector that points to them. Damaged copies are rewritten
/// from an intact one. If the first sector is lost, give the format. If intact copies differ, a password decides
/// which one is valid.
///
/// LUKS2 has two copies of its header: a damaged or outdated one is rewritten from the other, or restored if its
/// checksum proves it (`wipefs` erases only a few bytes). LUKS1 fields are repaired where only one value is possible;
/// if its signature is lost, a password must prove the rest. Keys are never touched: an overwritten keyslot is named, and
/// only a header backup restores it.
///
/// Exits with 4 if a keyslot remains damaged.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger header repair disk.luks
  claviger header repair --password-file password.txt wiped.luks
  claviger header repair --disable-slot 5 disk.luks")]
pub struct Args {
    #[command(flatten)]
    header: HeaderArgs,

    #[command(flatten)]
    credentials: CredentialArgs,

    /// Permanently disable this keyslot, whose record is damaged beyond repair. LUKS1 only
    #[arg(long = "disable-slot", value_name = "N")]
    lost: Vec<u32>,

    #[command(flatten)]
    patience: PatienceArgs,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}
pub fn run(args: &Args) -> anyhow::Result<()> {
    let named = args.header.find(Access::ReadWrite)?.unused()?;
    let prepared = args.prepared(&named).map_err(|e| e.at(&args.header.path))?;
    let wanted = !prepared.edit.steps.is_empty() && !args.yes;
    if wanted {
        let question = format!("{} Repair it?", named.announcement(&prepared));
        prompt::consent(&question, "--yes", |why| {
            Error::misuse(format!("nothing was repaired{why}")).at(&args.header.path)
        })?;
    }
    let damaged = needs_backup(&prepared);
    named.carry_out(prepared, args.json)?;
    if damaged { Err(Silent::damaged().into()) } else { Ok(()) }
}
impl Args {
    /// Plans the repair, and asks for a credential if the header is sealed.
    fn prepared(&self, named: &Named) -> claviger_engine::Result<Prepared> {
        let cancel = cancel::install()?;
        let repaired = |credentials: &[Credential]| {
            let bar = Progress::steps("Searching");
            let show = |done, all| bar.at(done, all);
            let may_take = self.patience.may_take();
            let with = Unlock { cancel: Some(cancel), progress: Some(&show), may_take, ..Unlock::with(credentials) };
            named.editor.repair(&*named.store, Some(&with), &self.lost)
        };
        let read = || {
            guard::no_dumps();
            self.credentials.read_for(|keyfiles| named.header.asks_passphrase(keyfiles))
        };
        if self.credentials.given() && !named.editor.sealed() {
            return read()?.open(repaired);
        }
        let proof = |e: &Error| named.editor.sealed() || e.advice.as_deref() == Some(&Advice::GiveCredential);
        match repaired(&[]) {
            Err(e) if matches!(e.kind, ErrorKind::Misuse(_)) && proof(&e) => match read() {
                // The reason why a credential is needed is more useful than "nobody can be asked".
                Err(nobody) if matches!(nobody.kind, ErrorKind::Misuse(_)) && !self.credentials.given() => Err(e),
                read => read?.open(repaired),
            },
            prepared => prepared,
        }
    }
}
