//! The benchmark as a value: one cipher after the other, the fastest first.

use serde::Deserialize;

use crate::program::{Call, Done};

/// Sizes of buffers, in the words of `claviger benchmark`: those of TrueCrypt's window.
pub const BUFFERS: [&str; 10] = ["100KB", "500KB", "1MB", "5MB", "10MB", "50MB", "100MB", "200MB", "500MB", "1GB"];

pub struct Measure {
    pub buffer: usize,
    /// Whether the processor's AES instructions are used.
    pub aes: bool,
    /// Ciphers and cascades.
    pub ciphers: Vec<String>,
    pub rows: Vec<Row>,
    /// The one that is measured now.
    pub at: Option<usize>,
    pub trouble: Option<String>,
}

/// A cipher's speeds, in bytes per second.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Row {
    pub cipher: String,
    #[serde(rename = "encrypt_bytes_per_s")]
    pub encrypt: f64,
    #[serde(rename = "decrypt_bytes_per_s")]
    pub decrypt: f64,
    #[serde(rename = "mean_bytes_per_s")]
    pub mean: f64,
    #[serde(default)]
    pub kernel: String,
}

impl Measure {
    pub fn new(ciphers: Vec<String>) -> Self {
        Self { buffer: 3, aes: true, ciphers, rows: Vec::new(), at: None, trouble: None }
    }

    /// Begins anew. What is to be measured first.
    pub fn begin(&mut self) -> Option<Call> {
        self.rows.clear();
        self.trouble = None;
        self.at = Some(0);
        self.call()
    }

    /// Ends before all is measured. What has been measured stays.
    pub fn stop(&mut self) {
        self.at = None;
    }

    /// Takes a figure. What is to be measured next.
    pub fn finished(&mut self, done: &Done) -> Option<Call> {
        match serde_json::from_value::<Vec<Row>>(done.out.clone()) {
            Ok(rows) => self.rows.extend(rows),
            Err(_) => {
                self.trouble.clone_from(&done.error);
                self.at = None;
            }
        }
        self.rows.sort_by(|a, b| b.mean.total_cmp(&a.mean));
        self.at = self.at.map(|at| at + 1).filter(|at| *at < self.ciphers.len());
        self.call()
    }

    fn call(&self) -> Option<Call> {
        let cipher = self.ciphers.get(self.at?)?;
        let call = Call::new(["benchmark", "--cipher", cipher, "--buffer", BUFFERS[self.buffer], "--repeats", "3"]);
        Some(if self.aes { call } else { call.with(["--no-aes"]) })
    }

    /// The length of a bar, from 0 to 1.
    pub fn share(&self, row: &Row) -> f32 {
        let most = self.rows.iter().map(|row| row.mean).fold(1.0, f64::max);
        (row.mean / most) as f32
    }
}

impl Row {
    /// A speed for people, in powers of ten as disks are sold.
    pub fn speed(bytes: f64) -> String {
        if bytes >= 1e9 { format!("{:.1} GB/s", bytes / 1e9) } else { format!("{:.0} MB/s", bytes / 1e6) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn done(cipher: &str, mean: f64) -> Done {
        let out = json!([{"cipher": cipher, "encrypt_bytes_per_s": mean, "decrypt_bytes_per_s": mean, "mean_bytes_per_s": mean}]);
        Done { out, ..Done::default() }
    }

    #[test]
    fn one_after_the_other_the_fastest_first() {
        let mut measure = Measure::new(vec!["AES".into(), "Serpent".into()]);
        measure.aes = false;
        let first = measure.begin().expect("a call").text().join(" ");
        assert_eq!(first, "benchmark --cipher AES --buffer 5MB --repeats 3 --no-aes");
        assert!(measure.finished(&done("AES", 1e9)).expect("a call").text().contains(&"Serpent".to_owned()));
        assert!(measure.finished(&done("Serpent", 4e9)).is_none() && measure.at.is_none());
        let rows: Vec<_> = measure.rows.iter().map(|row| (&*row.cipher, measure.share(row))).collect();
        assert_eq!(rows, [("Serpent", 1.0), ("AES", 0.25)]);
        measure.begin();
        measure.stop();
        assert!(measure.rows.is_empty() && measure.finished(&Done::default()).is_none());
        assert_eq!((Row::speed(2.34e9), Row::speed(5e8)), ("2.3 GB/s".into(), "500 MB/s".into()));
    }
}
