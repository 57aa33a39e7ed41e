//! How edits are carried out: order, failures, crashes.

use std::sync::Arc;

use claviger_engine::edit::{Edit, Step};
use claviger_engine::store::MemoryStore;
use claviger_engine::{ErrorKind, Store};
use claviger_testkit::stores::{CrashStore, Fault, FaultStore, Operation};

const OLD: u8 = 0x11;
const NEW: u8 = 0x22;

fn edit() -> Edit {
    let step = |what: &str, at| Step { what: what.to_owned(), at, bytes: vec![NEW; 512] };
    Edit::new(vec![step("one", 0), step("two", 4096), step("three", 2048)])
}

fn is(bytes: &[u8], at: usize, byte: u8) -> bool {
    bytes[at..][..512].iter().all(|b| *b == byte)
}

#[test]
fn steps_reach_the_disk_one_after_the_other() {
    let store = CrashStore::new(vec![OLD; 8192]);
    edit().carry_out(&store).expect("nothing fails");
    let images = store.torn_images(0);
    let states: Vec<[bool; 3]> = images.iter().map(|image| [0, 4096, 2048].map(|at| is(image, at, NEW))).collect();
    for state in &states {
        assert!(state.is_sorted_by(|a, b| a >= b), "a later step overtook: {state:?}");
    }
    assert!(states.contains(&[false; 3]) && states.contains(&[true, false, false]));
    let last = store.crash_images().pop().expect("an image");
    assert!([0, 4096, 2048].iter().all(|at| is(&last, *at, NEW)));
    let untouched = last.iter().filter(|b| **b == OLD).count();
    assert_eq!(untouched, 8192 - 3 * 512);
}

#[test]
fn a_step_that_fails_is_undone_and_ends_the_edit() {
    for operation in [Operation::Write, Operation::Flush] {
        for nth in 0..3 {
            for transferred in [0, 300] {
                let inner = Arc::new(MemoryStore::new(vec![OLD; 8192]));
                let fault = Fault { operation, nth, for_good: false, transferred };
                let store = FaultStore::new(Arc::clone(&inner) as Arc<dyn Store>, Some(fault));
                let error = edit().carry_out(&store).expect_err("planted");
                assert!(matches!(error.kind, ErrorKind::Io(_)), "{error}");
                let text = error.to_string();
                assert!(text.contains("planted") && text.contains("were restored"), "{text}");
                let bytes = inner.to_vec();
                for (i, at) in [0, 4096, 2048].into_iter().enumerate() {
                    let expected = if (i as u64) < nth { NEW } else { OLD };
                    assert!(is(&bytes, at, expected), "{operation:?} {nth}: step {i}");
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_undone_is_said() {
    let inner = Arc::new(MemoryStore::new(vec![OLD; 8192]));
    let fault = Fault { operation: Operation::Write, nth: 1, for_good: true, transferred: 0 };
    let store = FaultStore::new(inner, Some(fault));
    let text = edit().carry_out(&store).expect_err("planted").to_string();
    for words in ["two could not be written", "are now unknown", "Already written: one", "Unchanged: three"] {
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn a_store_that_forgets_is_noticed() {
    struct Forgetful(MemoryStore);
    impl Store for Forgetful {
        fn len(&self) -> u64 {
            self.0.len()
        }
        fn read_at(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
            self.0.read_at(offset, out)
        }
        fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> std::io::Result<()> {
            self.0.write_clobbering(offset, &mut data[..511])
        }
        fn flush(&self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let text = edit().carry_out(&Forgetful(MemoryStore::new(vec![OLD; 8192]))).expect_err("noticed").to_string();
    assert!(text.contains("one could not be written: the data read back differ from the data written"), "{text}");
}

#[test]
fn nothing_is_written_past_the_end_or_where_reading_fails() {
    let store = FaultStore::new(Arc::new(MemoryStore::new(vec![OLD; 4096])), None);
    let error = edit().carry_out(&store).expect_err("too short");
    assert!(matches!(error.kind, ErrorKind::Misuse(_)), "{error}");
    let fault = Fault { operation: Operation::Read, nth: 2, for_good: false, transferred: 0 };
    let unreadable = FaultStore::new(Arc::new(MemoryStore::new(vec![OLD; 8192])), Some(fault));
    assert!(edit().carry_out(&unreadable).is_err());
    assert_eq!((store.count(Operation::Write), unreadable.count(Operation::Write)), (0, 0));
}
