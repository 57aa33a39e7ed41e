//! The published figures, and what encryption cost in them, as the studies print it themselves.

use claviger_lab::model::case::Axis;
use claviger_lab::model::published::{Figure, all};
use claviger_lab::show::published::{PublishedLoss, losses};

/// The loss that a document prints, in per cent, and ours.
fn printed_and_computed(printed_in: &str, figures_in: &str) -> Vec<(f64, f64)> {
    let printed = |f: &&Figure| {
        f.study == "bsi2010" && f.table == printed_in && f.metric == "loss against unencrypted" && !f.is_doubtful()
    };
    let pair = |printed: &Figure| {
        let same = |l: &&PublishedLoss| {
            let f = &l.figure;
            f.table == figures_in
                && (&f.platform, &f.cpu_mode, &f.power_mode)
                    == (&printed.platform, &printed.cpu_mode, &printed.power_mode)
                && (&f.parameter, &f.filesystem, &f.cipher)
                    == (&printed.parameter, &printed.filesystem, &printed.cipher)
                && f.aes_acceleration == printed.aes_acceleration
        };
        let ours = losses().iter().filter(|l| l.figure.study == "bsi2010").find(same);
        (printed.value, ours.unwrap_or_else(|| panic!("no loss for {printed:?}")).loss * 100.0)
    };
    all().iter().filter(printed).map(pair).collect()
}

#[test]
fn losses_are_those_that_the_bsi_prints() {
    for (printed_in, figures_in, count) in [("9", "8", 31), ("11", "10", 32), ("13", "12", 12), ("5.6.2", "5.6.2", 119)]
    {
        let pairs = printed_and_computed(printed_in, figures_in);
        assert_eq!(pairs.len(), count, "table {printed_in}");
        for (printed, computed) in pairs {
            assert!(
                (printed - computed).abs() < 0.0101,
                "table {printed_in}: {printed} is printed, {computed} computed"
            );
        }
    }
}

/// One of them would be a gain of 432,287 %.
#[test]
fn doubtful_figures_make_no_losses() {
    let doubtful: Vec<&Figure> = all().iter().filter(|f| f.is_doubtful()).collect();
    assert_eq!(doubtful.len(), 9);
    assert!(losses().iter().all(|l| !l.figure.is_doubtful()));
    let baselines: Vec<_> = doubtful.iter().filter(|f| f.is_baseline()).map(|f| (&f.study, f.value)).collect();
    assert_eq!(baselines.len(), 2);
    assert!(losses().iter().all(|l| !baselines.contains(&(&l.figure.study, l.baseline))));
}

#[test]
fn the_best_dbench_of_2013_kept_97_8_per_cent() {
    let at_48 = |l: &&PublishedLoss| l.figure.table == "Appendix B" && l.figure.parameter == "48 clients";
    let kept = losses().iter().filter(at_48).map(|l| 1.0 - l.loss).fold(0.0, f64::max);
    assert!((kept * 100.0 - 97.8).abs() < 0.05, "{kept}");
    assert!(losses().iter().filter(at_48).count() >= 8);
    // The text says "about 98 %".
    let said = losses().iter().find(|l| l.figure.table == "4.4" && l.share_only).expect("in the text");
    assert!((said.loss - 0.02).abs() < 1e-9 && (1.0 - said.loss - kept).abs() < 0.005);
    // Less time than without encryption is a gain.
    let gzip = losses().iter().find(|l| l.figure.workload.starts_with("gzip")).expect("a loss");
    assert!((gzip.loss - (1.0 - 1.0 / 0.81)).abs() < 1e-9 && gzip.loss < 0.0);
}

#[test]
fn medians_of_repetitions() {
    // Medians of 24 runs stand in the summary, and give the same loss.
    let of = |table: &str, facility: &str| {
        let wanted = |l: &&PublishedLoss| {
            let f = &l.figure;
            f.study == "tresorsgx2016"
                && f.table == table
                && f.facility == facility
                && f.workload == "hdparm -T cached"
                && f.metric == "throughput"
        };
        losses().iter().find(wanted).unwrap_or_else(|| panic!("{table}, {facility}")).clone()
    };
    let (summary, full) = (of("Summarized Results", "dm-crypt AES-128"), of("Full Results", "dm-crypt AES-128"));
    assert_eq!((summary.repetitions, full.repetitions), (1, 24));
    assert!((summary.loss - full.loss).abs() < 1e-9 && (summary.loss - (1.0 - 12004.325 / 13289.53)).abs() < 1e-9);
}

#[test]
fn times_and_logical_volumes_have_their_own_baselines() {
    let find = |facility: &str, table: &str| {
        let wanted = |l: &&PublishedLoss| {
            let f = &l.figure;
            f.table == table
                && f.facility == facility
                && f.workload == "sequential I/O, 3 GB file"
                && f.direction == "read"
        };
        losses().iter().find(wanted).expect("a loss")
    };
    let volume = find("dm-crypt (logical volume, LUKS)", "B.3");
    assert!((volume.baseline - 126.471).abs() < 1e-9, "{volume:?}");
    let disk = find("dm-crypt (LUKS)", "B.3");
    assert!((disk.loss - (1.0 - 125.342 / 133.204)).abs() < 1e-9, "{disk:?}");
    // Nothing is a loss of itself, and what has no baseline has no loss.
    assert!(losses().iter().all(|l| !l.figure.is_baseline() && l.loss < 1.0 && l.loss.is_finite()));
    assert!(!losses().iter().any(|l| l.figure.workload == "TrueCrypt benchmark (RAM)"));
}

/// Figure by figure, from the collection's own count.
#[test]
fn every_figure_is_there() {
    for (name, count) in
        [("bsi2010", 2509), ("zhan2010", 4508), ("tresorsgx2016", 321), ("rantanen2013", 1398), ("linux2013", 92)]
    {
        let figures: Vec<&Figure> = all().iter().filter(|figure| figure.study == name).collect();
        assert_eq!(figures.len(), count, "{name}");
        assert!(figures.iter().all(|f| f.value.is_finite() && !f.table.is_empty()), "{name}");
    }
    assert_eq!(all().len(), 2509 + 4508 + 321 + 1398 + 92);
}

#[test]
fn the_same_letters_are_different_units() {
    let first = |workload: &str, wanted: &dyn Fn(&Figure) -> bool| -> Figure {
        all().iter().find(|f| f.workload.starts_with(workload) && wanted(f)).expect("a figure").clone()
    };
    let rate = |f: &Figure| f.in_our_units().expect("known units").0;
    // hdparm counts 2^20 bytes: 342 MB in 3.01 s are 113.62 of its MB/s.
    let hdparm = first("hdparm -t", &|f| f.note == "342 MB in 3.01 s");
    assert!((rate(&hdparm) - 342.0 * 1_048_576.0 / 3.01).abs() / rate(&hdparm) < 1e-3, "{hdparm:?}");
    // dd counts 10^6: 104857600 bytes in 1.02306 s are printed as 102 MB/s.
    let dd = first("dd 100 MB block", &|f| f.run == "1" && f.unit == "MB/s" && f.facility == "none");
    assert!((rate(&dd) - 104_857_600.0 / 1.02306).abs() / rate(&dd) < 0.005, "{dd:?}");
    // A GB of dd is 10^9, of TrueCrypt's window 2^30.
    let dd = first("dd sequential write, RAM disk", &|f| f.note == "printed as 1,8 GB/s");
    assert!((rate(&dd) - 1.8e9).abs() < 1.0, "{dd:?}");
    let window = first("TrueCrypt benchmark", &|f| f.note.ends_with("1,5 GB/s"));
    assert!((rate(&window) - 1.5 * 1_073_741_824.0).abs() < 1.0, "{window:?}");
    // Table 18 and section 5.6.2 are the same measurements in MB and KB of 1024.
    let of = |table: &str| {
        first("IOzone write", &|f| {
            f.table == table && f.platform.starts_with("Acer") && f.filesystem == "EXT3" && f.facility == "none"
        })
    };
    assert!((rate(&of("18")) / rate(&of("5.6.2")) - 1.0).abs() < 1e-3);
    // What does not say how many bytes its MB has is not converted.
    assert_eq!(first("Dbench", &|f| f.metric == "throughput").in_our_units(), None);
    assert_eq!(first("dd sequential", &|f| f.metric.starts_with("loss")).in_our_units(), None);
}

#[test]
fn parameters_are_sizes() {
    let mut figure = all()[0].clone();
    for (text, x, file) in [
        ("block size 4096 B", Some((Axis::Block, 4096.0)), None),
        ("48 clients", Some((Axis::Clients, 48.0)), None),
        ("file 64 KB, record 32 KB", Some((Axis::Block, 32768.0)), Some(65536.0)),
        ("record size 512 (printed \"Byte\")", Some((Axis::Block, 524_288.0)), None),
        ("record size 16384", Some((Axis::Block, 16_777_216.0)), None),
        ("buffer 5 MB", Some((Axis::Block, 5_242_880.0)), None),
        ("tar -xjf", None, None),
        ("", None, None),
    ] {
        figure.parameter = text.into();
        assert_eq!((figure.x(), figure.file_bytes()), (x, file), "{text}");
    }
    // No size of a block or a record is left unread.
    let unread = |f: &&Figure| f.x().is_none() && (f.parameter.contains("size") || f.parameter.contains("clients"));
    assert_eq!(
        all().iter().filter(unread).map(|f| f.parameter.as_str()).collect::<Vec<_>>(),
        vec!["block size 512 KB"; 0]
    );
}

#[test]
fn sources_name_the_place() {
    let place =
        |table: &str| all().iter().find(|f| f.study == "bsi2010" && f.table == table).expect("a figure").source();
    assert_eq!(place("8"), "BSI 2010, table 8");
    assert_eq!(place("5.3.3"), "BSI 2010, 5.3.3");
}
