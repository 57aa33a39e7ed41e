//! The studies' losses beside those of a run, and TrueCrypt's benchmark screens beside this machine's ciphers: only
//! where the tests were the same or similar, each with its source and the differences.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::{PublishedLoss, losses};
use crate::model::case::{Axis, Case};
use crate::model::ciphers::CipherSpeed;
use crate::model::figures::{EncryptedLayer, Run};
use crate::model::plan::{Backing, base_name};
use crate::model::published::{Figure, all, study};
use crate::model::statistics::{Loss, median};
use crate::show::summary::Summary;
use crate::show::{grouped, once};

/// One case of a workload, here and in the studies.
#[derive(Clone, Debug, Serialize)]
pub struct LossesBeside {
    /// Name of the workload here.
    pub workload: String,
    /// What was measured.
    pub case: Case,
    /// Whether whole volumes are compared, or facilities that encrypt file by file.
    pub layer: EncryptedLayer,
    /// What was lost here.
    pub ours: Vec<OwnLoss>,
    /// What was lost there.
    pub theirs: Vec<TheirLosses>,
    /// What makes the two differ, in whole sentences.
    pub differs: &'static str,
}

/// A loss that was measured here.
#[derive(Clone, Debug, Serialize)]
pub struct OwnLoss {
    /// Name of the facility.
    pub facility: String,
    /// What it is, for people.
    pub title: String,
    /// The loss against the baseline of its layer.
    pub loss: Loss,
}

/// The losses of one facility on one machine of a study.
#[derive(Clone, Debug, Serialize)]
pub struct TheirLosses {
    /// The machine or disk.
    pub platform: String,
    /// When it was published.
    pub year: u16,
    /// The facility as the study names it, with the cipher.
    pub facility: String,
    /// `on` or `off`, empty where the study does not say.
    pub aes_acceleration: String,
    /// The smallest of the losses: 0.12 is 12 %.
    pub low: f64,
    /// The largest of the losses.
    pub high: f64,
    /// How many there are: settings of the machine, file systems.
    pub settings: usize,
    /// Where they stand.
    pub sources: Vec<String>,
}

/// A workload of ours and the test that it can stand beside. The file `data/beside.toml` explains each field.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Rule {
    ours: Vec<String>,
    operations: Vec<(String, String)>,
    study: String,
    theirs: String,
    #[serde(default)]
    matched_by: MatchedBy,
    #[serde(default)]
    backing: On,
    differs: String,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum MatchedBy {
    SameX,
    SameFile,
    #[default]
    Any,
    Mebibyte,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum On {
    Memory,
    Disk,
    #[default]
    Anything,
}

/// Tables and texts that repeat what another has in full.
const REPEATED: &[&str] = &["8", "10", "12", "18", "4.4", "Summarized Results", "Summarized Results text"];

/// What can stand beside what.
fn rules() -> &'static [Rule] {
    #[derive(Deserialize)]
    struct Table {
        rule: Vec<Rule>,
    }
    static RULES: LazyLock<Table> =
        LazyLock::new(|| toml::from_str(include_str!("../../../data/beside.toml")).expect("tests parse the rules"));
    &RULES.rule
}

/// The published losses to show beside those of a run, in its order.
pub fn laid_beside(run: &Run, summary: &Summary) -> Vec<LossesBeside> {
    let mut result = Vec::new();
    for (workload, case) in once(summary.cells.iter().map(|cell| (&cell.workload, &cell.case))) {
        for rule in rules().iter().filter(|rule| rule.ours.contains(workload)) {
            for layer in [EncryptedLayer::Volume, EncryptedLayer::Files] {
                let ours = ours_of(run, summary, workload, case, (layer, rule));
                let theirs = rule.theirs_of(case, layer);
                if !ours.is_empty() && !theirs.is_empty() {
                    let (workload, case) = (workload.clone(), case.clone());
                    result.push(LossesBeside { workload, case, layer, ours, theirs, differs: &rule.differs });
                }
            }
        }
    }
    result
}

/// The losses of this case, for facilities of this layer and on media that are like the study's.
fn ours_of(
    run: &Run,
    summary: &Summary,
    workload: &str,
    case: &Case,
    (layer, rule): (EncryptedLayer, &Rule),
) -> Vec<OwnLoss> {
    let of_case = summary.cells.iter().filter(|cell| cell.workload == workload && cell.case == *case);
    let of_case = of_case.filter(|cell| rule.is_on(run.plan.backing_of(&cell.facility)));
    let ours = of_case.filter_map(|cell| {
        let record = run.facilities.iter().find(|facility| facility.name == cell.facility)?;
        // A folder that is encrypted file by file is measured against a folder.
        let its_layer = if matches!(record.baseline.as_deref().map(base_name), Some("folder" | "ext4" | "plain-files"))
        {
            EncryptedLayer::Files
        } else {
            EncryptedLayer::Volume
        };
        let loss = cell.loss.clone().filter(|_| its_layer == layer)?;
        Some(OwnLoss { facility: cell.facility.clone(), title: record.title.clone(), loss })
    });
    ours.collect()
}

impl Rule {
    fn is_on(&self, backing: &Backing) -> bool {
        match self.backing {
            On::Anything => true,
            On::Memory => matches!(backing, Backing::Tmpfs(_)),
            On::Disk => !matches!(backing, Backing::Tmpfs(_)),
        }
    }

    /// Their losses for a case of ours, those of a machine and facility together.
    fn theirs_of(&self, case: &Case, layer: EncryptedLayer) -> Vec<TheirLosses> {
        let Some((_, direction)) = self.operations.iter().find(|(ours, _)| case.operation.eq_ignore_ascii_case(ours))
        else {
            return Vec::new();
        };
        let belongs = |l: &&PublishedLoss| {
            let f = &l.figure;
            f.study == self.study
                && f.workload.starts_with(&self.theirs)
                && f.direction == *direction
                && layer_of(f) == layer
                && self.matched_by.holds(f, case)
                && !REPEATED.contains(&f.table.as_str())
                // hdparm and dd also print the time. It depends on the method: hdparm finishes its last block, which
                // takes long on a slow disk.
                && (f.metric != "time" || !self.theirs.starts_with("hdparm") && !self.theirs.starts_with("dd"))
        };
        gathered(losses().iter().filter(belongs))
    }
}

impl MatchedBy {
    fn holds(self, figure: &Figure, case: &Case) -> bool {
        let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-3;
        match self {
            Self::Any => true,
            Self::Mebibyte => case.x.is_some_and(|x| close(x, 1_048_576.0)) && figure.workload.contains("1 MB blocks"),
            Self::SameX => match (figure.x(), case.x) {
                (Some((axis, theirs)), Some(ours)) => axis == case.axis && close(theirs, ours),
                _ => false,
            },
            Self::SameFile => {
                let file = case.series.strip_prefix("file of ").and_then(file_size);
                Self::SameX.holds(figure, case)
                    && matches!((figure.file_bytes(), file), (Some(theirs), Some(ours)) if close(theirs, ours))
            }
        }
    }
}

/// `64 MiB`, as a series has it.
fn file_size(text: &str) -> Option<f64> {
    let (number, unit) = text.split_once(' ')?;
    let factor = [("KiB", 10), ("MiB", 20), ("GiB", 30)].into_iter().find(|(name, _)| *name == unit)?.1;
    Some(number.parse::<f64>().ok()? * f64::from(1u32 << factor))
}

fn layer_of(figure: &Figure) -> EncryptedLayer {
    match figure.facility.starts_with("eCryptfs") || figure.facility == "EFS" {
        true => EncryptedLayer::Files,
        false => EncryptedLayer::Volume,
    }
}

/// One line for each machine, facility and state of the AES instructions.
fn gathered<'a>(losses: impl Iterator<Item = &'a PublishedLoss>) -> Vec<TheirLosses> {
    let facility = |f: &Figure| match f.cipher.as_str() {
        "" => f.facility.clone(),
        cipher => format!("{}, {cipher}", f.facility),
    };
    let same = |a: &Figure, b: &Figure| {
        (&a.platform, &a.aes_acceleration) == (&b.platform, &b.aes_acceleration) && facility(a) == facility(b)
    };
    let together = |of_one: Vec<&PublishedLoss>| {
        let (f, losses) = (&of_one[0].figure, || of_one.iter().map(|l| l.loss));
        TheirLosses {
            platform: f.platform.clone(),
            year: study(&f.study).map_or(0, |study| study.year),
            facility: facility(f),
            aes_acceleration: f.aes_acceleration.clone(),
            low: losses().fold(f64::INFINITY, f64::min),
            high: losses().fold(f64::NEG_INFINITY, f64::max),
            settings: of_one.len(),
            sources: once(of_one.iter().map(|l| l.figure.source())),
        }
    };
    grouped(losses, |a, b| same(&a.figure, &b.figure)).into_iter().map(together).collect()
}

/// A cipher on this machine, and on those of the studies, with the same buffer.
#[derive(Clone, Debug, Serialize)]
pub struct CipherBeside {
    /// Cipher or cascade.
    pub cipher: String,
    /// Size of the buffer in bytes.
    pub buffer_bytes: usize,
    /// Mean of encryption and decryption here, in bytes per second.
    pub bytes_per_s: f64,
    /// The same cipher and buffer on machines of the studies.
    pub theirs: Vec<WindowSpeed>,
}

/// What TrueCrypt's benchmark window showed on a machine: its fastest setting.
#[derive(Clone, Debug, Serialize)]
pub struct WindowSpeed {
    /// The machine, as the study names it.
    pub platform: String,
    /// When it was published.
    pub year: u16,
    /// Cores in use and word size.
    pub cpu_mode: String,
    /// Whether AES instructions were used: `on` or `off`.
    pub aes_acceleration: String,
    /// Mean of encryption and decryption, the median of the screens, in bytes per second.
    pub bytes_per_s: f64,
    /// How many times as fast this machine is.
    pub times: f64,
    /// Where it stands.
    pub source: String,
}

/// What TrueCrypt's benchmark window showed for the same ciphers and buffers.
pub fn ciphers_beside(rows: &[CipherSpeed]) -> Vec<CipherBeside> {
    let beside = |row: &CipherSpeed| {
        let theirs = screens(&row.cipher, row.buffer_bytes as f64, row.mean_bytes_per_s);
        let (cipher, buffer_bytes, bytes_per_s) = (row.cipher.clone(), row.buffer_bytes, row.mean_bytes_per_s);
        CipherBeside { cipher, buffer_bytes, bytes_per_s, theirs }
    };
    rows.iter().map(beside).filter(|beside| !beside.theirs.is_empty()).collect()
}

fn screens(cipher: &str, buffer: f64, ours: f64) -> Vec<WindowSpeed> {
    // Our buffers are whole sectors.
    let same_buffer = |f: &Figure| f.x().is_some_and(|(axis, x)| axis == Axis::Block && (x - buffer).abs() < 4096.0);
    let wanted = |f: &&Figure| {
        f.workload == "TrueCrypt benchmark (RAM)"
            && (f.direction.as_str(), f.cipher.as_str()) == ("mean", cipher)
            && f.power_mode != "powersave"
            && same_buffer(f)
    };
    let same = |a: &Figure, b: &Figure| {
        (&a.platform, &a.cpu_mode, &a.aes_acceleration) == (&b.platform, &b.cpu_mode, &b.aes_acceleration)
    };
    let shown = all().iter().filter(wanted).filter_map(|figure| Some((figure, figure.in_our_units()?.0)));
    let mut fastest: Vec<WindowSpeed> = Vec::new();
    for screens in grouped(shown, |a, b| same(a.0, b.0)) {
        let figure = screens[0].0;
        let bytes_per_s = median(&screens.iter().map(|(_, value)| *value).collect::<Vec<_>>());
        let speed = WindowSpeed {
            platform: figure.platform.clone(),
            year: study(&figure.study).map_or(0, |study| study.year),
            cpu_mode: figure.cpu_mode.clone(),
            aes_acceleration: figure.aes_acceleration.clone(),
            bytes_per_s,
            times: ours / bytes_per_s,
            source: figure.source(),
        };
        match fastest.iter_mut().find(|f| f.platform == speed.platform && f.aes_acceleration == speed.aes_acceleration)
        {
            Some(known) if known.bytes_per_s >= speed.bytes_per_s => {}
            Some(known) => *known = speed,
            None => fastest.push(speed),
        }
    }
    fastest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each rule finds something in the studies for some case: none is a dead letter.
    #[test]
    fn every_rule_finds_figures() {
        let xs = [512.0, 4096.0, 32768.0, 524_288.0, 1_048_576.0, 1.0, 12.0, 48.0, 128.0];
        for rule in rules() {
            for (operation, _) in &rule.operations {
                let found = xs.iter().any(|&x| {
                    [Axis::Block, Axis::Clients].into_iter().any(|axis| {
                        let case = Case::new(operation).of("file of 64 MiB").at(axis, x);
                        [EncryptedLayer::Volume, EncryptedLayer::Files]
                            .into_iter()
                            .any(|layer| !rule.theirs_of(&case, layer).is_empty())
                    })
                });
                assert!(found, "{:?} {operation}: nothing in {} is called {}", rule.ours, rule.study, rule.theirs);
            }
        }
    }

    #[test]
    fn the_hp_of_2010_lost_more_than_nine_tenths_in_blocks_of_4096_bytes() {
        let rule = rules().iter().find(|r| r.ours == ["dd"] && r.study == "bsi2010").expect("a rule");
        let theirs = rule.theirs_of(&Case::new("write").at(Axis::Block, 4096.0), EncryptedLayer::Volume);
        let hp = theirs
            .iter()
            .find(|t| t.platform.starts_with("HP") && t.facility == "TrueCrypt, AES" && t.aes_acceleration == "off")
            .expect("the HP EliteBook");
        assert!(hp.high > 0.92 && hp.high < 0.99 && hp.year == 2010 && hp.sources == ["BSI 2010, 5.3.3"], "{hp:?}");
        // Another block size has another figure. A read has none.
        assert!(rule.theirs_of(&Case::new("write").at(Axis::Block, 4097.0 * 1.01), EncryptedLayer::Volume).is_empty());
        assert!(rule.theirs_of(&Case::new("read").at(Axis::Block, 4096.0), EncryptedLayer::Volume).is_empty());
        // A facility that encrypts files stands beside no volume.
        assert!(rule.theirs_of(&Case::new("write").at(Axis::Block, 4096.0), EncryptedLayer::Files).is_empty());
    }

    #[test]
    fn files_of_the_same_size_only() {
        let rule = rules().iter().find(|r| r.ours == ["iozone-like"] && r.study == "zhan2010").expect("a rule");
        let case = |series: &str| Case::new("Writer").of(series).at(Axis::Block, 65536.0);
        assert!(!rule.theirs_of(&case("file of 64 MiB"), EncryptedLayer::Files).is_empty());
        assert!(rule.theirs_of(&case("file of 63 MiB"), EncryptedLayer::Files).is_empty());
        assert!(rule.theirs_of(&case(""), EncryptedLayer::Files).is_empty());
        assert_eq!(file_size("1 GiB"), Some(1_073_741_824.0));
    }

    #[test]
    fn screens_of_the_same_cipher_and_buffer() {
        let ours = 10e9;
        let screens = screens("AES", 5_242_880.0, ours);
        assert_eq!(screens.len(), 2, "with and without acceleration: {screens:?}");
        assert!(
            screens.iter().all(|s| s.platform == "Samsung NP530U3C" && (s.times - ours / s.bytes_per_s).abs() < 1e-9)
        );
        let of_500_mb = super::screens("AES", f64::from(500 << 20), ours);
        assert!(of_500_mb.iter().any(|s| s.platform.starts_with("HP") && s.aes_acceleration == "on"), "{of_500_mb:?}");
        assert!(
            super::screens("AES", 4096.0, ours).is_empty() && super::screens("Camellia", 5_242_880.0, ours).is_empty()
        );
    }
}
