//! `claviger keyfile`: creates a keyfile, a sealed secret, or a certificate for EFS.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use claviger_engine::clevis::Jwe;
use claviger_engine::internal::files;
use claviger_engine::private_keys::{NewCertificate, SoftKey, write_pfx};
use claviger_engine::tpm2::TpmAddress;
use claviger_engine::{Credential, Error, Result};
use serde::Serialize;

use crate::opening::binding::{self, BindArgs};
use crate::opening::credentials::{self, Source};
use crate::opening::fido2::Fido2Args;
use crate::opening::new_file;
use crate::opening::tokens::{TokenArgs, without_reseal};
use crate::process::guard;
use crate::terminal::end_heading::EndHeading;
use crate::terminal::file_name::FileName;
use crate::terminal::output::{self, Report};
use crate::terminal::size;

/// The longest keyfile that any format reads, in bytes. A sealed one is text, and less than twice as long.
const LONGEST: usize = 1 << 20;

/// Create a keyfile of random bytes, seal one to a TPM or FIDO2 key, or create a certificate for EFS
///
/// The keyfile comes from the system's random generator and is readable only by you (mode 0600). Existing files are
/// never overwritten. Keep a copy somewhere else: without its keyfiles, no password opens a volume.
///
/// With --bind-tpm2, --bind-fido2 or --bind-tang, the keyfile or the password given with --seal is sealed, as by `clevis encrypt`.
/// --open writes the unsealed secret to standard output; pipe it into --password-file - of another verb.
///
/// With --efs, a private key and its certificate are created in a PFX file under a new password, for Windows 10 1709,
/// Server 2019 and later. The certificate alone (.cer), which others need to encrypt for you, is put beside it.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger keyfile key.bin
  claviger keyfile --size 1K /media/stick/key.bin
  claviger create --size 100M --keyfile key.bin secrets.tc
  claviger keyfile --bind-tpm2 --seal password.txt password.jwe
  claviger keyfile --open password.jwe | claviger mount --password-file - secrets.hc /mnt/data
  claviger keyfile --efs me.pfx")]
#[command(group = binding::group().conflicts_with_all(["efs", "open"]))]
pub struct Args {
    /// The file to create, or to --open
    #[arg(value_name = "FILE")]
    path: PathBuf,

    /// Size, at most 1M
    #[arg(long, value_name = "SIZE", default_value = "64", value_parser = size::parse)]
    size: u64,

    #[command(flatten)]
    sealed: SealedArgs,

    #[command(flatten)]
    certificate: CertificateArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
#[command(next_help_heading = "Sealed to hardware", end_heading())]
struct SealedArgs {
    /// Seal the contents of SECRET instead of new random bytes; `-` is standard input
    #[arg(long, value_name = "SECRET", requires = "bound", conflicts_with = "size")]
    seal: Option<PathBuf>,

    #[command(flatten)]
    bind: BindArgs,

    /// Write the secret sealed in FILE to standard output
    #[arg(long, conflicts_with_all = ["size", "efs", "json"])]
    open: bool,

    /// The TPM: auto, /dev/tpmrm0, swtpm:host=HOST,port=N or swtpm:path=FILE
    #[arg(long, value_name = "DEVICE")]
    tpm2_device: Option<TpmAddress>,

    #[command(flatten)]
    fido2: Fido2Args,

    /// Ask this tang server, if FILE is bound to it: http://HOST:PORT. May be repeated
    #[arg(long, value_name = "URL", requires = "open")]
    tang: Vec<String>,
}

#[derive(clap::Args)]
#[command(next_help_heading = "A certificate for EFS", end_heading())]
struct CertificateArgs {
    /// Create a private key and a certificate for EFS, valid for ten years
    #[arg(long, conflicts_with = "size")]
    efs: bool,

    /// Make it a recovery agent's certificate, for other users' files
    #[arg(long, requires = "efs")]
    recovery: bool,

    /// Name in the certificate [default: yours]
    #[arg(long, value_name = "NAME", requires = "efs")]
    name: Option<String>,

    /// Size of the RSA key in bits: 2048, 3072 or 4096
    #[arg(long, value_name = "BITS", requires = "efs", default_value = "2048")]
    bits: usize,

    /// Replace existing files. Data encrypted only for the old key are then lost
    #[arg(long, requires = "efs")]
    force: bool,

    /// Read the new password from FILE instead of asking; `-` is standard input. One trailing newline is ignored
    #[arg(long, value_name = "FILE", group = "password", requires = "efs")]
    password_file: Option<PathBuf>,

    /// Read the new password from this open file descriptor
    #[arg(long, value_name = "N", group = "password", requires = "efs")]
    password_fd: Option<i32>,
}

#[derive(Serialize)]
struct Made {
    #[serde(flatten)]
    path: FileName,
    /// The size before sealing, in bytes.
    size: u64,
    /// Whether the keyfile is sealed.
    sealed: bool,
}

#[derive(Serialize)]
struct MadeCertificate {
    /// The file with the private key and its certificate.
    #[serde(flatten)]
    path: FileName,
    /// The file with the certificate alone.
    #[serde(flatten)]
    certificate: FileName,
    subject: String,
    /// The certificate's SHA-1, which identifies it in Windows.
    thumbprint: String,
    /// The size of the RSA key, in bits.
    bits: usize,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    guard::no_dumps();
    if args.certificate.efs {
        return args.certificate.make(&args.path, args.json);
    }
    if args.sealed.open {
        return args.sealed.write_opened(&args.path);
    }
    new_file::must_be_new(&args.path)?;
    let contents = match &args.sealed.seal {
        Some(secret) => credentials::read_file(secret, LONGEST)?,
        None => Credential::new_keyfile(usize::try_from(args.size).unwrap_or(usize::MAX))?,
    };
    let sealed = args.sealed.line(&contents, &args.path)?;
    new_file::write(&args.path, sealed.as_deref().unwrap_or(&contents))?;
    let path = FileName::path(&args.path);
    output::print(&Made { path, size: contents.len() as u64, sealed: sealed.is_some() }, args.json)
}

impl SealedArgs {
    /// The sealed contents as a line; `None` if no binding was requested.
    fn line(&self, contents: &[u8], path: &Path) -> Result<Option<Vec<u8>>> {
        if !self.bind.given() {
            return Ok(None);
        }
        let binding = self.bind.binding(&TokenArgs::of(self.tpm2_device.clone(), &self.fido2, &[]), path)?;
        binding.line(contents).map(|line| Some(line.into_bytes()))
    }

    fn write_opened(&self, path: &Path) -> anyhow::Result<()> {
        if io::stdout().is_terminal() {
            return Err(Error::misuse("secrets are not shown on a terminal")
                .hint("Pipe it into the command that uses it: | claviger mount --password-file - VOLUME")
                .into());
        }
        let jwe = Jwe::parse_line(&credentials::read_file(path, 2 * LONGEST)?).map_err(|e| e.at(path))?;
        let opened = jwe.open(&TokenArgs::of(self.tpm2_device.clone(), &self.fido2, &self.tang));
        let secret = opened.map_err(|e| without_reseal(e).at(path))?;
        let mut out = io::stdout();
        out.write_all(&secret).and_then(|()| out.flush()).map_err(Error::from)?;
        Ok(())
    }
}

impl CertificateArgs {
    fn make(&self, path: &Path, json: bool) -> anyhow::Result<()> {
        let beside = path.with_extension("cer");
        if beside == path {
            return Err(Error::misuse("the certificate alone would get the same file name")
                .at(path)
                .hint("Choose a file name ending in .pfx.")
                .into());
        }
        if !self.force {
            [path, &beside].into_iter().try_for_each(new_file::must_be_new)?;
        }
        let name = match &self.name {
            Some(name) => name.clone(),
            None => user_name()?,
        };
        let (file, fd) = (self.password_file.as_deref(), self.password_fd);
        let password = Source::password("", "Password of the new certificate: ", file, fd).new_secret()?;
        let key = SoftKey::generate(self.bits)?;
        let new = NewCertificate { name: &name, recovery: self.recovery, from: SystemTime::now() };
        let certificate = new.sign(&key)?;
        let pfx = write_pfx(&key, &certificate, &name, &password)?;
        match self.force {
            true => files::replace(path, &pfx, 0o600).map_err(|e| Error::from(e).at(path))?,
            false => drop(new_file::write(path, &pfx)?),
        }
        // Other users need to read the certificate.
        files::replace(&beside, &certificate.der, 0o644).map_err(|e| Error::from(e).at(&beside))?;
        let made = MadeCertificate {
            path: FileName::path(path),
            certificate: FileName::new("certificate", &beside),
            subject: certificate.subject,
            thumbprint: base16ct::lower::encode_string(&certificate.thumbprint),
            bits: self.bits,
        };
        output::print(&made, json)
    }
}

/// The login name of the user.
fn user_name() -> Result<String> {
    let names = ["SUDO_USER", "LOGNAME", "USER"].iter().filter_map(|name| std::env::var(name).ok());
    names
        .into_iter()
        .find(|name| !name.is_empty())
        .ok_or_else(|| Error::misuse("the certificate needs a name").hint("Give it with --name NAME."))
}

impl Report for Made {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { path, size, sealed } = self;
        let size = size::exact(*size);
        match sealed {
            true => writeln!(out, "{path}: {size}, sealed. Keep the secret itself somewhere else, too."),
            false => writeln!(out, "{path}: keyfile of {size}. Keep a copy of it somewhere else."),
        }
    }
}

impl Report for MadeCertificate {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { path, certificate, subject, thumbprint, bits } = self;
        writeln!(out, "{path}: RSA key of {bits} bits with its certificate. Keep a copy of it somewhere else.")?;
        writeln!(out, "{certificate}: the certificate alone, for people who encrypt for you")?;
        writeln!(out, "Subject:    {subject}")?;
        writeln!(out, "Thumbprint: {thumbprint}")
    }
}
