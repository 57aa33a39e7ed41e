//! Fuzz targets: each parser of untrusted bytes, as a function that must return soon and without a panic, with its
//! initial inputs. The program in the folder `fuzz` runs them under libFuzzer. The tests here run each target over its
//! corpus and over mutations of it, which are the same in every run.
#![forbid(unsafe_code)]

mod corpus;
mod ecryptfs;
mod messages;
mod targets;
mod volumes;

pub use targets::TARGETS;

/// A parser, and its initial inputs.
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// Parses the bytes in all ways that the parser offers.
    pub run: fn(&[u8]),
    /// Inputs that reach deep into the parser.
    pub corpus: fn() -> Vec<Vec<u8>>,
}

/// The target of that name.
///
/// # Panics
/// If there is none.
pub fn target(name: &str) -> &'static Target {
    TARGETS.iter().find(|target| target.name == name).unwrap_or_else(|| panic!("no target is called {name}"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::{Duration, Instant};

    use claviger_testkit::random::Random;

    use super::*;

    /// Mutations per input, besides the input itself.
    const CHANGES: usize = 300;

    /// Time limit for one input, even on a busy machine.
    const LONGEST: Duration = Duration::from_secs(20);

    /// Bytes that parsers tend to trip over.
    const BORDERS: &[u8] = &[0, 1, 0x7f, 0x80, 0xff, b'0', b'9', b'"', b'{', b'-', b':'];

    /// Changes a few bytes, repeats or cuts out a range, or truncates.
    fn changed(input: &[u8], random: &mut Random) -> Vec<u8> {
        let mut bytes = input.to_vec();
        for _ in 0..=random.below(4) {
            if bytes.is_empty() {
                return bytes;
            }
            // Mostly near the beginning, where headers are.
            let reach = if random.below(4) == 0 { bytes.len() } else { bytes.len().min(4096) };
            let at = random.below(reach);
            let len = (random.below(16) + 1).min(bytes.len() - at);
            match random.below(7) {
                0 => bytes[at] ^= 1 << random.below(8),
                1 => bytes[at..at + len].fill(*random.choose(BORDERS)),
                2 => bytes[at..at + len].copy_from_slice(&random.bytes(len)),
                3 => drop(bytes.drain(at..at + len)),
                4 => {
                    let range = bytes[at..at + len].to_vec();
                    bytes.splice(at..at, range);
                }
                5 => {
                    let number = *random.choose(&[0, 1, 511, u64::from(u32::MAX), 1 << 63, u64::MAX, u64::MAX - 511]);
                    let number = if random.below(2) == 0 { number.to_be_bytes() } else { number.to_le_bytes() };
                    let len = (bytes.len() - at).min(8);
                    bytes[at..at + len].copy_from_slice(&number[8 - len..]);
                }
                _ => bytes.truncate(at),
            }
        }
        bytes
    }

    /// Multiplies and varies the mutations: for a longer run without libFuzzer.
    fn times() -> usize {
        std::env::var("CLAVIGER_FUZZ_TIMES").ok().and_then(|times| times.parse().ok()).unwrap_or(1)
    }

    /// Names of the targets to run; all by default.
    fn wanted(name: &str) -> bool {
        std::env::var("CLAVIGER_FUZZ_TARGETS").map_or(true, |names| names.split(',').any(|wanted| wanted == name))
    }

    #[test]
    fn every_target_takes_its_corpus_and_what_is_like_it() {
        for target in TARGETS.iter().filter(|target| wanted(target.name)) {
            let mut random = Random::new(times() as u64);
            let inputs = (target.corpus)();
            assert!(!inputs.is_empty(), "{} has no corpus", target.name);
            for input in &inputs {
                let run = |bytes: &[u8]| {
                    let begin = Instant::now();
                    (target.run)(bytes);
                    assert!(begin.elapsed() < LONGEST, "{}: {:?}", target.name, begin.elapsed());
                };
                run(input);
                // Large inputs take longer to mutate, so they get fewer mutations.
                let changes = times() * CHANGES * 64 / (64 + input.len() / 4096);
                (0..changes).for_each(|_| run(&changed(input, &mut random)));
            }
            (target.run)(&[]);
        }
    }

    /// Checks that the corpus reaches the parsers.
    #[test]
    fn the_corpus_is_what_it_is_taken_for() {
        for name in ["luks1", "luks2", "bitlocker", "filevault2", "dmg"] {
            let input = &(target(name).corpus)()[0];
            assert!(targets::opens_as(input).iter().any(|f| f.eq_ignore_ascii_case(name)), "{name}");
        }
        // During a conversion, a key alone is not enough.
        let opened = |run: fn(&[u8]) -> usize, inputs: Vec<Vec<u8>>| inputs.iter().map(|i| run(i)).collect::<Vec<_>>();
        assert_eq!(opened(volumes::luks2_json, corpus::luks2_json()), [1, 1, 0, 0, 0]);
        // Only one of the two keys has the right size; all volumes but the last need no key.
        assert_eq!(opened(volumes::bitlocker_block, corpus::bitlocker_blocks()), [2, 2, 2, 2, 2, 1]);
        assert!(corpus::nbd().iter().map(|bytes| messages::nbd(bytes)).max() > Some(2 << 20));
        assert!(corpus::loans().iter().all(|bytes| messages::loans(bytes) > 0));
        assert_eq!(opened(messages::fuse_tree, corpus::fuse()), [17, 27]);
        let shown = ecryptfs::shown(&corpus::ecryptfs_header()[0], &corpus::ecryptfs_name()[0]);
        assert_eq!(shown, (Some(5000), Some("name".into())));
    }

    /// `fuzz/` must run all targets of the table. Entry points into parsers are listed in two other files.
    #[test]
    fn each_way_into_a_parser_has_a_target() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let read = |path: &str| std::fs::read_to_string(here.join(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
        let used = ["targets", "ecryptfs", "messages"].map(|name| read(&format!("src/{name}.rs"))).concat();
        let ways = ["engine", "serve"].map(|name| read(&format!("../{name}/src/fuzzing.rs"))).concat();
        for way in ways.split("\npub fn ").skip(1).filter_map(|rest| rest.split('(').next()) {
            assert!(used.contains(&format!("fuzzing::{way}")), "{way} is fuzzed by nothing");
        }
    }
}
