//! The benchmark window as text and CSV.

use super::table::{Align, Table, bar, wrapped};
use super::{CsvRecord, Text, UNITS};
use crate::model::ciphers::CipherSpeed;
use crate::model::words::{number, percent, rate, size};

impl CsvRecord for CipherSpeed {
    fn record(&self) -> Vec<(&'static str, String)> {
        // Every field is named, so that a new one is not forgotten here.
        let Self {
            cipher,
            buffer_bytes,
            threads,
            piece_bytes,
            sector_bytes,
            acceleration,
            aes_instructions,
            kernel,
            encrypt_bytes_per_s,
            decrypt_bytes_per_s,
            mean_bytes_per_s,
            repeats,
            passes,
            encrypt_spread,
            decrypt_spread,
            encrypt_samples: _, // in JSON only
            decrypt_samples: _,
            cpu_model,
            program_version,
            measured_at,
        } = self;
        vec![
            ("cipher", cipher.clone()),
            ("buffer_bytes", buffer_bytes.to_string()),
            ("threads", threads.to_string()),
            ("acceleration", acceleration.word().into()),
            ("encrypt_bytes_per_s", number(*encrypt_bytes_per_s)),
            ("decrypt_bytes_per_s", number(*decrypt_bytes_per_s)),
            ("mean_bytes_per_s", number(*mean_bytes_per_s)),
            ("sector_bytes", sector_bytes.to_string()),
            ("kernel", kernel.clone()),
            ("aes_instructions", aes_instructions.to_string()),
            ("piece_bytes", piece_bytes.to_string()),
            ("repeats", repeats.to_string()),
            ("passes", passes.to_string()),
            ("encrypt_min", number(encrypt_spread.min)),
            ("encrypt_max", number(encrypt_spread.max)),
            ("decrypt_min", number(decrypt_spread.min)),
            ("decrypt_max", number(decrypt_spread.max)),
            ("cpu_model", cpu_model.clone()),
            ("program_version", program_version.clone()),
            ("measured_at", measured_at.clone()),
        ]
    }
}

impl Text for [CipherSpeed] {
    fn text(&self) -> String {
        let Some(first) = self.first() else { return String::new() };
        let mut text = format!("Hardware-accelerated AES: {}\n", acceleration(self));
        text += &format!(
            "{}, {} {}, sectors of {} bytes, XTS\n",
            first.cpu_model,
            first.threads,
            if first.threads == 1 { "thread" } else { "threads" },
            first.sector_bytes
        );
        for rows in self.chunk_by(|a, b| a.buffer_bytes == b.buffer_bytes) {
            text += &format!("\nBuffer of {}, median of {}:\n\n", size(rows[0].buffer_bytes as u64), first.repeats);
            text += &table(rows);
            text += "\n";
            text += &summary(rows);
        }
        text + "\n" + UNITS + "\n"
    }
}

/// TrueCrypt's line, with the kernel of each cipher: `Yes; kernels: AES vaes512, Serpent avx2`.
fn acceleration(rows: &[CipherSpeed]) -> String {
    let word = match rows[0].acceleration.word() {
        "on" => "Yes",
        "off" => "No (switched off)",
        _ => "N/A",
    };
    // A cascade names its ciphers and its kernels in the same order.
    let of_row =
        |r: &CipherSpeed| r.cipher.split('-').zip(r.kernel.split(" + ")).map(|(c, k)| format!("{c} {k}")).collect();
    let mut kernels: Vec<String> = rows.iter().flat_map(|r| -> Vec<String> { of_row(r) }).collect();
    kernels.sort();
    kernels.dedup();
    format!("{word}; kernels: {}", kernels.join(", "))
}

fn table(rows: &[CipherSpeed]) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("cipher", Left),
        ("encryption", Right),
        ("decryption", Right),
        ("mean MB/s", Right),
        ("spread %", Right),
        ("", Left),
    ]);
    let largest = rows.iter().map(|r| r.mean_bytes_per_s).fold(0.0, f64::max);
    for r in rows {
        table.row(vec![
            r.cipher.clone(),
            rate(r.encrypt_bytes_per_s),
            rate(r.decrypt_bytes_per_s),
            rate(r.mean_bytes_per_s),
            percent(r.encrypt_spread.relative().max(r.decrypt_spread.relative())),
            bar(r.mean_bytes_per_s, largest),
        ]);
    }
    table.text()
}

fn summary(rows: &[CipherSpeed]) -> String {
    let by_mean = |a: &&CipherSpeed, b: &&CipherSpeed| a.mean_bytes_per_s.total_cmp(&b.mean_bytes_per_s);
    let (Some(slow), Some(fast)) = (rows.iter().min_by(by_mean), rows.iter().max_by(by_mean)) else {
        return String::new();
    };
    let mut text = match rows.len() {
        1 => String::new(),
        _ => format!(
            "{} is the fastest at {} MB/s, {:.1} times as fast as {} at {} MB/s.\n",
            fast.cipher,
            rate(fast.mean_bytes_per_s),
            fast.mean_bytes_per_s / slow.mean_bytes_per_s,
            slow.cipher,
            rate(slow.mean_bytes_per_s)
        ),
    };
    let wobbles = |r: &&CipherSpeed| r.encrypt_spread.relative().max(r.decrypt_spread.relative()) > 0.2;
    let restless = rows.iter().filter(wobbles).count();
    if restless > 0 {
        text += &wrapped(&format!(
            "In {restless} of {} rows the slowest and the fastest sample are more than 20 % apart: something else was \
             using the machine. Only large differences are meaningful here.",
            rows.len()
        ));
    }
    text
}
