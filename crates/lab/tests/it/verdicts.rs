//! What a run says of a study's conclusions, and what forbids it to say anything.

use claviger_lab::model::figures::{Run, RunPlan};
use claviger_lab::model::machine::OtherLoad;
use claviger_lab::model::plan::Backing;
use claviger_lab::model::study::Study;
use claviger_lab::show::study::conclusions;
use claviger_lab::show::summary::Summary;

use crate::sample;

/// At least half of the speed is left: true of the sample, where a fifth is lost.
const STUDY: &str = r#"
name = "sample"
title = "a study"
about = "It repeats something."
facilities = ["plain", "luks2"]
thorough = { scale = 1.0, repeats = 24, volume = 1 }
standard = { scale = 0.1, repeats = 24, volume = 1 }
quick = { scale = 0.01, repeats = 5, volume = 1 }
workload = [{ name = "dd" }]
table = []

[[conclusion]]
text = "It is fast."
source = "5.3"
check = [{ workload = "dd", operation = "write", x = 1048576, facility = "luks2", against = "plain", at-least = 0.5 }]
"#;

/// The verdict and its reason, of the sample after some changes to it and to the study.
fn said(study: &str, change: impl Fn(&mut Run)) -> (&'static str, String) {
    let study: Study = toml::from_str(study).expect("a study");
    let mut run = sample::run();
    run.plan.scale = 1.0;
    change(&mut run);
    run.plan = RunPlan::new((*run.plan).clone(), Some(study.clone()));
    let judged = conclusions(&study, &run, &Summary::of(&run)).remove(0);
    (judged.verdict, judged.why)
}

/// Samples of this share of the others, in one pass.
fn with_an_outlier(run: &mut Run, share: f64) {
    let passes = run.passes.iter_mut().filter(|p| p.facility == "luks2" && p.round == Some(1));
    passes.flat_map(|pass| &mut pass.measures).for_each(|measure| measure.value *= share);
}

#[test]
fn a_run_of_the_studys_size_on_its_medium_is_judged() {
    let (verdict, why) = said(STUDY, |_| {});
    assert_eq!(verdict, "Still true", "{why}");
    let slow = STUDY.replace("at-least = 0.5", "at-most = 0.5");
    assert_eq!(said(&slow, |_| {}).0, "No longer");
    // Both ends of a range count.
    let range = STUDY.replace("at-least = 0.5", "at-least = 0.3, at-most = 0.5");
    assert_eq!(said(&range, |_| {}).0, "No longer");
}

#[test]
fn too_little_data_or_another_medium_forbids_a_verdict() {
    let (verdict, why) = said(STUDY, |run| run.plan.scale = 0.02);
    assert_eq!(verdict, "Cannot be said");
    assert!(why.starts_with("This run moved 2.0 % of the study's data; a verdict takes 10.0 %."), "{why}");
    assert_eq!(said(&STUDY.replace("source", "scale = 0.0\nsource"), |run| run.plan.scale = 0.02).0, "Still true");
    let on_disk = STUDY.replace("about =", "medium = \"disk\"\nabout =");
    let (verdict, why) = said(&on_disk, |_| {});
    assert_eq!(verdict, "Cannot be said");
    assert!(why.starts_with("The study's data were on a disk; this run's are in memory."), "{why}");
    let there = |run: &mut Run| run.plan.backing = Backing::Folder("/srv".into());
    assert_eq!(said(&on_disk, there).0, "Still true");
    // A conclusion about a RAM disk in a study of disks.
    let in_memory = on_disk.replace("source", "medium = \"memory\"\nsource");
    assert_eq!(said(&in_memory, |_| {}).0, "Still true");
}

#[test]
fn unsteady_figures_and_other_load_forbid_what_they_could_change() {
    let tight = STUDY.replace("at-least = 0.5", "at-least = 0.72");
    assert_eq!(said(&tight, |_| {}).0, "Still true");
    let (verdict, why) = said(&tight, |run| with_an_outlier(run, 0.8));
    assert_eq!(verdict, "Cannot be said", "{why}");
    // What slows a whole round down changes no share of it.
    let drift = |run: &mut Run| {
        let passes = run.passes.iter_mut().filter(|pass| pass.round == Some(1));
        passes.flat_map(|pass| &mut pass.measures).for_each(|measure| measure.value *= 0.6);
    };
    assert_eq!(said(&tight, drift).0, "Still true");
    assert_eq!(said(STUDY, |run| with_an_outlier(run, 0.8)).0, "Still true", "every sample says so");
    let busy = |run: &mut Run| {
        run.machine.cpus = 2;
        run.sittings[0].idle_cpu = 1.9;
    };
    let (verdict, why) = said(STUDY, busy);
    assert_eq!(verdict, "Cannot be said");
    assert!(why.contains("Other programs kept 1.9 of 2 processors busy"), "{why}");
    // Where each pass was watched, only what happened during it counts.
    let watched = |cpu_s: f64| {
        move |run: &mut Run| {
            busy(run);
            let others = OtherLoad { seconds: 1.0, cpu_s, ..OtherLoad::default() };
            run.passes.iter_mut().for_each(|pass| pass.conditions.others = Some(others));
        }
    };
    assert_eq!(said(STUDY, watched(0.02)).0, "Still true");
    let (verdict, why) = said(STUDY, watched(1.7));
    assert_eq!(verdict, "Cannot be said");
    assert!(why.contains("Other programs kept 1.7 of 2 processors busy"), "{why}");
    // What load cannot have made.
    assert_eq!(said(&STUDY.replace("at-least = 0.5", "at-least = 0.1"), busy).0, "Still true");
}

#[test]
fn a_server_in_front_of_the_baseline_hides_a_part_of_the_loss() {
    let bare = STUDY.replace("about =", "bare = true\nabout =");
    let (verdict, why) = said(&bare, |_| {});
    assert_eq!(verdict, "Cannot be said");
    assert!(why.contains("no server in front of it, and loop was not measured"), "{why}");
    // More is lost than the study has, even so.
    assert_eq!(said(&bare.replace("at-least = 0.5", "at-least = 0.95"), |_| {}).0, "No longer");
    let with_loop = |run: &mut Run| {
        run.plan.facilities.push("loop".into());
        let mut record = run.facilities[0].clone();
        record.name = "loop".into();
        run.facilities.push(record);
        let like: Vec<_> = run.passes.iter().filter(|pass| pass.facility == "plain").cloned().collect();
        run.passes.extend(like.into_iter().map(|mut pass| {
            pass.facility = "loop".into();
            pass
        }));
    };
    assert_eq!(said(&bare, with_loop).0, "Still true");
}

#[test]
fn a_premise_that_does_not_hold_forbids_a_verdict() {
    let premise = |least: f64| {
        let check = format!(
            "premise = [{{ workload = \"dd\", operation = \"write\", x = 1048576, facility = \"plain\", against = \"luks2\", at-least = {least} }}]\nsource"
        );
        said(&STUDY.replace("source", &check), |_| {})
    };
    assert_eq!(premise(1.0).0, "Still true");
    let (verdict, why) = premise(2.0);
    assert!(verdict == "Cannot be said" && why.starts_with("Its premise is not certain here: dd"), "{why}");
}

#[test]
fn the_best_of_several_is_what_a_figure_is_compared_with() {
    let best = |least: f64| {
        let best = format!("against-best = [\"veracrypt-serpent\", \"plain\"], at-least = {least}");
        said(&STUDY.replace("against = \"plain\", at-least = 0.5", &best), |_| {})
    };
    let (verdict, why) = best(0.5);
    assert!(verdict == "Still true" && why.contains("% of plain"), "{why}");
    assert_eq!(best(0.95).0, "No longer");
    let itself = STUDY.replace("against = \"plain\", at-least = 0.5", "against-best = [\"luks2\"], at-least = 0.97");
    let (verdict, why) = said(&itself, |_| {});
    assert!(verdict == "Still true" && why.ends_with("luks2 is the best itself."), "{why}");
}
