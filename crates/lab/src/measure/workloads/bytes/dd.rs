//! Sequential transfers in blocks of one size, one request at a time, as dd makes them.

use std::time::Duration;

use super::{LARGE, MIB, cache_note, capped, demand, drop_caches, long_enough, mark, sequential, smallest};
use crate::measure::run::levels::at_scale;
use crate::measure::transfer::{Data, Device, Transfer, TransferDirection, WrittenPasses};
use crate::measure::workloads::prelude::*;
use crate::model::parameters::{Parameters, WrittenContent};
use crate::model::statistics::median;
use crate::model::words::size;

/// The block sizes of the BSI's study, and that of a large copy.
const BLOCKS: &[usize] = &[512, 1024, 2048, 4096, 8192, 16384, 32768, LARGE];

/// The smallest and largest of these sizes, and the sector size of today's disks.
const QUICK_BLOCKS: &[usize] = &[512, 4096, 32768, LARGE];

/// The parameters a study can set, for both workloads here.
const PARAMETERS: &[&str] = &["size", "blocks", "seconds", "repetitions", "data"];

/// The data that are written by default.
const RANDOM: [WrittenContent; 1] = [WrittenContent::Random];

/// How much of it.
struct Extent {
    blocks: Vec<usize>,
    /// Bytes of a transfer.
    size: u64,
    /// When a transfer ends even if not all bytes have moved, in seconds.
    limit_s: f64,
    /// How often each is made.
    repetitions: usize,
    /// What is written.
    data: Vec<WrittenContent>,
}

impl Extent {
    fn of_sweep(plan: &Plan) -> Self {
        let levels = [(QUICK_BLOCKS, 32 * MIB, 0.15), (BLOCKS, 128 * MIB, 1.0), (BLOCKS, 500_000_000, 30.0)];
        let (blocks, size, limit_s) = plan.level.choose(levels);
        let (blocks, size, data) = (blocks.to_vec(), at_level(size, plan), RANDOM.to_vec());
        let level = Self { blocks, size, limit_s, repetitions: 1, data };
        level.with(plan.parameters(DD.name), plan)
    }

    fn of_tresor_sgx(plan: &Plan) -> Self {
        let levels = [(16 * MIB, 0.5, 3), (100_000_000, 2.0, 5), (100_000_000, 10.0, 24)];
        let (size, limit_s, repetitions) = plan.level.choose(levels);
        let (blocks, size, data) = (vec![LARGE], at_level(size, plan), RANDOM.to_vec());
        let level = Self { blocks, size, limit_s, repetitions, data };
        level.with(plan.parameters(TRESOR_SGX.name), plan)
    }

    /// With the parameters of a study; the level decides the others.
    fn with(self, study: Option<&Parameters>, plan: &Plan) -> Self {
        let Some(study) = study else { return self };
        let size = study.size.map_or(self.size, |size| capped(((size as f64 * plan.scale) as u64).max(MIB), plan));
        let mut blocks = if study.blocks.is_empty() { self.blocks } else { study.blocks.clone() };
        blocks.iter_mut().for_each(|block| *block = (*block).min(size as usize));
        Self {
            blocks,
            size,
            limit_s: study.seconds.unwrap_or(self.limit_s),
            repetitions: study.repetitions.unwrap_or(self.repetitions),
            data: if study.data.is_empty() { self.data } else { study.data.clone() },
        }
    }

    fn estimate_s(&self) -> f64 {
        // A rate of 200 MB/s, 25 000 requests a second.
        let transfer = |block: &usize| {
            let size = self.size as f64;
            (size / 200e6).max(size / *block as f64 / 25e3).clamp(super::LEAST_S, self.limit_s) * 2.0
        };
        self.blocks.iter().map(transfer).sum::<f64>() * (self.repetitions * self.data.len()) as f64
    }
}

/// A size of the level, at the plan's scale.
fn at_level(size: u64, plan: &Plan) -> u64 {
    capped(at_scale(size, plan).max(MIB), plan)
}

/// The sweep over block sizes.
pub static DD: Workload = Workload {
    name: "dd",
    title: "Sequential transfers by block size (dd)",
    measures,
    not: "Several requests at a time, and small requests through a file system or the page cache: programs that write \
        through the page cache see the figures of large blocks.",
    on: On::Bytes,
    parameters: PARAMETERS,
    estimate_s: |plan| Extent::of_sweep(plan).estimate_s(),
    room: |plan| Extent::of_sweep(plan).size,
    run: |target, lab| run(target, lab, &Extent::of_sweep(&lab.plan)),
    ..Workload::PLAIN
};

fn measures(plan: &Plan) -> String {
    let Extent { blocks, size, limit_s, .. } = Extent::of_sweep(plan);
    format!(
        "Writes, then reads, the first {} MiB of the volume in order, in blocks of one size from {} bytes to {} KiB, \
            one request at a time, bypassing the page cache where the facility allows it. A write ends with an \
            fdatasync, which is timed. A transfer stops after {limit_s} s, and the data moved by then count; one \
            shorter than {} s is repeated until that time is reached. Written data are compared afterwards. After the \
            BSI's study of TrueCrypt (2010, section 5.3: 500 MB in blocks of 512 bytes to 32 KiB) and the Swedish \
            study of 2013.",
        size / MIB,
        blocks.first().copied().unwrap_or_default(),
        blocks.last().copied().unwrap_or_default() >> 10,
        super::LEAST_S,
    )
}

/// Many repetitions of one transfer.
pub static TRESOR_SGX: Workload = Workload {
    name: "dd-tresorsgx",
    title: "Repeated sequential transfers (dd, as for TresorSGX)",
    measures: |plan| {
        let Extent { blocks, size: moved, repetitions, .. } = Extent::of_tresor_sgx(plan);
        let blocks: Vec<String> = blocks.iter().map(|block| size(*block as u64)).collect();
        format!(
            "Writes (with a timed fdatasync) and reads {} MB in blocks of {}, {repetitions} times in a pass; the \
                figure of a pass is their median. After the measurements of TresorSGX (2016: 24 repetitions of 100 \
                MB).",
            moved / 1_000_000,
            blocks.join(", ")
        )
    },
    not: "Small requests, and several requests at a time. The study wrote zeros through the page cache; this workload \
        writes incompressible data, bypassing the cache where the facility allows it.",
    on: On::Bytes,
    parameters: PARAMETERS,
    estimate_s: |plan| Extent::of_tresor_sgx(plan).estimate_s(),
    room: |plan| Extent::of_tresor_sgx(plan).size,
    run: |target, lab| run(target, lab, &Extent::of_tresor_sgx(&lab.plan)),
    ..Workload::PLAIN
};

fn run(target: &mut FacilityTarget, lab: &Lab, extent: &Extent) -> Result<WorkloadOutcome> {
    let surface = target.bytes()?;
    let mut device = surface.device()?;
    let size = extent.size.min(surface.len / MIB * MIB);
    let blocks = extent.blocks.iter().map(|block| (*block).min(size as usize)).collect();
    let extent = Extent { size, blocks, data: extent.data.clone(), ..*extent };
    let direct = surface.direct;
    let mut outcome = WorkloadOutcome::default();
    let zeros = Data::zeros();
    for content in &extent.data {
        let (data, series) = match content {
            WrittenContent::Random => (&lab.data, ""),
            WrittenContent::Zeros => (&zeros, "zeros"),
        };
        let written = WrittenPasses::default();
        let of_these = Sweep { device: &mut *device, direct, lab, extent: &extent, data, series, written }.all()?;
        outcome.measures.extend(of_these.measures);
        outcome.notes = of_these.notes;
    }
    outcome.notes.extend(cache_note(target, direct));
    Ok(outcome)
}

/// Transfers of each block size.
struct Sweep<'a> {
    device: &'a mut dyn Device,
    direct: bool,
    lab: &'a Lab,
    extent: &'a Extent,
    data: &'a Data,
    /// Distinguishes its figures from those of other data.
    series: &'static str,
    /// What was written in this pass.
    written: WrittenPasses,
}

impl Sweep<'_> {
    fn all(&mut self) -> Result<WorkloadOutcome> {
        let smallest = smallest(self.device)?;
        let mut outcome = WorkloadOutcome::default();
        for &block in self.extent.blocks.iter().filter(|&&block| block >= smallest) {
            let mut samples = TransferDirection::BOTH.map(|_| Vec::new());
            for _ in 0..self.extent.repetitions {
                for (direction, samples) in TransferDirection::BOTH.into_iter().zip(&mut samples) {
                    samples.push(self.transfer(direction, block)?);
                }
                demand(self.device, self.data, &self.written, self.extent.size)?;
            }
            outcome.measures.extend(samples.iter().filter_map(|samples| together(samples)));
        }
        if self.extent.blocks[0] < smallest {
            let note = format!("dd: blocks smaller than {smallest} bytes are left out: the facility refuses them.");
            outcome.notes.push(note);
        }
        Ok(outcome)
    }

    fn transfer(&mut self, direction: TransferDirection, block: usize) -> Result<Measure> {
        let limit = Duration::from_secs_f64(self.extent.limit_s);
        let transfer = Transfer { direction, block, size: self.extent.size, limit };
        let (bytes, took) = long_enough(self.lab, || match direction {
            TransferDirection::Write => {
                let mark = mark();
                let moved = sequential(self.device, self.data, &transfer, mark)?;
                self.written.add(moved.0, mark);
                Ok(moved)
            }
            TransferDirection::Read => {
                drop_caches(self.lab, self.direct)?;
                sequential(self.device, self.data, &transfer, 0)
            }
        })?;
        Ok(Measure::rate(Case::new(word(&direction)).of(self.series).at(Axis::Block, block as f64), bytes, took))
    }
}

/// All samples together, with the median as the figure.
fn together(samples: &[Measure]) -> Option<Measure> {
    let value = median(&samples.iter().map(|m| m.value).collect::<Vec<_>>());
    Some(Measure {
        value,
        bytes: samples.iter().map(|m| m.bytes).sum(),
        seconds: samples.iter().map(|m| m.seconds).sum(),
        cpu_s: samples.iter().map(|m| m.cpu_s).sum(),
        ..samples.first()?.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::lab::tests::lab;
    use crate::measure::transfer::tests::Memory;
    use crate::model::case::Unit;
    use crate::model::figures::Elapsed;

    fn extent(repetitions: usize) -> Extent {
        Extent { blocks: vec![512, LARGE], size: 4 * MIB, limit_s: 0.05, repetitions, data: RANDOM.to_vec() }
    }

    #[test]
    fn a_sweep_gives_a_rate_for_each_block_size_and_direction() {
        let (mut device, lab, extent) = (Memory(vec![0; 4 << 20]), lab(), extent(2));
        let written = WrittenPasses::default();
        let data = &lab.data;
        let mut sweep =
            Sweep { device: &mut device, direct: true, lab: &lab, extent: &extent, data, series: "", written };
        let measures = sweep.all().unwrap().measures;
        let cases: Vec<_> = measures.iter().map(|m| (m.case.operation.as_str(), m.case.x.unwrap())).collect();
        assert_eq!(cases, [("write", 512.0), ("read", 512.0), ("write", 1048576.0), ("read", 1048576.0)]);
        for measure in &measures {
            assert!(
                measure.unit == Unit::BytesPerS && measure.value > 0.0 && measure.bytes > 0 && measure.seconds > 0.0
            );
            assert!(measure.cpu_s.is_some());
        }
    }

    #[test]
    fn the_figure_of_many_samples_is_their_median() {
        let sample = |&seconds: &f64| Measure::rate(Case::new("read"), 100, Elapsed { seconds, cpu_s: 0.5 });
        let of = |times: &[f64]| together(&times.iter().map(sample).collect::<Vec<_>>()).unwrap();
        let three = of(&[1.0, 4.0, 2.0]);
        assert_eq!((three.value, three.bytes, three.seconds, three.cpu_s), (50.0, 300, 7.0, Some(1.5)));
        assert_eq!(of(&[1.0, 2.0]).value, 75.0);
        assert!(together(&[]).is_none());
    }

    #[test]
    fn a_study_sets_what_is_moved_and_its_scale_counts() {
        let of = |text: &str, scale: f64| {
            let study = Some(toml::from_str::<Parameters>(text).unwrap());
            let plan = Plan { scale, size: 1 << 30, ..lab().plan };
            let Extent { blocks, size, limit_s, repetitions, .. } = extent(2).with(study.as_ref(), &plan);
            (blocks, size, limit_s, repetitions)
        };
        let whole = "size = 104857600\nblocks = [104857600]\nseconds = 600\nrepetitions = 1";
        assert_eq!(of(whole, 1.0), (vec![100 << 20], 100 << 20, 600.0, 1));
        assert_eq!(of(whole, 0.1), (vec![10 << 20], 10 << 20, 600.0, 1), "one request, however large");
        assert_eq!(of("blocks = [4096]", 0.1), (vec![4096], 4 * MIB, 0.05, 2), "the rest is the level's");
    }

    #[test]
    fn transfers_fit_into_the_volume() {
        let small = Plan { size: 10 * MIB, level: Level::Thorough, scale: 1.0, ..lab().plan };
        assert!((DD.room)(&small) <= small.size && (TRESOR_SGX.room)(&small) <= small.size && (DD.room)(&small) > 0);
        assert_eq!((DD.room)(&Plan { size: 1 << 40, ..small.clone() }), 476 * MIB);
        assert_eq!((DD.room)(&Plan { size: 1 << 40, scale: 0.1, ..small.clone() }), 47 * MIB, "the scale counts");
        assert_eq!((DD.room)(&Plan { size: 1 << 40, scale: 0.01, level: Level::Quick, ..small.clone() }), 32 * MIB);
        assert!((DD.estimate_s)(&lab().plan) < 5.0);
    }
}
