//! `claviger benchmark` and `claviger lab` as programs see them. No test looks at a time.

use std::process::{Command, Output};

use serde_json::Value;

const SUITES: [&str; 8] = [
    "AES",
    "AES-Twofish",
    "AES-Twofish-Serpent",
    "Serpent",
    "Serpent-AES",
    "Serpent-Twofish-AES",
    "Twofish",
    "Twofish-Serpent",
];

fn claviger(args: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_claviger")).args(args.split(' ')).output().expect("it starts")
}

fn stdout(args: &str) -> String {
    let output = claviger(args);
    assert!(output.status.success(), "{args}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn json(args: &str) -> Value {
    serde_json::from_str(&stdout(args)).expect("JSON")
}

fn column<'a>(rows: &'a Value, name: &str) -> Vec<&'a Value> {
    rows.as_array().expect("a list").iter().map(|row| &row[name]).collect()
}

fn speeds(rows: &Value, name: &str) -> Vec<f64> {
    column(rows, name).iter().map(|v| v.as_f64().expect("a number")).collect()
}

#[test]
fn json_has_every_suite_and_every_field() {
    let rows = json("benchmark --buffer 4096 --repeats 1 --sort name --json")["ciphers"].take();
    assert_eq!(column(&rows, "cipher"), SUITES);
    for row in rows.as_array().unwrap() {
        for number in ["buffer_bytes", "threads", "sector_bytes", "repeats", "passes", "piece_bytes"] {
            assert!(row[number].as_u64().is_some_and(|n| n > 0), "{number}");
        }
        for speed in ["encrypt_bytes_per_s", "decrypt_bytes_per_s", "mean_bytes_per_s"] {
            assert!(row[speed].as_f64().is_some_and(|n| n > 0.0), "{speed}");
        }
        assert!(["on", "off", "not available"].contains(&row["acceleration"].as_str().unwrap()));
        assert!(row["kernel"].as_str().is_some_and(|k| !k.is_empty()));
        assert!(row["encrypt_spread"]["min"].as_f64() <= row["encrypt_spread"]["max"].as_f64());
        assert_eq!(row["decrypt_samples"].as_array().unwrap().len(), 1);
    }
}

#[test]
fn csv_has_a_line_for_each_suite() {
    let text = stdout("benchmark --buffer 4096 --repeats 1 --csv");
    let lines: Vec<_> = text.lines().collect();
    let names: Vec<_> = lines[0].split(',').collect();
    for name in ["cipher", "buffer_bytes", "threads", "acceleration", "encrypt_bytes_per_s", "mean_bytes_per_s"] {
        assert!(names.contains(&name), "{name}");
    }
    assert_eq!(lines.len(), 9);
    for suite in SUITES {
        assert!(lines.iter().any(|l| l.starts_with(&format!("{suite},"))), "{suite}");
    }
    assert!(lines.iter().all(|l| l.split(',').count() == names.len()));
}

#[test]
fn options_narrow_and_sort() {
    let narrow = "benchmark --cipher serpent --cipher AES --repeats 2 --json";
    let rows = json(&format!("{narrow} --buffer 100KB --threads 1 --sector 4096"))["ciphers"].take();
    assert_eq!(column(&rows, "buffer_bytes"), [102_400, 102_400]);
    assert_eq!(column(&rows, "threads"), [1, 1]);
    assert_eq!(column(&rows, "sector_bytes"), [4096, 4096]);
    let mut names = column(&rows, "cipher");
    names.sort_by_key(|n| n.to_string());
    assert_eq!(names, ["AES", "Serpent"]);
    for (sort, key) in
        [("mean", "mean_bytes_per_s"), ("encryption", "encrypt_bytes_per_s"), ("decryption", "decrypt_bytes_per_s")]
    {
        let rows = json(&format!("{narrow} --buffer 4096 --sort {sort}"))["ciphers"].take();
        assert!(speeds(&rows, key).is_sorted_by(|a, b| a >= b), "{sort}");
    }
    let rows = json(&format!("{narrow} --buffer 8192 --buffer 512 --sort name"))["ciphers"].take();
    assert_eq!(column(&rows, "buffer_bytes"), [512, 512, 8192, 8192]);
    assert_eq!(column(&rows, "cipher"), ["AES", "Serpent", "AES", "Serpent"]);
}

#[test]
fn no_aes_switches_the_acceleration_off() {
    let acceleration = |more: &str| {
        let rows = json(&format!("benchmark --cipher AES --buffer 4096 --repeats 1 --json{more}"))["ciphers"].take();
        (rows[0]["acceleration"].clone(), rows[0]["aes_instructions"].clone())
    };
    match acceleration("") {
        (here, used) if here == "on" => {
            assert_eq!(used, true);
            assert_eq!(acceleration(" --no-aes"), ("off".into(), false.into()));
        }
        (here, _) => {
            assert_eq!(here, "not available");
            assert_eq!(acceleration(" --no-aes"), ("not available".into(), false.into()));
        }
    }
}

#[test]
fn the_table_is_for_people() {
    let text = stdout("benchmark --buffer 4096 --repeats 1");
    assert!(text.contains("Hardware-accelerated AES: ") && text.contains("Buffer of 4 KiB"));
    assert!(SUITES.iter().all(|s| text.lines().any(|l| l.starts_with(s))));
}

#[test]
fn key_derivations_are_measured_and_reported() {
    let report = json("benchmark --kdf --repeats 1 --threads 2 --json");
    for (hash, iterations) in [("RIPEMD-160", 2000), ("SHA-512", 1000), ("Whirlpool", 1000), ("SHA-1", 2000)] {
        let is = |row: &&Value| row["hash"] == hash && row["iterations"] == iterations;
        let row = report["derivations"].as_array().unwrap().iter().find(is).expect(hash);
        assert!(row["milliseconds"].as_f64() > Some(0.0) && row["per_second"].as_f64() > Some(0.0));
    }
    assert_eq!(report["trial"]["threads"], 2);
    assert!(stdout("benchmark --kdf --repeats 1 --csv").starts_with("hash,iterations,"));
}

#[test]
fn wrong_options_are_misuse() {
    for args in [
        "benchmark --cipher ROT13",
        "benchmark --buffer 100",
        "benchmark --buffer many",
        "benchmark --threads 0",
        "benchmark --sector 513",
        "benchmark --sort luck",
        "benchmark --repeats 0",
        "benchmark --json --csv",
        "benchmark --kdf --cipher AES",
        "lab",
        "lab run --preset floppy",
    ] {
        let output = claviger(args);
        assert_eq!(output.status.code(), Some(1), "{args}: {output:?}");
        assert!(!output.stderr.is_empty() && output.stdout.is_empty(), "{args}");
    }
}
