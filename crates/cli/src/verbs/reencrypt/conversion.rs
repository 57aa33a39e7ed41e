//! The conversion itself, which all formats with an [`InPlaceConverter`] share.

use std::cell::Cell;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use claviger_engine::filesystems;
use claviger_engine::formats::takes::{self, Purpose};
use claviger_engine::formats::{
    self, Format, InPlaceConversion, InPlaceConverter, InPlaceStores, Reencrypter, ReencryptionRequest, Towards,
};
use claviger_engine::volume::ConversionKind;
use claviger_engine::{Credential, Error, ErrorKind, FORMATS, Header, Result, Spec, Store};

use super::{Args, DEFAULT_FORMAT, Reencrypted, ReencryptionTarget, enter_sandbox};
use crate::opening::credentials::ReadCredentials;
use crate::opening::strength::StrengthMeter;
use crate::opening::{patience, takes_no};
use crate::process::key_process::InKeyProcess;
use crate::terminal::file_name::FileName;
use crate::terminal::output::warn;
use crate::terminal::progress::Progress;
use crate::terminal::{cancel, output};
use crate::verbs::create::protectors::ProtectorReport;

/// A format with its converter.
#[derive(Clone, Copy)]
pub struct Convertible {
    format: &'static dyn Format,
    pub converter: &'static dyn InPlaceConverter,
    /// Whether to create a volume from plaintext.
    pub new: bool,
}

impl Convertible {
    /// Reads the header, which is detached if there is a store for it.
    pub fn header(&self, stores: InPlaceStores<'_>) -> Result<Box<dyn Header>> {
        match stores.header {
            Some(header) => self.format.open_detached(header, stores.data),
            None => self.format.open(stores.data),
        }
    }
}

/// Converts the open stores; `in_key_process` is set in the key process. Calls `forget` if the work could not begin.
pub fn carry_out(
    args: &Args,
    opened: ReencryptionTarget,
    in_key_process: Option<&InKeyProcess>,
    forget: &dyn Fn(),
) -> anyhow::Result<()> {
    let at = |e: Error| e.at(&args.path);
    let (of, stores) = (opened.of, opened.stores());
    if let Some(reencrypter) = of.converter.reencrypter() {
        args.check_state(reencrypter, stores).inspect_err(|_| forget()).map_err(at)?;
    }
    let asked = Cell::new(opened.new);
    let consent = |ending: &[u32]| args.agree_to(ending, &asked);
    let request = ReencryptionRequest { consent: Some(&consent), ..args.request()? };
    let (mut credentials, protectors) = match of.new {
        true => {
            let begun = args.begin_encryption(stores, of, &request, in_key_process).inspect_err(|_| forget())?;
            (begun.0.into(), begun.1)
        }
        false => {
            let credentials = args.credentials(stores, of)?;
            enter_sandbox(in_key_process, credentials.terminal())?;
            (credentials, ProtectorReport::default())
        }
    };
    let conversion = credentials.open(|credentials| args.conversion(stores, of, credentials, &request));
    let conversion = conversion.inspect_err(|_| forget()).map_err(at)?;
    let (_, size) = conversion.progress();
    let (kind, ended_keyslots) = (conversion.kind(), conversion.ending().to_vec());
    let (begun, stop) = (Instant::now(), AtomicBool::new(true));
    let bar = bar(kind);
    let cancel = if args.init_only { &stop } else { cancel::flag() };
    let done = conversion.run(&|done, all| bar.at(done, all), cancel);
    bar.clear();
    match done {
        Err(e) if args.init_only && matches!(e.kind, ErrorKind::Cancelled) => {}
        done => done.map_err(at)?,
    }
    let (path, seconds) = (FileName::path(&args.path), begun.elapsed().as_secs_f64());
    let (finished, has_backups) = (!args.init_only, of.converter.reencrypter().is_some());
    output::print(
        &Reencrypted { path, finished, kind, has_backups, size, seconds, ended_keyslots, protectors },
        args.json,
    )
}

/// The progress of a conversion.
pub fn bar(kind: ConversionKind) -> Progress {
    Progress::bytes(match kind {
        ConversionKind::Reencrypt => "Reencrypting",
        ConversionKind::Encrypt => "Encrypting",
        ConversionKind::Decrypt => "Decrypting",
    })
}

impl Args {
    /// The format of the volume, or of the volume to create, with its converter.
    pub fn convertible(&self, data: &dyn Store) -> Result<Convertible> {
        let named = self.format.as_deref().map(formats::by_name).transpose()?;
        if let Some((format, converter)) = formats::convertible(data)? {
            // A half-encrypted volume of such a format is encrypted further.
            let new = self.encrypt && converter.reencrypter().is_some();
            return match named {
                Some(other) if other.name() != format.name() => {
                    Err(Error::misuse(format!("it is already a {} volume", format.name())))
                }
                _ => Ok(Convertible { format, converter, new }),
            };
        }
        let format = named.map_or_else(|| formats::by_name(DEFAULT_FORMAT), Ok)?;
        let converter = format.in_place_converter().ok_or_else(|| not_in_place(format))?;
        Ok(Convertible { format, converter, new: self.encrypt })
    }

    /// Refuses options that the format does not take, before anything is created or asked for.
    pub fn check(&self, &Convertible { format, converter, new }: &Convertible) -> Result<()> {
        let reencrypts = converter.reencrypter().is_some();
        if !reencrypts {
            self.only_what_converters_take(format)?;
        }
        let (takes, asked) = (format.takes(), self.protectors.parameters());
        takes::check(format.name(), &takes, Purpose::Creating, &asked)?;
        if reencrypts && new && self.header.is_none() && self.reduce_device_size.is_none() {
            return Err(Error::misuse("the header needs room")
                .hint("Shrink the file system by 32 MiB and add --reduce-device-size 32M, or add --header FILE."));
        }
        match new {
            true => self.protectors.check(&takes, self.json),
            false if asked.is_empty() => Ok(()),
            false => Err(Error::misuse("it is already a volume and has its protectors")
                .hint("To add a recovery password or startup key: claviger keyslot add")),
        }
    }

    /// The state to reach; `None` for resuming, or if only the key changes.
    pub fn towards(&self) -> Option<Towards> {
        match () {
            () if self.encrypt => Some(Towards::Encrypted),
            () if self.decrypt => Some(Towards::Plain),
            () => None,
        }
    }

    fn only_what_converters_take(&self, format: &dyn Format) -> Result<()> {
        let refused = [
            (self.header.is_some(), "--header"),
            (self.reduce_device_size.is_some(), "--reduce-device-size"),
            (self.new_key_size.is_some(), "--new-key-size"),
            (self.new_sector_size.is_some(), "--new-sector-size"),
            (self.resilience.is_some(), "--resilience"),
            (self.resilience_hash.is_some(), "--resilience-hash"),
            (self.backward, "--backward"),
        ];
        takes_no(&format!("the conversion of a {} volume", format.name()), refused)?;
        match self.resume || self.towards().is_some() {
            true => Ok(()),
            false => Err(Error::misuse(format!("a {} volume keeps its key and cannot be reencrypted", format.name()))
                .hint("Use --decrypt to leave only plaintext, --encrypt to encrypt the rest, or --resume.")),
        }
    }

    /// Refuses a volume that first needs something else.
    pub fn check_state(&self, reencrypter: &dyn Reencrypter, stores: InPlaceStores<'_>) -> Result<()> {
        if self.encrypt {
            filesystems::must_not_be_hibernated(stores.data)?;
        }
        match reencrypter.status(&**stores.header()) {
            Ok(None) if self.resume => Err(self.nothing_begun(&**stores.data)),
            Ok(Some(true)) if !self.resume => {
                Err(Error::misuse("its reencryption has already begun").hint("To continue it, add --resume."))
            }
            // Half a header, left by an interruption, has no status.
            _ => Ok(()),
        }
    }

    /// Announces which keyslots will be removed, and asks for a confirmation unless the user was `asked` before.
    pub fn agree_to(&self, ending: &[u32], asked: &Cell<bool>) -> Result<()> {
        if !ending.is_empty() {
            let slots: Vec<_> = ending.iter().map(u32::to_string).collect();
            let (noun, password) =
                if slots.len() == 1 { ("keyslot", "its password") } else { ("keyslots", "their passwords") };
            warn(&format!(
                "{noun} {} will be removed with the old key. Add {password} again afterwards.",
                slots.join(", ")
            ));
        }
        if !asked.replace(true) {
            self.consent()?;
        }
        cancel::check()
    }

    /// The credentials of the volume. First announces the cost of trying its keyslots, and asks before slow work.
    pub fn credentials(&self, stores: InPlaceStores<'_>, of: Convertible) -> Result<ReadCredentials> {
        let header = match of.header(stores) {
            Ok(header) => header,
            // The header may not exist yet, or only half of it.
            Err(_) if of.converter.reencrypter().is_some() => {
                return self.credentials.read_for(|keyfiles| keyfiles.is_empty());
            }
            Err(e) => return Err(e.at(&self.path)),
        };
        if !self.credentials.gives_volume_key() {
            let with = self.unlock(&[]);
            patience::announce(header.plan(&with), &with).map_err(|e| e.at(&self.path))?;
        }
        self.credentials.read_for(|keyfiles| header.asks_passphrase(keyfiles))
    }

    /// Creates a volume on plaintext that is still to be encrypted. Returns its credentials and their report.
    fn begin_encryption(
        &self,
        stores: InPlaceStores<'_>,
        Convertible { format, converter, .. }: Convertible,
        request: &ReencryptionRequest<'_>,
        in_key_process: Option<&InKeyProcess>,
    ) -> anyhow::Result<(Vec<Credential>, ProtectorReport)> {
        let at = |e: Error| e.at(&self.path);
        let creator = formats::creator_of(format).map_err(at)?;
        let judged = Spec { cost: request.cost, key_bits: request.key_bits, ..Spec::default() };
        let meter = StrengthMeter::of(format, &judged);
        let credentials = self.credentials.read_new(|keyfiles| creator.asks_passphrase(keyfiles), &meter)?;
        let volume_key = self.credentials.new_volume_key()?;
        let spec = Spec {
            volume_key: volume_key.as_ref(),
            cipher: request.cipher,
            key_bits: request.key_bits,
            sector_size: request.sector_size,
            cost: request.cost,
            cancel: Some(cancel::flag()),
            ..Spec::default()
        };
        // Creates files only after the user has agreed.
        if let Some(consent) = request.consent.filter(|_| !self.protectors.parameters().is_empty()) {
            consent(&[])?;
        }
        let mut protectors = self.protectors.make(&format.takes(), creator, credentials)?;
        if let Some(in_key_process) = in_key_process {
            protectors.hand_over(in_key_process.key_side.remover())?;
        }
        enter_sandbox(in_key_process, None)?;
        let begun = converter.begin_encryption(stores, &spec, &protectors.credentials, request);
        // From here on the volume exists, although nothing is converted yet. After `Io` it may exist.
        let report = match &begun {
            Ok(()) => protectors.keep(),
            Err(e) if matches!(e.kind, ErrorKind::Io(_)) => protectors.keep(),
            Err(_) => ProtectorReport::default(),
        };
        begun.map_err(at)?;
        if !self.json {
            output::print(&report, false)?;
        }
        Ok((std::mem::take(&mut protectors.credentials), report))
    }

    /// The requested conversion; begins it unless it is resumed.
    pub fn conversion<'a>(
        &self,
        stores: InPlaceStores<'a>,
        Convertible { format, converter, .. }: Convertible,
        credentials: &[Credential],
        request: &ReencryptionRequest<'_>,
    ) -> Result<Box<dyn InPlaceConversion + 'a>> {
        let with = self.unlock(credentials);
        let reencrypter = converter.reencrypter();
        let conversion = match reencrypter {
            Some(reencrypter) if !self.resume && self.towards().is_none() => {
                reencrypter.reencryption(stores, &with, request)
            }
            _ => converter.conversion(stores, &with, self.towards(), request),
        };
        conversion.map_err(|e| match e.kind {
            ErrorKind::NotThisFormat(_) if reencrypter.is_some() => no_header(format, &**stores.header()),
            _ => e,
        })
    }

    pub fn request(&self) -> Result<ReencryptionRequest<'_>> {
        Ok(ReencryptionRequest {
            zone: self.hotzone_size,
            cipher: self.new_cipher.as_deref(),
            key_bits: self.new_key_size,
            sector_size: self.new_sector_size,
            resilience: self.resilience.as_deref(),
            checksum: self.resilience_hash.as_deref(),
            backward: self.backward,
            cost: self.cost.cost()?,
            room: self.reduce_device_size,
            rate: self.throttle,
            ..ReencryptionRequest::default()
        })
    }
}

fn not_in_place(format: &dyn Format) -> Error {
    let able = FORMATS.iter().filter(|other| other.in_place_converter().is_some());
    let able: Vec<_> = able.map(|other| format!("--format {}", other.name())).collect();
    Error::unsupported(format!("encrypting in place with the format {}", format.name()))
        .hint(format!("To encrypt in place, use {}.", able.join(" or ")))
}

fn no_header(format: &dyn Format, header: &dyn Store) -> Error {
    let mut start = [0; 8];
    let read = header.read_at(0, &mut start);
    let error = Error::new(ErrorKind::NotThisFormat(format!("it has no {} header", format.name())));
    if read.is_ok() && start == *b"LUKS\xba\xbe\0\x01" {
        return error.hint("It is a LUKS1 volume. To convert its header: claviger header convert --to LUKS2");
    }
    error.hint("To encrypt plaintext, add --encrypt.")
}
