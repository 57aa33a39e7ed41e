//! The benchmark window as text and CSV.

use super::table::{bar, csv_record, table, wrapped};
use super::{CsvRecord, Text, UNITS};
use crate::model::ciphers::{AesAcceleration, CipherSpeed};
use crate::model::words::{number, percent, rate, size, word};

csv_record!(CipherSpeed {
    cipher, buffer_bytes, threads, piece_bytes, sector_bytes, acceleration, aes_instructions, kernel, encrypt_bytes_per_s,
    decrypt_bytes_per_s, mean_bytes_per_s, repeats, passes, encrypt_spread, decrypt_spread,
    encrypt_samples: _, decrypt_samples: _, // in JSON only
    cpu_model, program_version, measured_at
} =>
    cipher, buffer_bytes, threads, acceleration: word(acceleration), encrypt_bytes_per_s: number(*encrypt_bytes_per_s),
    decrypt_bytes_per_s: number(*decrypt_bytes_per_s), mean_bytes_per_s: number(*mean_bytes_per_s), sector_bytes, kernel,
    aes_instructions, piece_bytes, repeats, passes, encrypt_min: number(encrypt_spread.min),
    encrypt_max: number(encrypt_spread.max), decrypt_min: number(decrypt_spread.min),
    decrypt_max: number(decrypt_spread.max), cpu_model, program_version, measured_at,
);

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
            text += &speeds(rows);
            text += "\n";
            text += &summary(rows);
        }
        text + "\n" + UNITS + "\n"
    }
}

/// TrueCrypt's line, with the kernel of each cipher: `Yes; kernels: AES vaes512, Serpent avx2`.
fn acceleration(rows: &[CipherSpeed]) -> String {
    let word = match rows[0].acceleration {
        AesAcceleration::On => "Yes",
        AesAcceleration::Off => "No (switched off)",
        AesAcceleration::NotAvailable => "N/A",
    };
    // A cascade names its ciphers and its kernels in the same order.
    let of_row =
        |r: &CipherSpeed| r.cipher.split('-').zip(r.kernel.split(" + ")).map(|(c, k)| format!("{c} {k}")).collect();
    let mut kernels: Vec<String> = rows.iter().flat_map(|r| -> Vec<String> { of_row(r) }).collect();
    kernels.sort();
    kernels.dedup();
    format!("{word}; kernels: {}", kernels.join(", "))
}

fn speeds(rows: &[CipherSpeed]) -> String {
    let largest = rows.iter().map(|r| r.mean_bytes_per_s).fold(0.0, f64::max);
    let row = |r: &CipherSpeed| {
        let speeds = [r.encrypt_bytes_per_s, r.decrypt_bytes_per_s, r.mean_bytes_per_s].map(rate);
        let spread = percent(r.encrypt_spread.relative().max(r.decrypt_spread.relative()));
        [std::slice::from_ref(&r.cipher), &speeds[..], &[spread, bar(r.mean_bytes_per_s, largest)]].concat()
    };
    table(["cipher", ">encryption", ">decryption", ">mean MB/s", ">spread %", ""], rows.iter().map(row))
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
