//! `claviger cat`: the plaintext on standard output.

use claviger_engine::store::Access;
use claviger_engine::{Error, Store};

use crate::opening::OpenArgs;
use crate::{cancel, output, size};

/// Bytes that are decrypted at a time: enough to keep every processor busy.
const CHUNK: u64 = 4 << 20;

/// Bytes that are read at a time where a chunk cannot be.
const SECTOR: usize = 512;

/// Write the decrypted contents to standard output
///
/// Nothing is written to the volume. Sizes are bytes, or a number with K, M, G, T or KiB, MiB … (powers of 1024) or KB,
/// MB … (powers of 1000).
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger cat old.tc > image.img
  claviger cat --offset 1M --length 4K old.tc | xxd
  claviger cat old.tc > fat.img && mdir -i fat.img ::")]
pub struct Args {
    /// Where to begin, in bytes of the plaintext
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = size::parse)]
    offset: u64,

    /// How much, instead of all to the end
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    length: Option<u64>,

    #[command(flatten)]
    open: OpenArgs,
}

/// Carries the verb out.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let opened = args.open.open(Access::ReadOnly)?.with_threads();
    opened.warn();
    let size = opened.volume.len();
    let past = |what: String| Error::misuse(format!("{what} of {size} bytes")).at(&args.open.path);
    if args.offset > size {
        return Err(past(format!("byte {} is past the end of the volume", args.offset)).into());
    }
    let length = args.length.unwrap_or(size - args.offset);
    if length > size - args.offset {
        let what = format!("{length} bytes from byte {} on reach past the end of the volume", args.offset);
        return Err(past(what).into());
    }

    let mut stdout = output::raw()?;
    cancel::check()?;
    cancel::end_at_once();
    let mut buffer = vec![0; CHUNK.min(length) as usize];
    let mut at = args.offset;
    let end = args.offset + length;
    while at < end {
        let chunk = &mut buffer[..(end - at).min(CHUNK) as usize];
        if opened.volume.read_at(at, chunk).is_ok() {
            output::write(&mut stdout, chunk)?;
        } else {
            // What lies before the bytes that cannot be read is not given up with them.
            for (i, sector) in chunk.chunks_mut(SECTOR).enumerate() {
                let from = at + (i * SECTOR) as u64;
                opened.volume.read_at(from, sector).map_err(|e| Error::from(e).at(&args.open.path))?;
                output::write(&mut stdout, sector)?;
            }
        }
        at += chunk.len() as u64;
    }
    Ok(())
}
