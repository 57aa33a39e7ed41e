//! In-place encryption and decryption for formats with an [`InPlaceConverter`], which keep their key.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use claviger_engine::formats::takes::{self, Purpose};
use claviger_engine::formats::{self, Format, InPlaceConverter, Towards};
use claviger_engine::{Credential, Error, ErrorKind, Result, Spec, Store};

use super::{Args, Reencrypted, alone};
use crate::opening::{patience, takes_no};
use crate::process::key_process::InKeyProcess;
use crate::terminal::progress::Progress;
use crate::terminal::{cancel, output};
use crate::verbs::create::protectors::ProtectorReport;

/// A format with what converts its volumes.
pub struct Convertible {
    format: &'static dyn Format,
    converter: &'static dyn InPlaceConverter,
    /// Whether there is a volume of it already.
    exists: bool,
}

impl Args {
    /// The format with a converter that the volume is of, or is to be of.
    pub fn convertible(&self, data: &dyn Store) -> Result<Option<Convertible>> {
        if let Some((format, converter)) = formats::convertible(data)? {
            return Ok(Some(Convertible { format, converter, exists: true }));
        }
        let Some(format) = self.format.as_deref().map(formats::by_name).transpose()? else { return Ok(None) };
        Ok(format.in_place_converter().map(|converter| Convertible { format, converter, exists: false }))
    }

    /// Carries the verb out for such a volume.
    pub fn convert(
        &self,
        store: Arc<dyn Store>,
        of: Convertible,
        in_key_process: Option<&InKeyProcess>,
    ) -> anyhow::Result<()> {
        let Convertible { format, converter, exists } = of;
        let at = |e: Error| e.at(&self.path);
        self.only_what_converters_take(format).map_err(at)?;
        let towards = self.towards(format).map_err(at)?;
        let asked = self.protectors.parameters();
        takes::check(format.name(), &format.takes(), Purpose::Creating, &asked).map_err(at)?;
        let (credentials, protectors) = match exists {
            true if !asked.is_empty() => {
                let there = Error::misuse("it is already a volume and has its protectors");
                return Err(at(there.hint("To add a recovery password or startup key: claviger keyslot add")).into());
            }
            true => {
                let header = format.open(&store).map_err(at)?;
                let with = self.unlock(&[]);
                patience::announce(header.plan(&with), &with).map_err(at)?;
                (self.credentials.read_for(|keyfiles| header.asks_passphrase(keyfiles))?, ProtectorReport::default())
            }
            false if self.encrypt => self.begin_encryption(&store, of, in_key_process)?,
            false => return Err(at(Error::misuse(format!("it is not a {} volume", format.name()))).into()),
        };
        if exists {
            alone(in_key_process)?;
        }
        let with = self.unlock(&credentials);
        let conversion = converter.conversion(&store, &with, towards, self.hotzone_size).map_err(at)?;
        if exists && !self.resume {
            self.consent_unless(false)?;
        }
        let (_, size) = conversion.progress();
        let (begun, stop) = (Instant::now(), AtomicBool::new(true));
        let bar = Progress::bytes("Converting");
        let done = conversion.run(&|done, all| bar.at(done, all), if self.init_only { &stop } else { cancel::flag() });
        bar.clear();
        match done {
            Err(e) if self.init_only && matches!(e.kind, ErrorKind::Cancelled) => {}
            done => done.map_err(at)?,
        }
        let (path, seconds) = (self.path.display().to_string(), begun.elapsed().as_secs_f64());
        let (finished, ended_keyslots) = (!self.init_only, Vec::new());
        output::print(&Reencrypted { path, finished, size, seconds, ended_keyslots, protectors }, self.json)
    }

    fn towards(&self, format: &dyn Format) -> Result<Option<Towards>> {
        match () {
            () if self.encrypt => Ok(Some(Towards::Encrypted)),
            () if self.decrypt => Ok(Some(Towards::Plain)),
            () if self.resume => Ok(None),
            () => Err(Error::misuse(format!("a {} volume keeps its key and cannot be reencrypted", format.name()))
                .hint("Use --decrypt to leave only plaintext, --encrypt to encrypt the rest, or --resume.")),
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
        takes_no(&format!("the conversion of a {} volume", format.name()), refused)
    }

    /// Makes a volume of plaintext, which is all to be encrypted yet. What opens it, and what is told of that.
    fn begin_encryption(
        &self,
        store: &Arc<dyn Store>,
        Convertible { format, converter, .. }: Convertible,
        in_key_process: Option<&InKeyProcess>,
    ) -> anyhow::Result<(Vec<Credential>, ProtectorReport)> {
        let at = |e: Error| e.at(&self.path);
        let (creator, takes) = (formats::creator_of(format).map_err(at)?, format.takes());
        self.protectors.check(&takes, self.json)?;
        let credentials = self.credentials.read_new(|keyfiles| creator.asks_passphrase(keyfiles))?;
        let spec = Spec { cipher: self.new_cipher.as_deref(), cancel: Some(cancel::flag()), ..Spec::default() };
        self.consent_unless(false)?;
        let mut protectors = self.protectors.make(&takes, creator, credentials)?;
        if let Some(keeping) = in_key_process {
            protectors.hand_over(keeping.key_side.remover())?;
        }
        alone(in_key_process)?;
        let begun = converter.begin_encryption(store, &spec, &protectors.credentials);
        // The volume is there from here on, before anything is converted; after `Io` it may be.
        let told = match &begun {
            Ok(()) => protectors.keep(),
            Err(e) if matches!(e.kind, ErrorKind::Io(_)) => protectors.keep(),
            Err(_) => ProtectorReport::default(),
        };
        begun.map_err(at)?;
        if !self.json {
            output::print(&told, false)?;
        }
        Ok((std::mem::take(&mut protectors.credentials), told))
    }
}
