//! Options for formats without a header: they give what a header would store.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;

use claviger_engine::credential::Headerless;
use claviger_engine::formats::takes::{self, Purpose};
use claviger_engine::{Error, Result, Secret, Unlock, formats};

use crate::opening::credentials::{hide, read_up_to};
use crate::terminal::end_heading::EndHeading;
use crate::terminal::size;

/// Where the data are, how they are cut into sectors, and how the key is made.
#[derive(clap::Args, Clone, Default)]
#[command(next_help_heading = "Formats without a header", end_heading())]
pub struct HeaderlessArgs {
    /// Size of the key, in bits
    #[arg(long, value_name = "BITS")]
    key_size: Option<u32>,

    /// Offset of the data: bytes, or 512-byte sectors with `s` (2048s). loop-AES numbers sectors from the start of
    /// the file, or with a leading `@` (@8192) from the start of the data
    #[arg(long, value_name = "[@]SIZE", value_parser = Offset::parse)]
    data_offset: Option<Offset>,

    /// Number of the first sector, counted in 512-byte sectors, as cryptsetup's --skip
    #[arg(long, value_name = "SECTORS")]
    skip: Option<u64>,

    /// Size of the data: bytes, or 512-byte sectors with `s` [default: to the end]
    #[arg(long, value_name = "SIZE", value_parser = size_or_sectors)]
    data_size: Option<u64>,

    /// Size of an encryption sector, in bytes
    #[arg(long, value_name = "BYTES")]
    sector_size: Option<u32>,

    /// Count IVs in sectors of --sector-size instead of 512 bytes
    #[arg(long)]
    iv_large_sectors: bool,

    /// Passphrase iterations of a loop-AES volume, in thousands (its itercountk)
    #[arg(long, value_name = "N")]
    itercountk: Option<u32>,

    /// File with the seed of a loop-AES volume (its pseed). One trailing newline is ignored
    #[arg(long = "pseed-file", value_name = "FILE", value_parser = Seed::read)]
    seed: Option<Seed>,
}

/// An offset, and whether sectors are counted from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Offset {
    bytes: u64,
    counts_from_there: bool,
}

impl Offset {
    fn parse(text: &str) -> std::result::Result<Self, String> {
        let (counts_from_there, text) = text.strip_prefix('@').map_or((false, text), |rest| (true, rest));
        Ok(Self { bytes: size_or_sectors(text)?, counts_from_there })
    }
}

/// A size in bytes, or in sectors: `2048s`.
fn size_or_sectors(text: &str) -> std::result::Result<u64, String> {
    match text.strip_suffix('s').map(str::parse::<u64>) {
        Some(Ok(sectors)) => sectors.checked_mul(512).ok_or_else(|| format!("{text:?} is too large")),
        _ => size::parse(text),
    }
}

/// A seed appended to a passphrase, and its file. Options must be clonable, and secrets are not: hence the `Arc`.
#[derive(Clone)]
struct Seed(Arc<Secret>, PathBuf);

impl Seed {
    fn read(path: &str) -> std::result::Result<Self, String> {
        const MAX: usize = 4096;
        let read = || read_up_to(std::fs::File::open(path)?.as_fd(), MAX);
        let seed = read().map_err(|e| e.to_string())?;
        let seed = match seed.strip_suffix(b"\n") {
            Some(line) => Secret::copy_from(line),
            None => seed,
        };
        Ok(Self(Arc::new(seed), path.into()))
    }
}

impl HeaderlessArgs {
    /// Whether any of these options was given.
    pub fn given(&self) -> bool {
        let Self { key_size, data_offset, skip, data_size, sector_size, iv_large_sectors, itercountk, seed } = self;
        let numbers = [key_size, sector_size, itercountk].into_iter().any(Option::is_some);
        numbers || data_offset.is_some() || skip.is_some() || data_size.is_some() || *iv_large_sectors || seed.is_some()
    }

    /// The size of the key; sets it to `bits` if none is given.
    pub fn key_bits_or(&mut self, bits: u32) -> u32 {
        *self.key_size.get_or_insert(bits)
    }

    /// Refuses the options unless `format` names a format that takes them.
    ///
    /// # Errors
    /// `Misuse`.
    pub fn check(&self, format: Option<&str>) -> Result<()> {
        // Not earlier: this program may have to start itself again before it opens a volume.
        if let Some(Seed(_, path)) = &self.seed {
            hide(path)?;
        }
        if !self.given() {
            return Ok(());
        }
        let mut with = Unlock::with(&[]);
        self.apply(&mut with);
        let asked = with.parameters();
        let Some(name) = format else {
            let what = asked.first().map_or("this", |parameter| parameter.name());
            return Err(Error::misuse(format!("{what}: only formats without a header support this")).hint(
                "Add --format plain, cryptoloop or loop-AES (only loop-AES has --itercountk and --pseed-file).",
            ));
        };
        let format = formats::by_name(name)?;
        takes::check(format.name(), &format.takes(), Purpose::Opening, &asked)
    }

    /// Adds these options to the parameters for unlocking.
    pub fn apply<'a>(&'a self, with: &mut Unlock<'a>) {
        with.headerless = Headerless {
            key_bits: self.key_size,
            offset: self.data_offset.map(|o| o.bytes),
            skip: self.skip.or(self.data_offset.filter(|o| o.counts_from_there).map(|_| 0)),
            size: self.data_size,
            sector_size: self.sector_size,
            large_iv: self.iv_large_sectors,
            iterations_k: self.itercountk,
        };
        with.seed = self.seed.as_ref().map(|seed| &seed.0[..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bytes_or_sectors() {
        let offset = |text| Offset::parse(text).map(|o| (o.bytes, o.counts_from_there));
        assert_eq!(offset("8192"), Ok((8192, false)));
        assert_eq!(offset("@8K"), Ok((8192, true)));
        assert_eq!(offset("16s"), Ok((8192, false)));
        assert_eq!(offset("@16s"), Ok((8192, true)));
        for wrong in ["", "@", "s", "16ss", "-1", "36028797018963968s", "@@1"] {
            assert!(offset(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn formats_with_headers_refuse_them() {
        let args = HeaderlessArgs { key_size: Some(256), ..Default::default() };
        assert!(args.check(Some("plain")).is_ok() && args.check(Some("loopaes")).is_ok());
        assert!(args.check(None).is_err() && args.check(Some("TrueCrypt")).is_err());
        let args = HeaderlessArgs { itercountk: Some(100), ..Default::default() };
        assert!(args.check(Some("loop-AES")).is_ok() && args.check(Some("plain")).is_err());
        assert!(HeaderlessArgs::default().check(None).is_ok());
    }
}
