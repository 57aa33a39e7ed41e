//! `claviger keyfile`: a new keyfile, or a new certificate for EFS.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use claviger_engine::private_keys::{NewCertificate, SoftKey, write_pfx};
use claviger_engine::store::files;
use claviger_engine::{Credential, Error};
use serde::Serialize;

use crate::opening::credentials::Source;
use crate::opening::new_file;
use crate::process::guard;
use crate::terminal::output::{self, Report};
use crate::terminal::size;

/// Create a keyfile of random bytes, or a certificate for EFS
///
/// From the system's random generator, readable by you alone (mode 0600). A file that exists is never overwritten. Keep a
/// copy somewhere else: without its keyfiles, no password opens a volume.
///
/// With --efs it is a private key and its certificate, in a PFX file under a new password, as Windows imports it: Windows
/// 10 1709, Server 2019 and later. The certificate alone, which others need to encrypt for you, lies beside it (.cer).
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger keyfile key.bin
  claviger keyfile --size 1K /media/stick/key.bin
  claviger create --size 100M --keyfile key.bin secrets.tc
  claviger keyfile --efs me.pfx")]
pub struct Args {
    /// The file to create
    #[arg(value_name = "FILE")]
    path: PathBuf,

    /// Size, at most 1M, which is as much as any format reads
    #[arg(long, value_name = "SIZE", default_value = "64", value_parser = size::parse)]
    size: u64,

    #[command(flatten)]
    certificate: CertificateArgs,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(clap::Args)]
#[command(next_help_heading = "A certificate for EFS")]
struct CertificateArgs {
    /// Make a private key and a certificate for EFS, valid for ten years
    #[arg(long, conflicts_with = "size")]
    efs: bool,

    /// The certificate is to recover files of others: a data recovery agent's
    #[arg(long, requires = "efs")]
    recovery: bool,

    /// The name in the certificate [default: yours]
    #[arg(long, value_name = "NAME", requires = "efs")]
    name: Option<String>,

    /// Size of the RSA key in bits: 2048, 3072 or 4096
    #[arg(long, value_name = "BITS", requires = "efs", default_value = "2048")]
    bits: usize,

    /// Replace files that exist. What was encrypted for the key in them alone is then lost
    #[arg(long, requires = "efs")]
    force: bool,

    /// Read the new password from FILE instead of asking; `-` is standard input. One newline at the end is not part of it
    #[arg(long, value_name = "FILE", group = "password", requires = "efs")]
    password_file: Option<PathBuf>,

    /// Read the new password from this open file descriptor
    #[arg(long, value_name = "N", group = "password", requires = "efs")]
    password_fd: Option<i32>,
}

#[derive(Serialize)]
struct Made {
    path: String,
    /// In bytes.
    size: u64,
}

#[derive(Serialize)]
struct MadeCertificate {
    /// The private key with its certificate.
    path: String,
    /// The certificate alone.
    certificate: String,
    subject: String,
    /// SHA-1 of the certificate, by which Windows names it.
    thumbprint: String,
    /// Size of the RSA key.
    bits: usize,
}

/// Carries the verb out.
pub fn run(args: &Args) -> anyhow::Result<()> {
    guard::no_dumps();
    if args.certificate.efs {
        return args.certificate.make(&args.path, args.json);
    }
    let contents = Credential::new_keyfile(usize::try_from(args.size).unwrap_or(usize::MAX))?;
    new_file::write(&args.path, &contents)?;
    output::print(&Made { path: args.path.display().to_string(), size: args.size }, args.json)
}

impl CertificateArgs {
    fn make(&self, path: &Path, json: bool) -> anyhow::Result<()> {
        let beside = path.with_extension("cer");
        if beside == path {
            return Err(Error::misuse("the certificate alone is to be in a file of this name")
                .at(path)
                .hint("Choose a name for the PFX that ends in .pfx.")
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
        // It is there for others to read.
        files::replace(&beside, &certificate.der, 0o644).map_err(|e| Error::from(e).at(&beside))?;
        let thumbprint = certificate.thumbprint.iter().map(|byte| format!("{byte:02x}")).collect();
        let made = MadeCertificate {
            path: path.display().to_string(),
            certificate: beside.display().to_string(),
            subject: certificate.subject,
            thumbprint,
            bits: self.bits,
        };
        output::print(&made, json)
    }
}

/// The name by which the person has signed in.
fn user_name() -> claviger_engine::Result<String> {
    let names = ["SUDO_USER", "LOGNAME", "USER"].iter().filter_map(|name| std::env::var(name).ok());
    names.into_iter().find(|name| !name.is_empty()).ok_or_else(|| {
        Error::misuse("nothing says what your name is, which is to be in the certificate")
            .hint("Give it with --name NAME.")
    })
}

impl Report for Made {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { path, size } = self;
        writeln!(out, "{path}: keyfile of {}. Keep a copy of it somewhere else.", size::exact(*size))
    }
}

impl Report for MadeCertificate {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { path, certificate, subject, thumbprint, bits } = self;
        writeln!(out, "{path}: RSA key of {bits} bits with its certificate. Keep a copy of it somewhere else.")?;
        writeln!(out, "{certificate}: the certificate alone, for others who encrypt for you")?;
        writeln!(out, "Subject:    {subject}")?;
        writeln!(out, "Thumbprint: {thumbprint}")
    }
}
