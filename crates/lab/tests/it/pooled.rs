//! Runs of several machines together: losses stand side by side, and what the machines agree on is said.

use claviger_lab::model::figures::Run;
use claviger_lab::show::pooled::{PooledRuns, PooledVerdict};
use claviger_lab::show::report::{Text, csv};

use super::changes::simulated;

#[test]
fn what_all_machines_lose_is_told_apart_from_what_some_do() {
    let runs: Vec<Run> = [[1.0, 0.8, 0.5], [1.0, 0.8, 1.0], [1.0, 0.8, 2.0]]
        .into_iter()
        .zip([1e9, 5e8, 2e9])
        .enumerate()
        .map(|(seed, (shares, speed))| simulated(seed as u64, speed, shares))
        .collect();
    let pooled = PooledRuns::of(&runs);
    let of = |facility: &str, verdict| {
        pooled.figures.iter().filter(|f| f.place.facility == facility && f.verdict == verdict).count()
    };
    let all = pooled.figures.len() / 2;
    assert!(of("LUKS2", PooledVerdict::SlowerOnAll) > all * 9 / 10, "{:?}", pooled.sentences());
    assert!(of("VeraCrypt", PooledVerdict::Contradictory) > all * 9 / 10, "{:?}", pooled.sentences());
    assert_eq!((pooled.only_once, pooled.figures.iter().filter(|f| f.place.facility == "plain").count()), (0, 0));
    let rows = pooled.by_workload();
    let luks: Vec<f64> = rows[0].2.iter().flatten().copied().collect();
    assert!(rows[0].0 == "LUKS2" && luks.len() == 3 && luks.iter().all(|loss| (loss - 0.2).abs() < 0.05), "{rows:?}");
    let text = pooled.text();
    assert!(text.contains("Machine 3: ") && text.contains("slower on some machines and faster on others"), "{text}");
    assert_eq!(csv(&pooled.figures).lines().count(), 1 + pooled.figures.len());

    let pooled = PooledRuns::of(&[runs[0].clone(), Run { passes: Vec::new(), ..runs[1].clone() }]);
    assert_eq!((pooled.figures.len(), pooled.only_once), (0, 2 * all));
}
