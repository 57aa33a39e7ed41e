//! What others measured: the figures of five published studies, one value each, as their documents print them.
//!
//! `data/published/README.md` names the studies, the columns and the known mismatches inside the documents. The figures
//! are facts from there; the floor that shows them computes the losses.

use std::sync::LazyLock;

use miniz_oxide::inflate;
use serde::{Deserialize, Serialize};

use crate::model::case::{Axis, Unit};

/// A document with figures.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PublishedStudy {
    /// The name in the column `study`.
    pub name: &'static str,
    /// The authors and their institution.
    pub author: &'static str,
    /// The title, in the language of the document.
    pub title: &'static str,
    /// When it was published.
    pub year: u16,
    /// A short name, to end a sentence with.
    pub short: &'static str,
    /// The table of its figures, as `build.rs` has compressed it.
    #[serde(skip)]
    deflated: &'static [u8],
}

/// The five studies, in the order of their tables here.
pub static STUDIES: &[PublishedStudy] = &[
    PublishedStudy {
        name: "bsi2010",
        author: "Bundesamt für Sicherheit in der Informationstechnik (BSI)",
        title: "Untersuchung TrueCrypt, Arbeitspaket 6: Ressourcen-Analyse, version 1.0",
        year: 2010,
        short: "BSI 2010",
        deflated: include_bytes!(concat!(env!("OUT_DIR"), "/bsi2010.deflate")),
    },
    PublishedStudy {
        name: "zhan2010",
        author: "Beibei Zhan, University of Oslo and Oslo University College",
        title: "Comparison of automated, user-transparent encryption facilities under Linux and Windows operating systems",
        year: 2010,
        short: "Zhan 2010",
        deflated: include_bytes!(concat!(env!("OUT_DIR"), "/zhan2010.deflate")),
    },
    PublishedStudy {
        name: "linux2013",
        author: "Sebastian Ahlstedt and David Granath Karlsson, Linnaeus University",
        title: "Diskkrypteringsprestanda i GNU/Linux",
        year: 2013,
        short: "Ahlstedt and Karlsson 2013",
        deflated: include_bytes!(concat!(env!("OUT_DIR"), "/linux2013.deflate")),
    },
    PublishedStudy {
        name: "rantanen2013",
        author: "Lasse Rantanen, Tampere University of Applied Sciences",
        title: "Kehittyneet salausmenetelmät",
        year: 2013,
        short: "Rantanen 2013",
        deflated: include_bytes!(concat!(env!("OUT_DIR"), "/rantanen2013.deflate")),
    },
    PublishedStudy {
        name: "tresorsgx2016",
        author: "TresorSGX (ayeks/TresorSGX), from a thesis at FAU Erlangen-Nürnberg",
        title: "Performance analysis with hdparm and dd",
        year: 2016,
        short: "TresorSGX 2016",
        deflated: include_bytes!(concat!(env!("OUT_DIR"), "/tresorsgx2016.deflate")),
    },
];

/// One value as printed in a document. Columns that do not apply, or about which the document says nothing, are empty.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// Name of the study.
    pub study: String,
    /// Table, section or appendix; `... text` is running text.
    pub table: String,
    /// Machine or disk.
    pub platform: String,
    /// Operating system.
    pub os: String,
    /// Cores in use and word size.
    pub cpu_mode: String,
    /// `performance` or `powersave`.
    pub power_mode: String,
    /// `on`, `off`, or `on vs off` for a factor.
    pub aes_acceleration: String,
    /// What encrypts; `none` is the unencrypted baseline.
    pub facility: String,
    /// As printed; `A-B-C` are TrueCrypt's cascades.
    pub cipher: String,
    /// File system.
    pub filesystem: String,
    /// The test, as the document names it.
    pub workload: String,
    /// Block, buffer, file or record size, or clients.
    pub parameter: String,
    /// `write`, `read`, `encryption` and so on.
    pub direction: String,
    /// `throughput`, `time`, `loss against unencrypted` and so on.
    pub metric: String,
    /// Of the value, as printed: see [`Figure::in_our_units`].
    pub unit: String,
    /// The number, in the unit that is printed.
    pub value: f64,
    /// Number of the repetition, `median`, `mean`, or `min` and `max` of a printed range.
    pub run: String,
    /// What was repaired, converted, or is doubtful.
    pub note: String,
}

/// Every figure of every study.
pub fn all() -> &'static [Figure] {
    static ALL: LazyLock<Vec<Figure>> = LazyLock::new(|| STUDIES.iter().flat_map(figures).collect());
    &ALL
}

fn figures(study: &PublishedStudy) -> Vec<Figure> {
    let table = inflate::decompress_to_vec(study.deflated).expect("build.rs made it");
    csv::Reader::from_reader(&*table).into_deserialize().collect::<csv::Result<_>>().expect("tests parse every table")
}

/// The study of this name.
pub fn study(name: &str) -> Option<&'static PublishedStudy> {
    STUDIES.iter().find(|study| study.name == name)
}

impl Figure {
    /// Whether it was measured without encryption.
    pub fn is_baseline(&self) -> bool {
        self.facility == "none" || self.facility.starts_with("none (")
    }

    /// Whether it looks wrong, by its note: a digit that was lost, figures that changed places.
    pub fn is_doubtful(&self) -> bool {
        ["suspect", "doubtful"].iter().any(|word| self.note.starts_with(word))
    }

    /// The text in the column of this name; `None` if there is no such column of texts.
    pub fn column(&self, name: &str) -> Option<&str> {
        Some(match name {
            "study" => &self.study,
            "table" => &self.table,
            "platform" => &self.platform,
            "os" => &self.os,
            "cpu_mode" => &self.cpu_mode,
            "power_mode" => &self.power_mode,
            "aes_acceleration" => &self.aes_acceleration,
            "facility" => &self.facility,
            "cipher" => &self.cipher,
            "filesystem" => &self.filesystem,
            "workload" => &self.workload,
            "parameter" => &self.parameter,
            "direction" => &self.direction,
            "metric" => &self.metric,
            "run" => &self.run,
            _ => return None,
        })
    }

    /// Its source: `BSI 2010, table 8`.
    pub fn source(&self) -> String {
        let study = study(&self.study).map_or(self.study.as_str(), |study| study.short);
        match self.table.starts_with(|c: char| c.is_ascii_digit()) && !self.table.contains(['.', ' ']) {
            true => format!("{study}, table {}", self.table),
            false => format!("{study}, {}", self.table),
        }
    }

    /// The value in this program's units, if the document leaves no doubt. The same two letters mean different things:
    /// `MB` has 2^20 bytes in TrueCrypt's window and in hdparm, 10^6 in dd and CrystalDiskMark. Where a speed of dd was
    /// printed in GB/s, which are 10^9 there, the table has it times 1024 (BSI's own way), and that is undone here.
    pub fn in_our_units(&self) -> Option<(f64, Unit)> {
        const KIB: f64 = 1024.0;
        const MIB: f64 = 1024.0 * 1024.0;
        if !matches!(self.metric.as_str(), "throughput" | "time" | "file create rate" | "seek rate" | "CPU usage") {
            return None;
        }
        let is = |start: &str| self.workload.starts_with(start);
        let (factor, unit) = match self.unit.as_str() {
            "s" => (1.0, Unit::Seconds),
            "/s" => (1.0, Unit::PerS),
            "%" => (0.01, Unit::Share),
            "MB/s" if is("TrueCrypt benchmark") || is("hdparm") => (MIB, Unit::BytesPerS),
            "MB/s" if is("dd ") && self.note.contains("GB/s") => (1e9 / KIB, Unit::BytesPerS),
            "MB/s" if is("dd ") || is("CrystalDiskMark") => (1e6, Unit::BytesPerS),
            // Table 18 is section 5.6.2 divided by 1024.
            "MB/s" if is("IOzone write, 16 MB file") => (MIB, Unit::BytesPerS),
            "KB/s" if is("IOzone") || is("Bonnie++") => (KIB, Unit::BytesPerS),
            _ => return None,
        };
        Some((self.value * factor, unit))
    }

    /// The size or count in `parameter`, if it has one: `block size 4096 B`, `12 clients`, `file 64 KB, record 32 KB`
    /// (the record), `record size 512 (printed "Byte")` (which are KB: see the README), `buffer 5 MB`.
    pub fn x(&self) -> Option<(Axis, f64)> {
        let text = self.parameter.as_str();
        if let Some(clients) = text.strip_suffix(" clients") {
            return Some((Axis::Clients, clients.parse().ok()?));
        }
        if let Some(record) = text.strip_prefix("record size ") {
            let kib: f64 = record.split(' ').next()?.parse().ok()?;
            return Some((Axis::Block, kib * 1024.0));
        }
        let size = match text.split_once(", record ") {
            Some((_, record)) => record,
            None => text.strip_prefix("block size ").or(text.strip_prefix("buffer "))?,
        };
        Some((Axis::Block, bytes(size)?))
    }

    /// The size of the file in `parameter`, in bytes, if it has one.
    pub fn file_bytes(&self) -> Option<f64> {
        bytes(self.parameter.strip_prefix("file ")?.split_once(',')?.0)
    }
}

/// `32 KB`, where a KB has 1024 bytes, as it has in TrueCrypt and IOzone.
fn bytes(text: &str) -> Option<f64> {
    let (number, unit) = text.split_once(' ')?;
    let factor = match unit {
        "B" => 1.0,
        "KB" => 1024.0,
        "MB" => 1024.0 * 1024.0,
        "GB" => 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * factor)
}
