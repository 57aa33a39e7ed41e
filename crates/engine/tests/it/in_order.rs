//! Pieces that several threads read come in their order, whichever is read first.

use std::io;
use std::thread;
use std::time::Duration;

use claviger_engine::internal::in_order::{self, PIECE};

fn byte(at: u64) -> u8 {
    (at / 251 + at) as u8
}

/// Each byte says where it is; every other piece is slow, and what lies after `broken` cannot be read.
fn read(broken: u64, offset: u64, out: &mut [u8]) -> io::Result<()> {
    if (offset / PIECE as u64).is_multiple_of(2) {
        thread::sleep(Duration::from_millis(3));
    }
    if offset + out.len() as u64 > broken {
        return Err(io::Error::other("broken"));
    }
    out.iter_mut().zip(offset..).for_each(|(b, at)| *b = byte(at));
    Ok(())
}

const LEN: u64 = 9 * PIECE as u64 + 1234;

#[test]
fn every_byte_once_in_order() {
    for range in [0..LEN, 5..LEN - 7, 100..100, 17..18, 3 * PIECE as u64..5 * PIECE as u64] {
        let mut at = range.start;
        in_order::read(
            range.clone(),
            |at, out| read(LEN, at, out),
            |from, piece, read| {
                read?;
                assert_eq!(from, at);
                assert!(piece.iter().zip(from..).all(|(b, at)| *b == byte(at)));
                at += piece.len() as u64;
                Ok::<_, io::Error>(())
            },
        )
        .unwrap();
        assert_eq!(at, range.end);
    }
}

#[test]
fn what_cannot_be_read_is_said_at_its_place_and_ends_it_if_that_is_wanted() {
    let broken = 4 * PIECE as u64 + 1;
    let (mut good, mut calls) = (0, 0);
    let error = in_order::read(
        0..LEN,
        |at, out| read(broken, at, out),
        |_, piece, read| {
            calls += 1;
            read.map(|()| good += piece.len() as u64)
        },
    )
    .unwrap_err();
    assert_eq!((error.to_string(), good, calls), ("broken".to_owned(), broken - 1, 5));

    let mut failed = 0;
    in_order::read(
        0..LEN,
        |at, out| read(broken, at, out),
        |_, _, read| {
            failed += u32::from(read.is_err());
            Ok::<_, io::Error>(())
        },
    )
    .unwrap();
    assert_eq!(failed, 6);
}

#[test]
fn a_panic_ends_it_and_leaves_nobody_waiting() {
    for in_read in [true, false] {
        let panicked = std::panic::catch_unwind(|| {
            let read = |at, out: &mut [u8]| {
                assert!(!in_read || at < 2 * PIECE as u64);
                read(LEN, at, out)
            };
            in_order::read(0..LEN, read, |at, _, _| {
                assert!(in_read || at < 2 * PIECE as u64);
                Ok::<_, io::Error>(())
            })
        });
        assert!(panicked.is_err());
    }
}
