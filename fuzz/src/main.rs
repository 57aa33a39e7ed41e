//! libFuzzer over the target that CLAVIGER_FUZZ_TARGET names, all of which are in one program: linking one for each takes longer than
//! running them. With CLAVIGER_FUZZ_SEEDS in the environment it writes each target's initial inputs into a folder below that one, and
//! does nothing else. tools/fuzz.py calls it.
#![no_main]

use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use claviger_fuzzing::{TARGETS, Target, target};

static CHOSEN: OnceLock<&Target> = OnceLock::new();

/// No input may take longer, by the processor's time: a busy machine is no hang.
const LONGEST: Duration = Duration::from_secs(5);

libfuzzer_sys::fuzz_target!(init: begin(), |bytes: &[u8]| {
    let begin = processor_time();
    (CHOSEN.get().expect("it has begun").run)(bytes);
    let took = processor_time() - begin;
    assert!(took < LONGEST, "it took {took:?}");
});

fn processor_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn begin() {
    if let Some(folder) = std::env::var_os("CLAVIGER_FUZZ_SEEDS") {
        TARGETS.iter().for_each(|target| write_seeds(target, folder.as_ref()));
        std::process::exit(0);
    }
    let name = std::env::var("CLAVIGER_FUZZ_TARGET").expect("CLAVIGER_FUZZ_TARGET names a target");
    CHOSEN.get_or_init(|| target(&name));
}

fn write_seeds(target: &Target, folder: &Path) {
    let folder = folder.join(target.name);
    std::fs::create_dir_all(&folder).expect("a folder for seeds");
    for (number, input) in (target.corpus)().into_iter().enumerate() {
        std::fs::write(folder.join(number.to_string()), input).expect("a seed is written");
    }
}
