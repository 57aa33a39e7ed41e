//! How fast the ciphers are in memory, as TrueCrypt's benchmark window measures them.

use claviger_crypto::Acceleration;

use crate::measure::benchmark::{BUFFERS, BenchmarkPlan};
use crate::measure::workloads::prelude::*;
use crate::measure::{benchmark, suites};
use crate::model::ciphers::{AesAcceleration, CipherSpeed};
use crate::model::words::size;

/// The facility with which they are measured: they need none.
const WITH: &str = "plain";

/// Estimated seconds for a sample of one cipher in one direction, including preparation.
const SAMPLE_S: f64 = 0.15;

/// How much of it.
struct Extent {
    buffers: Vec<usize>,
    /// 0 is one for each processor.
    threads: Vec<usize>,
}

impl Extent {
    fn of(plan: &Plan) -> Self {
        let study = plan.parameters(CIPHERS.name).cloned().unwrap_or_default();
        let level = plan.level.choose([&BUFFERS[..1], &BUFFERS[..4], BUFFERS]);
        let all = if study.blocks.is_empty() { level.to_vec() } else { study.blocks };
        let largest = all.iter().copied().max().unwrap_or_default() as f64 * plan.scale;
        let kept = all.iter().enumerate().filter(|(i, buffer)| *i == 0 || **buffer as f64 <= largest);
        let threads = study.threads.iter().map(|threads| *threads as usize).collect::<Vec<_>>();
        Self {
            buffers: kept.map(|(_, buffer)| *buffer).collect(),
            threads: if threads.is_empty() { vec![0] } else { threads },
        }
    }
}

/// Ciphers in memory.
pub static CIPHERS: Workload = Workload {
    name: "ciphers",
    title: "Ciphers in memory (TrueCrypt's benchmark)",
    measures: |plan| {
        let buffers: Vec<String> = Extent::of(plan).buffers.iter().map(|buffer| size(*buffer as u64)).collect();
        format!(
            "Encrypts and decrypts a buffer of {} in memory with each cipher and cascade in XTS mode, for at least \
                0.1 s, with and without AES instructions. The mean covers both directions, as in TrueCrypt's \
                benchmark window. Nothing is stored, so it is measured once, with the facility {WITH}. After the \
                BSI's study (2010) and Rantanen (2013).",
            buffers.join(", ")
        )
    },
    not: "Storage, and the cost of getting to the data. Without AES instructions, the figures are those of this \
        program's fastest code, not of TrueCrypt's.",
    on: On::Itself,
    parameters: &["blocks", "threads"],
    estimate_s: |plan| {
        let Extent { buffers, threads } = Extent::of(plan);
        (suites::all().len() * buffers.len() * threads.len()) as f64 * 4.0 * SAMPLE_S
    },
    room: |_| 0,
    run,
    ..Workload::PLAIN
};

fn run(target: &mut FacilityTarget, lab: &Lab) -> Result<WorkloadOutcome> {
    let name = &target.facility().name;
    if name != WITH {
        return Err(Error::unsupported(format!(
            "ciphers with {name}: ciphers are measured in memory, only with the facility {WITH}"
        )));
    }
    let Extent { buffers, threads } = Extent::of(&lab.plan);
    let mut outcome = WorkloadOutcome::default();
    for threads in threads {
        for acceleration in [Acceleration::On, Acceleration::Off] {
            lab.go_on()?;
            if AesAcceleration::here(acceleration) == AesAcceleration::NotAvailable && acceleration == Acceleration::On
            {
                outcome.notes.push("ciphers: this processor has no AES instructions.".into());
                continue;
            }
            outcome.measures.extend(screen(&buffers, threads, acceleration)?);
        }
    }
    Ok(outcome)
}

/// What the window shows for each buffer.
fn screen(buffers: &[usize], threads: usize, acceleration: Acceleration) -> Result<Vec<Measure>> {
    let plan = BenchmarkPlan::new(suites::all(), buffers);
    let plan =
        BenchmarkPlan { threads: if threads == 0 { plan.threads } else { threads }, acceleration, repeats: 1, ..plan };
    let state = if acceleration == Acceleration::On { "on" } else { "off" };
    let series = match threads {
        0 => format!("AES instructions {state}"),
        1 => format!("AES instructions {state}, 1 thread"),
        n => format!("AES instructions {state}, {n} threads"),
    };
    let rows = benchmark::measure(&plan, &|_, _| {})?;
    Ok(rows.iter().flat_map(|row| figures(row, &series)).collect())
}

/// Encryption, decryption and their mean, as rates of one buffer.
fn figures(row: &CipherSpeed, series: &str) -> [Measure; 3] {
    let bytes = row.buffer_bytes as f64;
    let all = [
        ("encryption", row.encrypt_bytes_per_s),
        ("decryption", row.decrypt_bytes_per_s),
        ("mean", row.mean_bytes_per_s),
    ];
    all.map(|(direction, rate)| {
        let case = Case::new(format!("{}, {direction}", row.cipher)).of(series).at(Axis::Block, bytes);
        let took = Elapsed { seconds: bytes / rate, cpu_s: 0.0 };
        Measure { cpu_s: None, ..Measure::rate(case, row.buffer_bytes as u64, took) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::lab::tests::lab;

    #[test]
    fn each_cipher_has_three_figures_for_each_buffer() {
        let measures = screen(&[4096], 1, Acceleration::Off).expect("measured");
        assert_eq!(measures.len(), suites::all().len() * 3);
        let of = |operation: &str| measures.iter().find(|m| m.case.operation == operation).expect("there").value;
        let (there, back, mean) = (of("AES, encryption"), of("AES, decryption"), of("AES, mean"));
        assert!(there > 0.0 && mean >= there.min(back) * 0.999 && mean <= there.max(back) * 1.001);
        assert!(measures.iter().all(|m| m.case.series == "AES instructions off, 1 thread"));
    }

    #[test]
    fn the_scale_leaves_large_buffers_out() {
        let of = |text: &str, scale: f64| {
            let mut study = crate::measure::studies::find(
                "rantanen2013",
                &crate::measure::facility::Catalogue::load(None).unwrap(),
            )
            .unwrap();
            study.workloads = vec![toml::from_str(&format!("name = \"ciphers\"\nparameters = {{ {text} }}")).unwrap()];
            Extent::of(&Plan { scale, repeated: Some(study.planned()), ..lab().plan })
        };
        let blocks = "blocks = [102400, 1048576, 1073741824]";
        assert_eq!(of(blocks, 1.0).buffers, [102_400, 1 << 20, 1 << 30]);
        assert_eq!(of(blocks, 0.001).buffers, [102_400, 1 << 20]);
        assert_eq!(of(blocks, 0.00001).buffers, [102_400]);
        assert_eq!(of("threads = [0, 1]", 1.0).threads, [0, 1]);
    }
}
