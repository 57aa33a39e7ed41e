//! Measurements of this machine: a run of the lab, or the speed of the ciphers.

use claviger_engine::Result;

use super::features::FacilityFeatures;
use crate::measure::{benchmark, suites};
use crate::model::ciphers::CipherSpeed;
use crate::model::figures::Run;
use crate::model::statistics::{ENOUGH, median};
use crate::model::words::rate;
use crate::show::summary::Summary;

/// AES and what could be taken instead, as dm-crypt names them.
const CIPHERS: &[&str] =
    &["aes-xts-plain64", "serpent-xts-plain64", "twofish-xts-plain64", "xchacha20,aes-adiantum-plain64"];

/// A facility that loses no more than this share is fast.
const FAST: f64 = 0.1;

/// One that loses more than this is slow.
const SLOW: f64 = 0.5;

/// What is known of this machine.
#[derive(Default)]
pub struct Measured {
    losses: Vec<Lost>,
    ciphers: Vec<CipherSpeed>,
}

/// A facility's median loss in a run.
struct Lost {
    facility: String,
    loss: f64,
    figures: usize,
}

impl Measured {
    /// What a run shows about its facilities.
    pub fn of_run(run: &Run) -> Self {
        let summary = Summary::of(run);
        let lost = |name: &String| {
            let cells = summary.cells.iter().filter(|cell| cell.facility == *name && cell.samples.len() >= ENOUGH);
            let losses: Vec<f64> = cells.filter_map(|cell| Some(cell.loss.as_ref()?.loss)).collect();
            let (facility, figures) = (name.clone(), losses.len());
            (figures > 0).then(|| Lost { facility, loss: median(&losses), figures })
        };
        Self { losses: run.plan.facilities.iter().filter_map(lost).collect(), ciphers: run.ciphers.clone() }
    }

    /// Measures the ciphers, which takes three seconds.
    ///
    /// # Errors
    /// `TooLittleMemory`, `Io`: see [`benchmark::measure`].
    pub fn of_ciphers(progress: &dyn Fn(u64, u64)) -> Result<Self> {
        let names: Vec<String> = CIPHERS.iter().map(ToString::to_string).collect();
        // Three samples of each: with two directions of at least 0.1 s, the measurement takes three seconds.
        let suites = suites::named_or_specified(&names, None, 512)?;
        let plan = benchmark::BenchmarkPlan::new(suites, &[benchmark::DEFAULT_BUFFER]);
        Ok(Self { losses: Vec::new(), ciphers: benchmark::measure(&plan, progress)? })
    }

    /// Points of a facility that the run measured.
    pub(super) fn points(&self, f: &FacilityFeatures) -> Option<(i32, String)> {
        let lost =
            self.losses.iter().find(|l| f.measured_as.iter().any(|name| name.eq_ignore_ascii_case(&l.facility)))?;
        let points = match lost.loss {
            loss if loss <= FAST => 2,
            loss if loss <= SLOW => 0,
            _ => -2,
        };
        let (word, loss) = if lost.loss < 0.0 { ("gains", -lost.loss) } else { ("loses", lost.loss) };
        let (percent, figures) = (loss * 100.0, lost.figures);
        let text = format!(
            "On this machine it {word} {percent:.1} % against its baseline, the median of {figures} figures of the run."
        );
        Some((points, text))
    }

    /// What was measured, and which cipher to take, in whole sentences.
    pub(super) fn sentences(&self) -> Vec<String> {
        let mut sentences: Vec<String> = self.cipher_to_take().into_iter().collect();
        if self.losses.is_empty() {
            sentences.push(
                "How much a whole facility loses on this machine is unknown and was not considered. To measure it: claviger lab run. \
                 To consider the result: --run FOLDER."
                    .into(),
            );
        }
        sentences
    }

    fn cipher_to_take(&self) -> Option<String> {
        let of = |start: &str| self.ciphers.iter().find(|row| row.cipher.to_lowercase().starts_with(start));
        let aes = of("aes")?;
        let others = self.ciphers.iter().filter(|row| !row.cipher.to_lowercase().starts_with("aes"));
        let best = others.max_by(|a, b| a.mean_bytes_per_s.total_cmp(&b.mean_bytes_per_s))?;
        let instructions = if aes.aes_instructions { "with" } else { "without" };
        let take = if aes.mean_bytes_per_s >= best.mean_bytes_per_s { &aes.cipher } else { &best.cipher };
        Some(format!(
            "In memory, {} reaches {} MB/s on this machine, {instructions} AES instructions, and {}, the fastest of the others, {} MB/s: \
             if you can choose a cipher, choose {take}.",
            aes.cipher,
            rate(aes.mean_bytes_per_s),
            best.cipher,
            rate(best.mean_bytes_per_s),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{features, recommend};
    use super::*;
    use crate::model::answers::{EncryptionPurpose, RecommendAnswers, Threat};

    fn of(losses: &[(&str, f64)]) -> Measured {
        let lost = |&(name, loss): &(&str, f64)| Lost { facility: name.into(), loss, figures: 12 };
        Measured { losses: losses.iter().map(lost).collect(), ciphers: Vec::new() }
    }

    #[test]
    fn what_a_run_measured_counts_and_is_told() {
        let (purpose, threat) = (EncryptionPurpose::FewFiles, Threat::Cloud);
        let answers = RecommendAnswers { purpose, share_with: Vec::new(), threat, root: true };
        let with = |losses: &[(&str, f64)]| recommend(&answers, &of(losses)).first.expect("an answer");
        assert_eq!(with(&[]).name, "Cryptomator");
        let fast = with(&[("gocryptfs", 0.05), ("cryfs", 0.9)]);
        assert_eq!(fast.name, "gocryptfs");
        assert!(fast.reasons.iter().any(|r| r.points == 2 && r.text.contains("loses 5.0 %")), "{fast:?}");
    }

    #[test]
    fn points_by_the_loss() {
        let luks2 = features::all().iter().find(|f| f.name == "LUKS2").expect("of the table");
        for (loss, points, word) in
            [(-0.02, 2, "gains 2.0 %"), (0.1, 2, "loses 10.0 %"), (0.3, 0, "30"), (0.7, -2, "70")]
        {
            let (found, text) = of(&[("luks2", loss)]).points(luks2).expect("it was measured");
            assert!(found == points && text.contains(word), "{loss}: {found}, {text}");
        }
        assert!(of(&[("LUKS2:serpent-xts-plain64", 0.1)]).points(luks2).is_none());
    }

    #[test]
    fn ciphers_are_measured_and_one_is_named() {
        let measured = Measured::of_ciphers(&|_, _| ()).expect("ciphers");
        assert_eq!(measured.ciphers.len(), CIPHERS.len());
        let sentence = measured.cipher_to_take().expect("a sentence");
        assert!(sentence.contains("aes-xts-plain64") && sentence.contains("choose"), "{sentence}");
    }
}
