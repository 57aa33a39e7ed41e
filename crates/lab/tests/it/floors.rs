//! The three floors of the lab: each knows only those below it.

use std::fs;
use std::path::{Path, PathBuf};

/// The floors from below, and how a path to each begins.
const FLOORS: &[(&str, &str)] = &[("model", "crate::model"), ("measure", "crate::measure"), ("show", "crate::show")];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let of = |path: PathBuf| if path.is_dir() { sources(&path) } else { vec![path] };
    entries.flat_map(of).filter(|path| path.extension().is_some_and(|end| end == "rs")).collect()
}

#[test]
fn no_floor_knows_one_above_it() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (height, (floor, _)) in FLOORS.iter().enumerate() {
        let files = sources(&src.join(floor));
        assert!(!files.is_empty(), "{floor}");
        for file in files {
            let text = fs::read_to_string(&file).expect("a source");
            for (_, above) in &FLOORS[height + 1..] {
                let line = text.lines().find(|line| line.contains(above));
                assert_eq!(line, None, "{} names {above}, which is above it", file.display());
            }
            assert!(!text.contains("use crate::{"), "{}: name the floor in each line", file.display());
        }
    }
}
