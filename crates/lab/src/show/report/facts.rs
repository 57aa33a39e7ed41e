//! The machine and the method of a run in words: the lines before the figures.

use crate::model::figures::{Disturbance, Run};
use crate::model::plan::{Backing, Caches, Plan};
use crate::model::words::{counted, percent, rate, size, word};

use super::panels::plain;

/// What was measured, on what and how: names and values.
pub(super) fn facts(run: &Run) -> Vec<(&'static str, String)> {
    let Run { plan, machine, .. } = run;
    let kernels: Vec<String> =
        machine.cipher_kernels.iter().map(|k| format!("{} {}", k.cipher, k.accelerated)).collect();
    let mut facts = vec![
        ("Processor", format!("{}; {} in use", machine.cpu_model, counted(machine.cpus, "processor"))),
        ("Features", or_none(machine.cpu_features.join(", "))),
        ("Our ciphers' kernels", or_none(kernels.join(", "))),
        ("Memory", format!("{} GB; huge pages: {}", plain(machine.memory_bytes as f64 / 1e9), machine.huge_pages)),
        ("System", machine.kernel.clone()),
        ("Program", format!("claviger {}", machine.program_version)),
        ("Command", machine.command_line.join(" ")),
        ("Time", sittings(run)),
        ("Volumes", format!("{} each, {}", size(plan.size), media(plan))),
        ("Plan", plan_words(run)),
        ("Order", format!("facilities take turns in random order; seed {}", plan.seed)),
        ("Page cache", caches(run)),
        ("Clock", clock(run)),
        ("Governor", governor(&machine.governor)),
        ("Hypervisor", steal(run)),
        ("Throttling", throttling(run)),
        ("Energy", energy(run)),
        ("Other programs", others(run)),
    ];
    if let Some(idle) = run.sittings.last().map(|s| s.idle_cpu).filter(|idle| idle.is_finite()) {
        facts.push(("Idle machine", format!("{} s of processor time in each second before measuring", plain(idle))));
    }
    if !run.generator.is_empty() {
        facts.push(("Data", generator(run)));
    }
    facts
}

/// How the figures were evaluated, in whole sentences.
pub(super) fn method(run: &Run) -> Vec<String> {
    vec![
        "A figure is the median of its samples, without the warm-up. Beside it is the 95 % interval of that median, by \
         bootstrap. Outliers are marked, kept and counted."
            .into(),
        "The loss is the missing share of the baseline's performance; the baseline is the same layer without encryption. In each \
         round a facility and its baseline take turns, and the loss is the median of the losses within rounds. Where times are \
         measured, performance is 1 / time. A verdict is given if the whole 95 % interval of the loss lies on one side of zero; \
         otherwise there is no measurable difference."
            .into(),
        "Facilities of different layers (those with different baselines) differ in more than encryption, such as a file system \
         or a protocol: each is judged against its own baseline. Do not compare speeds across layers."
            .into(),
        format!(
            "A figure is steady if its relative standard deviation is at most {} %. A figure that is not steady after {} is \
             marked as unsteady.",
            percent(run.plan.steady),
            counted(run.plan.max_repeats, "pass")
        ),
        "MB/s is 10^6 bytes per second, GB is 10^9 bytes; KiB, MiB and GiB are powers of 1024. CPU s/GB is the \
         processor time of the whole machine for each GB. It includes servers that poll for requests, the generation of data and \
         requests, and other programs; only fio's own start is subtracted. For the serving processes alone, see the workload \
         processor."
            .into(),
    ]
}

fn or_none(text: String) -> String {
    if text.is_empty() { "none".into() } else { text }
}

/// When it was measured, and how busy the machine was.
pub(super) fn sittings(run: &Run) -> String {
    let one = |s: &crate::model::figures::Sitting| match &s.after {
        Some(after) => {
            format!("{} to {}, load {} before and {} after", s.before.at, after.at, s.before.load_1min, after.load_1min)
        }
        None => format!("{}, load {}, interrupted", s.before.at, s.before.load_1min),
    };
    or_none(run.sittings.iter().map(one).collect::<Vec<_>>().join("; "))
}

/// Where the data are, with the name of each medium but the first, as it stands behind those of facilities.
fn media(plan: &Plan) -> String {
    let others = plan.more.iter().enumerate().map(|(at, medium)| {
        let name = plan.on_medium("", at + 1).unwrap_or_default();
        format!("{} ({name})", backing(medium))
    });
    [backing(&plan.backing)].into_iter().chain(others).collect::<Vec<_>>().join("; ")
}

fn backing(backing: &Backing) -> String {
    match backing {
        Backing::Tmpfs(path) => format!("files in memory ({})", path.display()),
        Backing::Folder(path) => format!("files in {}", path.display()),
        Backing::Device(path) => format!("on the block device {}", path.display()),
    }
}

fn plan_words(run: &Run) -> String {
    let plan = &run.plan;
    let level = word(&plan.level);
    let made = run.passes.iter().filter(|p| p.round.is_some()).count();
    let most = counted(plan.max_repeats, "pass");
    let passes = match plan.min_repeats == plan.max_repeats {
        true => format!("{most} of everything"),
        false => format!(
            "{} to {most} of everything, until the relative standard deviation is at most {} %",
            plan.min_repeats,
            percent(plan.steady)
        ),
    };
    format!(
        "{level}; data sets of {} % of the studies' size; {passes}; {} made and {} of warm-up",
        plain(plan.scale * 100.0),
        counted(made, "pass"),
        run.passes.len() - made
    )
}

fn caches(run: &Run) -> String {
    let dropped = run.passes.iter().filter(|p| p.conditions.caches_dropped).count();
    match run.plan.caches {
        Caches::Dropped => format!("dropped before {dropped} of {}", counted(run.passes.len(), "pass")),
        Caches::Warm => "not dropped: reads may come from memory".into(),
    }
}

fn clock(run: &Run) -> String {
    let mhz: Vec<f64> = run.passes.iter().filter_map(|p| p.conditions.mhz).filter(|mhz| mhz.is_finite()).collect();
    match (mhz.iter().copied().reduce(f64::min), mhz.iter().copied().reduce(f64::max)) {
        (Some(low), Some(high)) => format!("{low:.0} to {high:.0} MHz"),
        _ => "not reported by the system".into(),
    }
}

fn governor(governor: &str) -> String {
    if governor.is_empty() { "not reported by the system".into() } else { governor.to_owned() }
}

fn steal(run: &Run) -> String {
    let most = run.passes.iter().map(|p| p.conditions.steal_share).filter(|s| s.is_finite()).fold(0.0, f64::max);
    format!("took up to {} % of the processors' time during a pass", percent(most))
}

fn others(run: &Run) -> String {
    let Disturbance { watched, again, mean, worst, .. } = run.disturbance();
    match watched {
        0 => "not watched during the passes".into(),
        _ => format!(
            "used {} % of one processor on average and {} % in the worst pass; {} repeated",
            percent(mean),
            percent(worst),
            counted(again, "disturbed pass")
        ),
    }
}

fn throttling(run: &Run) -> String {
    let counts: Vec<u64> = run.passes.iter().filter_map(|p| p.conditions.throttled).collect();
    match counts.iter().sum::<u64>() {
        _ if counts.is_empty() => "not reported by the system".into(),
        0 => "none".into(),
        n => format!("{n} times a processor was slowed for its temperature"),
    }
}

fn energy(run: &Run) -> String {
    let all: Vec<f64> = run.passes.iter().filter_map(|p| p.conditions.energy_j).filter(|j| j.is_finite()).collect();
    match all.len() {
        0 => "not reported by the system".into(),
        passes => {
            format!("the processors used {} J in {}", plain(all.iter().sum::<f64>()), counted(passes, "pass"))
        }
    }
}

fn generator(run: &Run) -> String {
    let rates: Vec<String> = run
        .generator
        .iter()
        .map(|g| format!("{} MB/s in blocks of {}", rate(g.bytes_per_s), size(g.block_bytes)))
        .collect();
    format!("incompressible, generated at {}; no write can be faster", rates.join(", "))
}
