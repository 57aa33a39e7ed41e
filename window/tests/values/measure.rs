use super::*;
use crate::texts::ENGLISH;
use serde_json::json;

fn done(cipher: &str, mean: f64) -> Done {
    let row =
        json!({"cipher": cipher, "encrypt_bytes_per_s": mean, "decrypt_bytes_per_s": mean, "mean_bytes_per_s": mean});
    Done { out: json!({"ciphers": [row]}), ..Done::default() }
}

#[test]
fn one_after_the_other_the_fastest_first() {
    let mut measure = Measure::new(vec!["AES".into(), "Serpent".into()], Path::new("/nowhere"), &ENGLISH);
    measure.aes = false;
    let first = measure.begin().expect("a call").text().join(" ");
    assert_eq!(first, "benchmark --cipher AES --buffer 5MB --repeats 3 --no-aes");
    assert!(measure.finished(&done("AES", 1e9)).expect("a call").text().contains(&"Serpent".to_owned()));
    assert!(measure.finished(&done("Serpent", 4e9)).is_none() && measure.at.is_none());
    let rows: Vec<_> = measure.rows.iter().map(|row| (&*row.cipher, measure.share(row))).collect();
    assert_eq!(rows, [("Serpent", 1.0), ("AES", 0.25)]);
    measure.begin();
    measure.stop();
    assert!(measure.rows.is_empty() && measure.finished(&Done::default()).is_none());
    assert_eq!((Row::speed(2.34e9), Row::speed(5e8)), ("2.3 GB/s".into(), "500 MB/s".into()));
}

#[test]
fn figures_of_the_lab_become_a_table() {
    let cell = |facility: &str, x: u32, median: f64, loss: Value| {
        let case = json!({"operation": "read", "series": "", "x": x, "axis": "block"});
        json!({"facility": facility, "workload": "dd", "case": case, "unit": "bytes_per_s", "median": median, "loss": loss})
    };
    let cells = [
        cell("plain", 512, 2e9, Value::Null),
        cell("LUKS2", 512, 1e9, json!({"loss": 0.5})),
        cell("LUKS2", 4096, 3e8, Value::Null),
    ];
    let told = json!({"summary": {"cells": cells, "findings": ["Slow."], "warnings": ["Noise."]}});
    let found = found(&told, Path::new("/out")).expect("a summary");
    assert_eq!(
        (&found.facilities[..], found.page.to_str()),
        (&["plain".to_owned(), "LUKS2".into()][..], Some("/out/report.html"))
    );
    let row = |what: &str, figures: [&str; 2]| (what.to_owned(), figures.map(str::to_owned).to_vec());
    let rows = [row("dd, read, 512 bytes", ["2.0 GB/s", "1.0 GB/s (-50 %)"]), row("dd, read, 4 KiB", ["", "300 MB/s"])];
    assert_eq!((&found.rows[..], found.remarks.join(" ")), (&rows[..], "Slow. Noise.".to_owned()));
    assert_eq!([figure(0.002, "seconds"), figure(2.5, "per_s"), figure(0.25, "share")], ["2.00 ms", "2/s", "25 %"]);
}

#[test]
fn a_run_without_a_report_was_interrupted() {
    let home = tempfile::tempdir().expect("a folder");
    let run = home.path().join("claviger-lab-2");
    assert_eq!(interrupted(home.path()), None);
    fs::create_dir(&run).expect("a folder");
    fs::write(run.join("run.jsonl"), "").expect("a file");
    assert_eq!(interrupted(home.path()), Some(run.clone()));
    fs::write(run.join(PAGE), "").expect("a file");
    assert_eq!(interrupted(home.path()), None);
}
