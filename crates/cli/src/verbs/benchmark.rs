//! `claviger benchmark`

use clap::ValueEnum;
use claviger_engine::Acceleration;
use claviger_lab::measure::{benchmark, derivation, machine, suites};
use claviger_lab::model::ciphers::CipherSpeed;
use claviger_lab::show::report::{Text, csv};
use serde::Serialize;

use crate::terminal::output::{self, json};
use crate::terminal::progress::Progress;
use crate::terminal::size;

/// Samples per figure: seven detect a difference of 10 % in nine of ten cases, even on a machine with other load.
const REPEATS: usize = 7;

/// Measure the ciphers and key derivations on this machine
///
/// Encrypts and decrypts a buffer in memory with every cipher and cascade, as TrueCrypt's benchmark window does.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  claviger benchmark\n  claviger benchmark --buffer 100KB --threads 1 --no-aes\n  \
                        claviger benchmark --buffer all --csv > speeds.csv\n  claviger benchmark --kdf\n  \
                        claviger benchmark --cipher aes-xts-plain64 --cipher serpent-cbc-essiv:sha256 --sector 4096")]
pub struct Args {
    /// Size of the buffer: TrueCrypt's are 100KB, 500KB, 1MB, 5MB, 10MB, 50MB, 100MB, 200MB, 500MB and 1GB, or `all`
    /// of them. As in TrueCrypt, a KB has 1024 bytes
    #[arg(long, value_name = "SIZE", default_value = "5MB", value_parser = buffers)]
    buffer: Vec<Buffers>,
    /// Measure only this cipher, cascade or dm-crypt specification: aes-cbc-essiv:sha256. May be repeated
    #[arg(long, value_name = "NAME")]
    cipher: Vec<String>,
    /// Key size of dm-crypt specifications, in bits [default: 256 per key]
    #[arg(long, value_name = "BITS", requires = "cipher")]
    key_size: Option<u32>,
    /// Threads that share the buffer [default: one per processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Bytes in a sector
    #[arg(long, value_name = "BYTES", default_value = "512", value_parser = sector)]
    sector: usize,
    /// Do not use the processor's AES instructions
    #[arg(long)]
    no_aes: bool,
    /// Samples for each figure; the median is shown
    #[arg(long, value_name = "N", default_value_t = REPEATS as u16, value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeats: u16,
    /// Column to sort by
    #[arg(long, value_enum, default_value_t = Sort::Mean)]
    sort: Sort,
    /// Measure TrueCrypt's key derivations instead of the ciphers
    #[arg(long, conflicts_with_all = ["buffer", "cipher", "sector", "no_aes", "sort"])]
    kdf: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print comma-separated values
    #[arg(long, conflicts_with = "json")]
    csv: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Sort {
    Mean,
    Encryption,
    Decryption,
    Name,
}

/// The report of the ciphers as JSON.
#[derive(Serialize)]
struct Speeds<'a> {
    ciphers: &'a [CipherSpeed],
}

/// One buffer size, or all.
#[derive(Clone)]
struct Buffers(Vec<usize>);

pub fn run(args: &Args) -> anyhow::Result<()> {
    let threads = args.threads.map_or_else(machine::cpus, usize::from);
    if args.kdf {
        let report = derivation::measure(threads, args.repeats.into())?;
        return print(args.json, args.csv, || json(&report), || report.text(), || csv(&report.derivations));
    }
    let mut buffers: Vec<usize> = args.buffer.iter().flat_map(|b| b.0.iter().copied()).collect();
    buffers.sort_unstable();
    buffers.dedup();
    let plan = benchmark::BenchmarkPlan {
        suites: suites::named_or_specified(&args.cipher, args.key_size, args.sector)?,
        buffers,
        threads,
        sector: args.sector,
        acceleration: if args.no_aes { Acceleration::Off } else { Acceleration::On },
        repeats: args.repeats.into(),
    };
    let progress = Progress::steps("measuring");
    let mut rows = benchmark::measure(&plan, &|done, total| progress.at(done, total))?;
    progress.clear();
    benchmark::sort(
        &mut rows,
        match args.sort {
            Sort::Mean => benchmark::Sort::Mean,
            Sort::Encryption => benchmark::Sort::Encryption,
            Sort::Decryption => benchmark::Sort::Decryption,
            Sort::Name => benchmark::Sort::Name,
        },
    );
    print(args.json, args.csv, || json(&Speeds { ciphers: &rows }), || rows.text(), || csv(&rows))
}

/// Prints a report in one of its three forms.
pub fn print(
    json: bool,
    csv: bool,
    json_form: impl FnOnce() -> serde_json::Result<String>,
    text_form: impl FnOnce() -> String,
    csv_form: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    let text = match (json, csv) {
        (true, _) => json_form()?,
        (_, true) => csv_form(),
        _ => text_form(),
    };
    output::write(&mut output::raw()?, text.as_bytes())
}

/// Parses a buffer size; TrueCrypt's KB, MB and GB are powers of 1024.
fn buffers(text: &str) -> Result<Buffers, String> {
    if text.eq_ignore_ascii_case("all") {
        return Ok(Buffers(benchmark::BUFFERS.to_vec()));
    }
    let upper = text.trim().to_ascii_uppercase();
    let binary = match upper.strip_suffix('B') {
        Some(number) if number.ends_with(['K', 'M', 'G']) => number,
        _ => &upper,
    };
    let bytes = size::parse(binary)?;
    match usize::try_from(bytes) {
        Ok(bytes) if bytes >= 512 => Ok(Buffers(vec![bytes])),
        _ => Err("a buffer must have at least 512 bytes".into()),
    }
}

fn sector(text: &str) -> Result<usize, String> {
    match size::parse(text)? {
        bytes @ (512 | 1024 | 2048 | 4096) => Ok(bytes as usize),
        _ => Err("sectors have 512, 1024, 2048 or 4096 bytes".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_count_as_truecrypt_does() {
        for (text, bytes) in [("100KB", 102_400), ("1mb", 1 << 20), ("1 GB", 1 << 30), ("512", 512), ("64KiB", 65536)] {
            assert_eq!(buffers(text).map(|b| b.0), Ok(vec![bytes]), "{text}");
        }
        assert_eq!(buffers("all").map(|b| b.0.len()), Ok(10));
        assert!(buffers("100").is_err() && buffers("lots").is_err());
    }
}
