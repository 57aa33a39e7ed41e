//! The benchmark of ciphers and key derivations: what is reported is complete. No test looks at a time.

use claviger_engine::{Acceleration, ErrorKind};
use claviger_lab::measure::benchmark::{BenchmarkPlan, Sort};
use claviger_lab::measure::{benchmark, derivation, suites};
use claviger_lab::model::ciphers::{AesAcceleration, CipherSpeed};
use claviger_lab::show::report::{Text, csv};

fn plan() -> BenchmarkPlan {
    BenchmarkPlan {
        suites: suites::named(&["AES".into(), "Serpent".into(), "Serpent-AES".into()]).unwrap(),
        buffers: vec![20_000, 4096],
        threads: 2,
        sector: 512,
        acceleration: Acceleration::On,
        repeats: 2,
    }
}

#[test]
fn every_row_is_complete() {
    let rows = benchmark::measure(&plan(), &|done, total| assert!(done <= total)).unwrap();
    assert_eq!(rows.len(), 6);
    for row in &rows {
        assert!([19_968, 4096].contains(&row.buffer_bytes), "whole sectors");
        assert!(row.encrypt_bytes_per_s > 0.0 && row.decrypt_bytes_per_s > 0.0 && row.passes > 0);
        assert_eq!(row.mean_bytes_per_s, (row.encrypt_bytes_per_s + row.decrypt_bytes_per_s) / 2.0);
        assert_eq!((row.encrypt_samples.len(), row.decrypt_samples.len()), (2, 2));
        assert!(row.encrypt_spread.min <= row.encrypt_bytes_per_s && row.encrypt_bytes_per_s <= row.encrypt_spread.max);
    }
    assert!(rows.text().contains("Hardware-accelerated AES: "));
    assert_eq!(csv(&rows).lines().count(), 7);
}

#[test]
fn sectors_and_thread_counts_of_every_kind_come_back_unchanged() {
    // `measure` fails where the buffer does not hold what it held at first.
    for (threads, sector, buffer) in [(1, 4096, 102_400), (3, 1024, 700_000), (2, 512, 3 << 20), (5, 2048, 2048)] {
        let plan = BenchmarkPlan { threads, sector, buffers: vec![buffer], repeats: 1, ..plan() };
        assert_eq!(benchmark::measure(&plan, &|_, _| ()).unwrap().len(), 3);
    }
}

#[test]
fn rows_are_sorted_within_each_buffer() {
    let mut rows = benchmark::measure(&plan(), &|_, _| ()).unwrap();
    let sorted = |rows: &[CipherSpeed], in_order: &dyn Fn(&CipherSpeed, &CipherSpeed) -> bool| {
        rows.windows(2).all(|w| {
            w[0].buffer_bytes < w[1].buffer_bytes || w[0].buffer_bytes == w[1].buffer_bytes && in_order(&w[0], &w[1])
        })
    };
    benchmark::sort(&mut rows, Sort::Mean);
    assert!(sorted(&rows, &|a, b| a.mean_bytes_per_s >= b.mean_bytes_per_s));
    benchmark::sort(&mut rows, Sort::Encryption);
    assert!(sorted(&rows, &|a, b| a.encrypt_bytes_per_s >= b.encrypt_bytes_per_s));
    benchmark::sort(&mut rows, Sort::Decryption);
    assert!(sorted(&rows, &|a, b| a.decrypt_bytes_per_s >= b.decrypt_bytes_per_s));
    benchmark::sort(&mut rows, Sort::Name);
    assert!(sorted(&rows, &|a, b| a.cipher < b.cipher));
}

#[test]
fn acceleration_is_reported_as_it_was() {
    let here = AesAcceleration::here(Acceleration::On);
    for acceleration in [Acceleration::On, Acceleration::Off] {
        let plan = BenchmarkPlan { acceleration, buffers: vec![4096], repeats: 1, ..plan() };
        for row in benchmark::measure(&plan, &|_, _| ()).unwrap() {
            match (here, acceleration) {
                (AesAcceleration::NotAvailable, _) => assert_eq!(row.acceleration, AesAcceleration::NotAvailable),
                (_, Acceleration::On) => assert_eq!(row.acceleration, AesAcceleration::On),
                (_, Acceleration::Off) => assert_eq!(row.acceleration, AesAcceleration::Off),
            }
            let expected = row.acceleration == AesAcceleration::On && row.cipher.contains("AES");
            assert_eq!(row.aes_instructions, expected, "{row:?}");
        }
    }
}

#[test]
fn what_makes_no_sense_is_misuse() {
    for bad in [
        BenchmarkPlan { repeats: 0, ..plan() },
        BenchmarkPlan { threads: 0, ..plan() },
        BenchmarkPlan { sector: 520, ..plan() },
        BenchmarkPlan { sector: 8192, ..plan() },
        BenchmarkPlan { buffers: vec![100], ..plan() },
    ] {
        assert!(matches!(benchmark::measure(&bad, &|_, _| ()).unwrap_err().kind, ErrorKind::Misuse(_)));
    }
}

#[test]
fn key_derivations() {
    let report = derivation::measure(2, 1).unwrap();
    assert_eq!(report.derivations.len(), 6);
    assert!(report.derivations.iter().all(|d| d.milliseconds > 0.0 && d.per_second > 0.0 && d.key_bytes == 192));
    assert!(report.trial.milliseconds > 0.0 && report.trial.threads == 2 && report.refusal.milliseconds > 0.0);
    assert!(report.text().contains("Whirlpool"));
    let cost = |format: &str| report.guesses.iter().find(|g| g.format == format).expect(format);
    for (slow, fast) in [("LUKS2", "LUKS1"), ("VeraCrypt", "TrueCrypt"), ("BitLocker", "plain")] {
        assert!(
            cost(slow).per_second < cost(fast).per_second && cost(slow).bits < cost(fast).bits,
            "{:?}",
            report.guesses
        );
    }
    assert!(report.guesses.is_sorted_by(|a, b| a.per_second <= b.per_second));
    assert!(derivation::measure(0, 1).is_err() && derivation::measure(1, 0).is_err());
}
