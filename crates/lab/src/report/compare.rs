//! The sweep as text and CSV.

use super::table::{Align, Table, bar, wrapped};
use super::{Record, Text, number, percent, rate, size};
use crate::compare::targets::Path;
use crate::compare::{Cell, KERNEL_BASELINE, Report};
use crate::statistics::{Loss, Verdict};
use crate::transfer::Direction;

/// A row whose samples lie farther apart than this share of the median was disturbed.
const RESTLESS: f64 = 0.5;

impl Record for Cell {
    fn record(&self) -> Vec<(&'static str, String)> {
        // Every field is named, so that a new one is not forgotten here.
        let Self {
            target,
            direction,
            block_bytes,
            bytes_per_s,
            baseline_bytes_per_s,
            loss,
            spread,
            cpu_s_per_gb,
            cpu_of,
            samples,
        } = self;
        let of_loss = |value: &dyn Fn(&Loss) -> String| loss.as_ref().map(value).unwrap_or_default();
        vec![
            ("target", target.clone()),
            ("direction", direction.word().into()),
            ("block_bytes", block_bytes.to_string()),
            ("bytes_per_s", number(*bytes_per_s)),
            ("baseline_bytes_per_s", number(*baseline_bytes_per_s)),
            ("loss", of_loss(&|l| number(l.loss))),
            ("loss_low", of_loss(&|l| number(l.low))),
            ("loss_high", of_loss(&|l| number(l.high))),
            ("verdict", of_loss(&|l| l.verdict.words().into())),
            ("min", number(spread.min)),
            ("max", number(spread.max)),
            ("cpu_s_per_gb", number(*cpu_s_per_gb)),
            ("cpu_of", (*cpu_of).into()),
            ("samples", samples.len().to_string()),
            ("bytes_moved", samples.iter().map(|s| s.bytes).sum::<u64>().to_string()),
        ]
    }
}

impl Text for Report {
    fn text(&self) -> String {
        let mut text = String::from("What encryption takes away from sequential transfers\n\n");
        text += &self.conditions();
        for cells in self.cells.chunk_by(|a, b| (a.direction, a.block_bytes) == (b.direction, b.block_bytes)) {
            let what = match cells[0].direction {
                Direction::Write => "Writes",
                Direction::Read => "Reads",
            };
            text += &format!("\n{what} of {}\n", size(cells[0].block_bytes as u64));
            text += &table(cells);
        }
        let mut whose: Vec<&str> = self.cells.iter().map(|c| c.cpu_of).collect();
        whose.sort_unstable();
        whose.dedup();
        // Two at most: ours, and that of the kernel's rows.
        let ours = self.cells[0].cpu_of;
        let kernels: String =
            whose.iter().filter(|w| **w != ours).map(|w| format!("; in rows of the kernel, that of {w}")).collect();
        text += &wrapped(&format!("\nMB/s is 10^6 bytes per second. CPU is that of {ours}{kernels}."));
        let verified: u64 = self.verified.iter().map(|v| v.bytes).sum();
        text += &format!(
            "{} bytes in {} volumes were read back and are what was written; the containers of the encrypted ones hold \
             none of it in plaintext.\n\n",
            verified,
            self.verified.len()
        );
        self.findings.iter().for_each(|f| text += &wrapped(f));
        text
    }
}

impl Report {
    fn conditions(&self) -> String {
        let Self { plan, machine, before, after, .. } = self;
        let kernels: Vec<_> = machine
            .cipher_kernels
            .iter()
            .map(|k| match self.acceleration.word() {
                "off" => format!("{} {}", k.cipher, k.without_aes_instructions),
                _ => format!("{} {}", k.cipher, k.accelerated),
            })
            .collect();
        let slowest = self.data.iter().min_by(|a, b| a.bytes_per_s.total_cmp(&b.bytes_per_s));
        let mut lines = self.method.clone();
        lines.push(format!(
            "{} rounds; up to {} per transfer, {} s at most; seed {}.",
            plan.repeats,
            size(plan.size),
            plan.limit_s,
            plan.seed
        ));
        lines.push(format!(
            "{}, {} processors; {}; AES acceleration {}; kernels: {}.",
            machine.cpu_model,
            machine.cpus,
            machine.kernel,
            self.acceleration.word(),
            kernels.join(", ")
        ));
        lines.push(format!(
            "{}, load {} before and {} after; {} % of the time taken by the hypervisor.",
            before.at,
            before.load_1min,
            after.load_1min,
            percent(self.steal_share)
        ));
        if let Some(slowest) = slowest {
            lines.push(format!(
                "The data to write is made at {} MB/s or more, inside the time of writes.",
                rate(slowest.bytes_per_s)
            ));
        }
        lines.iter().map(|l| wrapped(l)).collect()
    }
}

fn table(cells: &[Cell]) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("", Left),
        ("MB/s", Right),
        ("spread %", Right),
        ("loss %", Right),
        ("95 % interval", Right),
        ("CPU s/GB", Right),
        ("", Left),
        ("", Left),
    ]);
    let largest = cells.iter().map(|c| c.bytes_per_s).fold(0.0, f64::max);
    for c in cells {
        let interval = |l: &Loss| format!("{} … {}", percent(l.low), percent(l.high));
        table.row(vec![
            c.target.clone(),
            rate(c.bytes_per_s),
            percent(c.spread.relative()),
            c.loss.as_ref().map(|l| percent(l.loss)).unwrap_or_default(),
            c.loss.as_ref().map(interval).unwrap_or_default(),
            format!("{:.3}", c.cpu_s_per_gb),
            format!("{:<24}", bar(c.bytes_per_s, largest)),
            c.loss.as_ref().map(|l| l.verdict.words().to_string()).unwrap_or_default(),
        ]);
    }
    table.text()
}

/// What was found, a sentence for each target and direction.
pub fn findings(cells: &[Cell], path: Path) -> Vec<String> {
    let path = match path {
        Path::Nbd => "over NBD",
        Path::Engine => "in the engine",
        Path::Kernel => "in the kernel",
    };
    let lossy = cells.iter().filter(|c| c.loss.is_some());
    let mut targets: Vec<&str> = lossy.map(|c| c.target.as_str()).collect();
    targets.dedup();
    let mut seen = Vec::new();
    targets.retain(|t| {
        !seen.contains(t) && {
            seen.push(*t);
            true
        }
    });
    let sentence = |target: &&str| {
        let costs = |direction| -> String {
            let own: Vec<&Cell> = cells.iter().filter(|c| c.target == **target && c.direction == direction).collect();
            let (Some(first), Some(last)) = (own.first(), own.last()) else { return String::new() };
            match own.len() {
                1 => cost(first),
                _ => format!("{}, {}", cost(first), cost(last)),
            }
        };
        let by_kernel = target.starts_with("kernel ");
        let path = if by_kernel { format!("against {KERNEL_BASELINE}") } else { path.to_owned() };
        format!("{target} {path}: writes lose {}; reads lose {}.", costs(Direction::Write), costs(Direction::Read))
    };
    let restless = cells.iter().filter(|c| c.spread.relative() > RESTLESS).count();
    let warning = format!(
        "In {restless} of {} rows the slowest and the fastest sample are more than {:.0} % apart: something else was using \
         the machine. The CPU seconds suffer less from that than the rates.",
        cells.len(),
        RESTLESS * 100.0
    );
    targets.iter().map(sentence).chain((restless > 0).then_some(warning)).collect()
}

/// `12.3 % at 4 KiB`.
fn cost(cell: &Cell) -> String {
    let at = size(cell.block_bytes as u64);
    match &cell.loss {
        Some(Loss { high, verdict: Verdict::Same, .. }) => {
            format!("nothing measurable at {at} (at most {} %)", percent(*high))
        }
        Some(Loss { loss, verdict: Verdict::Faster, .. }) => format!("nothing ({} % faster) at {at}", percent(-loss)),
        Some(Loss { loss, verdict: Verdict::Slower, .. }) => format!("{} % at {at}", percent(*loss)),
        Some(Loss { loss, verdict: Verdict::TooFew, .. }) => {
            format!("{} % at {at} (too few repeats to be sure)", percent(*loss))
        }
        None => String::new(),
    }
}
