#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (claviger_fuzzing::target("lvm2_metadata").run)(bytes));
