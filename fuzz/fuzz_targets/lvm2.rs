#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (claviger_fuzzing::target("lvm2").run)(bytes));
