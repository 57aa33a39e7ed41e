//! Two runs compared: what changed is found, and what did not is not.

use claviger_lab::model::case::{Axis, Case, Unit};
use claviger_lab::model::figures::{FacilityRecord, Measure, Pass, Run, RunPlan};
use claviger_lab::model::machine::Conditions;
use claviger_lab::model::plan::Plan;
use claviger_lab::model::random::Random;
use claviger_lab::model::statistics::LossVerdict;
use claviger_lab::show::changes::{Basis, FigureChange, LEAST, RunChanges};

use super::simulation::{facility, run};

const FACILITIES: [&str; 3] = ["plain", "LUKS2", "VeraCrypt"];
const CASES: usize = 24;
const ROUNDS: usize = 5;

/// What a run would find on a machine of this speed: each facility's share of it, 2 % of noise, and in one of 20
/// passes something else takes up to a third of the time.
pub fn simulated(seed: u64, speed: f64, shares: [f64; 3]) -> Run {
    let mut random = Random::new(seed);
    let mut pass = |round: usize, facility: usize| {
        let stall = if random.below(20) == 0 { 1.0 - random.below(33) as f64 / 100.0 } else { 1.0 };
        let mut measure = |case: usize| {
            let noise: f64 = (0..12).map(|_| random.below(1_000_000) as f64 / 1e6).sum::<f64>() - 6.0;
            let rate = speed * (case + 1) as f64 * shares[facility] * (1.0 + 0.02 * noise) * stall;
            let (value, unit) = match case % 3 {
                0 => (1e9 / rate, Unit::Seconds),
                _ => (rate, Unit::BytesPerS),
            };
            let case = Case::new("write").at(Axis::Block, (512 << (case % 12)) as f64).of(format!("{}", case / 12));
            Measure { case, value, unit, bytes: 1 << 20, seconds: 1.0, cpu_s: None }
        };
        Pass {
            facility: FACILITIES[facility].into(),
            workload: "dd".into(),
            round: Some(round),
            position: facility,
            at: "2026-01-01T00:00:00Z".into(),
            conditions: Conditions::default(),
            measures: (0..CASES).map(&mut measure).collect(),
        }
    };
    let passes = (0..ROUNDS * FACILITIES.len()).map(|n| pass(n / FACILITIES.len(), n % FACILITIES.len())).collect();
    let record = |name| FacilityRecord { version: Some("1".into()), ..facility(name) };
    let run = run(&["dd"], seed);
    let facilities = FACILITIES.map(String::from).to_vec();
    let plan = Plan { facilities, min_repeats: ROUNDS, max_repeats: ROUNDS, size: 1 << 26, ..(*run.plan).clone() };
    Run { plan: RunPlan::new(plan, None), facilities: FACILITIES.map(record).to_vec(), passes, ..run }
}

const SHARES: [f64; 3] = [1.0, 0.8, 0.5];

#[test]
fn two_runs_of_the_same_thing_show_next_to_nothing() {
    const TRIALS: u64 = 30;
    let alarms: Vec<usize> = (0..TRIALS)
        .map(|seed| {
            let changes =
                RunChanges::between(&simulated(2 * seed, 1e9, SHARES), &simulated(2 * seed + 1, 1e9, SHARES), 0.0);
            assert_eq!((changes.basis, changes.cells.len()), (Basis::Speeds, CASES * FACILITIES.len()));
            let (slower, faster) = changes.counts();
            slower + faster
        })
        .collect();
    // Even without a limit: with a rate of 5 %, one comparison in 20 may show anything at all.
    let with_any = alarms.iter().filter(|&&n| n > 0).count();
    println!("false alarms by trial: {alarms:?}");
    assert!(with_any <= 4, "{with_any} of {TRIALS} comparisons show a change: {alarms:?}");
}

#[test]
fn a_slowdown_of_ten_per_cent_is_found_where_it_is() {
    const TRIALS: u64 = 10;
    let (mut found, mut elsewhere) = (0, 0);
    for seed in 0..TRIALS {
        let old = simulated(1000 + seed, 1e9, SHARES);
        let new = simulated(2000 + seed, 1e9, [SHARES[0], SHARES[1] * 0.9, SHARES[2]]);
        let changes = RunChanges::between(&old, &new, LEAST);
        let slower = changes.slower_by(0.0);
        found += slower.filter(|c| c.place.facility == "LUKS2" && (c.change + 0.1).abs() < 0.08).count();
        elsewhere +=
            changes.cells.iter().filter(|c| c.verdict != LossVerdict::Same && c.place.facility != "LUKS2").count();
    }
    let share = found as f64 / (TRIALS as usize * CASES) as f64;
    println!("found {share}, elsewhere {elsewhere}");
    assert!(share > 0.7, "10 % is found in {share} of the cells");
    assert!(elsewhere as f64 <= 0.1 * found as f64, "{elsewhere} changes where there are none, beside {found}");
}

#[test]
fn on_another_machine_only_losses_are_compared() {
    let old = simulated(1, 1e9, SHARES);
    let mut new = simulated(2, 3e9, [SHARES[0], SHARES[1], SHARES[2] * 0.8]);
    new.machine.cpu_model = "another".into();
    let changes = RunChanges::between(&old, &new, LEAST);
    assert_eq!(changes.basis, Basis::Losses);
    assert!(changes.because[0].contains("different machines"), "{:?}", changes.because);
    assert_eq!(changes.cells.len(), 2 * CASES, "a baseline has no loss");
    assert!(changes.differences.iter().any(|d| d.what == "processor" && d.new == "another"));
    // Three times as fast, and yet: LUKS2 loses as before, VeraCrypt more.
    let slower: Vec<&FigureChange> = changes.slower_by(0.1).collect();
    assert!(slower.len() > CASES / 2 && slower.iter().all(|c| c.place.facility == "VeraCrypt"), "{slower:?}");
    assert!((slower[0].old - 0.5).abs() < 0.1 && (slower[0].new - 0.6).abs() < 0.1, "{:?}", slower[0]);
}

#[test]
fn another_plan_is_not_the_same_work() {
    let old = simulated(1, 1e9, SHARES);
    let mut new = simulated(2, 1e9, SHARES);
    new.plan.scale = 0.1;
    new.facilities[1].version = Some("2".into());
    let changes = RunChanges::between(&old, &new, LEAST);
    assert_eq!(changes.basis, Basis::Losses);
    let what: Vec<&str> = changes.differences.iter().map(|d| d.what.as_str()).collect();
    assert_eq!(what, ["scale", "version of LUKS2"]);
    new.plan.scale = 1.0;
    assert_eq!(RunChanges::between(&old, &new, LEAST).basis, Basis::Speeds);
}

#[test]
fn what_is_missing_or_too_little_is_said() {
    let old = simulated(1, 1e9, SHARES);
    let mut new = simulated(1, 1e9, SHARES);
    for pass in new.passes.iter_mut().filter(|p| p.facility == "LUKS2") {
        pass.measures.retain(|m| m.case.x != Some(512.0));
    }
    new.passes.retain(|p| p.facility != "VeraCrypt" || p.round != Some(0));
    let zero = new.passes.iter_mut().find(|p| p.facility == "plain").expect("a pass");
    zero.measures[0].value = 0.0;
    let changes = RunChanges::between(&old, &new, LEAST);
    assert_eq!((changes.only_old.len(), changes.only_new.len()), (2, 0));
    assert!(changes.only_old.iter().all(|p| p.facility == "LUKS2" && p.case.x == Some(512.0)));
    let too_few = changes.not_compared.iter().filter(|(p, why)| p.facility == "VeraCrypt" && why.contains("4 samples"));
    assert_eq!(too_few.count(), CASES);
    assert!(changes.not_compared.iter().any(|(p, why)| p.facility == "plain" && why.contains("is 0")));
    // Of the rest, nothing changed at all.
    assert!(changes.cells.iter().all(|c| c.change == 0.0 && c.verdict == LossVerdict::Same));
}
