#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (claviger_fuzzing::target("tokens").run)(bytes));
