//! Clients that break the protocol, or stop in the middle of it: each is followed by proof that the server still serves
//! and that not a byte has changed. The numbers in here are written out of the document anew.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::{Faulty, Random, Serving, memory, more_descriptors, noise};
use claviger_serve::nbd::{Client, Export, NbdAddress, ServerOptions};

const LEN: usize = 300_000;
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISC: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const WRITE_ZEROES: u16 = 6;
const BLOCK_STATUS: u16 = 7;

/// A connection without manners.
struct Raw(UnixStream);

impl Raw {
    fn connect(serving: &Serving) -> Self {
        let NbdAddress::Unix(path) = &serving.address else { unreachable!("tests use Unix sockets") };
        let stream = UnixStream::connect(path).expect("the server listens");
        // Not a measurement: with it, a server that hangs fails the test instead of hanging it.
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        Self(stream)
    }

    /// After the greeting and the client's flags: fixed newstyle, no zeros.
    fn greeted(serving: &Serving) -> Self {
        let mut raw = Self::connect(serving);
        assert_eq!(raw.hear(18), b"NBDMAGICIHAVEOPT\x00\x03");
        raw.say(&[0, 0, 0, 3]);
        raw
    }

    /// In the transmission phase, with simple replies.
    fn transmitting(serving: &Serving) -> Self {
        let mut raw = Self::greeted(serving);
        raw.say(&option(1, b"disk"));
        raw.hear(10);
        raw
    }

    /// In the transmission phase, with structured replies.
    fn structured(serving: &Serving) -> Self {
        let mut raw = Self::greeted(serving);
        raw.say(&option(8, b""));
        assert_eq!(raw.hear(20)[12..16], [0, 0, 0, 1]);
        raw.say(&option(1, b"disk"));
        raw.hear(10);
        raw
    }

    /// Says it; the server may have gone away.
    fn say(&mut self, bytes: &[u8]) {
        let _ = self.0.write_all(bytes);
    }

    fn hear(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes).expect("the server answers");
        bytes
    }

    /// Sends nothing more, and reads the rest until the server closes the connection.
    fn hear_out(mut self) -> Vec<u8> {
        let _ = self.0.shutdown(Shutdown::Write);
        self.hear_end()
    }

    /// Hears the rest, until the server closes the connection.
    fn hear_end(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self.0.read_to_end(&mut bytes) {
            Err(e) if e.kind() != ErrorKind::ConnectionReset => panic!("the server neither answers nor hangs up: {e}"),
            _ => bytes,
        }
    }
}

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    option_of(option, data.len() as u32, data)
}

fn option_of(option: u32, len: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &option.to_be_bytes()[..], &len.to_be_bytes(), data].concat()
}

fn request(flags: u16, command: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let magic = 0x2560_9513u32;
    [
        &magic.to_be_bytes()[..],
        &flags.to_be_bytes(),
        &command.to_be_bytes(),
        &cookie.to_be_bytes(),
        &offset.to_be_bytes(),
        &len.to_be_bytes(),
    ]
    .concat()
}

fn simple_reply(error: u32, cookie: u64) -> Vec<u8> {
    [&0x6744_6698u32.to_be_bytes()[..], &error.to_be_bytes(), &cookie.to_be_bytes()].concat()
}

/// Checks that the server still works, and that the store is unchanged.
fn unharmed(serving: &Serving, content: &[u8], after: &str) {
    let mut client = Client::connect(&serving.address, "disk").unwrap_or_else(|e| panic!("after {after}: {e}"));
    let mut read = vec![0; content.len()];
    client.read_at(0, &mut read).unwrap_or_else(|e| panic!("after {after}: {e}"));
    assert!(read == content, "after {after}: the store has changed");
    client.disconnect().expect("it ends");
}

#[test]
fn a_broken_handshake_ends_the_connection() {
    let content = noise(LEN, 1);
    let serving = Serving::store(memory(&content));
    let garbage: Vec<u8> = noise(100_000, 3);
    let flags: &[(&str, &[u8])] = &[
        ("no flags", &[]),
        ("half the flags", &[0, 0]),
        ("unknown flags", &[0, 0, 0, 7]),
        ("all flags", &[255; 4]),
        ("flags, and an end", &[0, 0, 0, 3]),
        ("a web browser", b"GET / HTTP/1.1\r\n\r\n"),
        ("garbage", &garbage),
        // A client without fixed newstyle may choose an export, and nothing else.
        ("LIST without fixed newstyle", &[&[0; 4][..], &option(3, b"")].concat()),
        ("ABORT without fixed newstyle", &[&[0; 4][..], &option(2, b"")].concat()),
    ];
    for (what, bytes) in flags {
        let mut raw = Raw::connect(&serving);
        raw.say(bytes);
        assert_eq!(raw.hear_out(), b"NBDMAGICIHAVEOPT\x00\x03", "{what}");
        unharmed(&serving, &content, what);
    }

    let long_name = option(1, &[b'x'; 5000]);
    let options: Vec<(&str, Vec<u8>)> = vec![
        ("a bad magic", [b"IHAVEOPX", &[0; 8][..]].concat()),
        ("half an option", option(3, b"")[..9].to_vec()),
        ("an export that is not there", option(1, b"other")),
        ("a name in Latin-1", option(1, b"d\xeesk")),
        ("a name of 5000 bytes", long_name),
        ("a name that is cut", option_of(1, 4, b"di")),
        ("an option of 4 GiB", option_of(3, u32::MAX, &garbage)),
        ("an unknown option of 4 GiB", option_of(77, u32::MAX, &garbage)),
        ("an option of 64 KiB and a byte", option_of(7, 65_537, &garbage[..65_537])),
        ("garbage", garbage.clone()),
    ];
    for (what, bytes) in options {
        let mut raw = Raw::greeted(&serving);
        raw.say(&bytes);
        assert!(raw.hear_out().is_empty(), "{what}");
        unharmed(&serving, &content, what);
    }
}

#[test]
fn a_client_of_old_gets_its_zeros() {
    let content = noise(LEN, 1);
    let serving = Serving::store(memory(&content));
    for flags in [0u8, 1] {
        let mut raw = Raw::connect(&serving);
        raw.hear(18);
        raw.say(&[0, 0, 0, flags]);
        raw.say(&option(1, b""));
        let answer = raw.hear(134);
        assert_eq!(answer[..8], (LEN as u64).to_be_bytes());
        assert_eq!(answer[8..10], (0b1_0110_1101u16).to_be_bytes(), "no DF without structured replies");
        assert!(answer[10..].iter().all(|&b| b == 0));
        raw.say(&request(0, READ, 5, 10, 20));
        assert_eq!(raw.hear(36), [&simple_reply(0, 5), &content[10..30]].concat());
    }
}

#[test]
fn options_that_fail_can_be_followed_by_others() {
    let content = noise(LEN, 1);
    let serving = Serving::store(memory(&content));
    let (unsupported, invalid, unknown) = (0x8000_0001u32, 0x8000_0003u32, 0x8000_0006u32);
    let cases: Vec<(u32, Vec<u8>, u32)> = vec![
        (3, b"x".to_vec(), invalid),
        (4, vec![], unsupported),
        (5, vec![], unsupported), // STARTTLS
        (8, b"x".to_vec(), invalid),
        (9, vec![], unsupported),
        (10, vec![0; 100], unsupported),
        (11, vec![0xff; 65_536], unsupported),
        (0, vec![], unsupported),
        (u32::MAX, vec![], unsupported),
        (7, vec![], invalid),
        (6, vec![0xff; 64], invalid),
        (7, vec![0, 0, 0, 4, b'd', b'i', b's', b'k', 0, 9], invalid),
        (7, vec![0, 0, 0, 4, b'd', b'i', b's', b'k', 0, 0, 0], invalid),
        (7, vec![0, 0, 0, 3, b'd', b'i', b's', 0, 0], unknown),
        (6, vec![0, 0, 0, 3, b'd', b'i', b's', 0, 1, 0, 3], unknown),
    ];
    let mut raw = Raw::greeted(&serving);
    for (number, data, expected) in &cases {
        raw.say(&option(*number, data));
        let header = raw.hear(20);
        assert_eq!(header[..8], 0x0003_e889_0455_65a9u64.to_be_bytes());
        assert_eq!((&header[8..12], &header[12..16]), (&number.to_be_bytes()[..], &expected.to_be_bytes()[..]));
        let len = u32::from_be_bytes(header[16..].try_into().expect("4 bytes"));
        raw.hear(len as usize);
    }
    // Information about the default export; then GO.
    raw.say(&option(6, &[0, 0, 0, 0, 0, 1, 0, 1]));
    let answer = raw.hear(20 + 12 + 20 + 6 + 20);
    assert_eq!((&answer[22..30], &answer[32 + 20..32 + 26]), (&(LEN as u64).to_be_bytes()[..], &b"\x00\x01disk"[..]));
    raw.say(&option(7, &[0, 0, 0, 4, b'd', b'i', b's', b'k', 0, 0]));
    raw.hear(20 + 12 + 20);
    raw.say(&request(0, READ, 1, 0, 4));
    assert_eq!(raw.hear(20)[16..], content[..4]);

    let mut raw = Raw::greeted(&serving);
    raw.say(&option(2, b""));
    assert_eq!(raw.hear_end()[12..16], [0, 0, 0, 1], "ABORT is acknowledged");
}

#[test]
fn a_flood_of_options_ends_the_connection() {
    let content = noise(LEN, 1);
    let serving = Serving::store(memory(&content));
    let mut raw = Raw::greeted(&serving);
    let mut other = Raw(raw.0.try_clone().expect("a second handle"));
    let flood = std::thread::spawn(move || (0..100_000).for_each(|_| other.say(&option(3, b""))));
    let heard = raw.hear_end();
    flood.join().expect("no panic");
    let whole = 20 + 4 + 4 + 20;
    assert!(heard.len() <= 1024 * whole, "{} bytes", heard.len());
    unharmed(&serving, &content, "a flood");
}

#[test]
fn broken_transmissions_end_the_connection() {
    let content = noise(LEN, 1);
    let serving = Serving::store(memory(&content));
    let mut wrong_magic = request(0, READ, 1, 0, 512);
    wrong_magic[3] ^= 1;
    let garbage = noise(100_000, 5);
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("a bad magic", wrong_magic),
        ("half a request", request(0, READ, 1, 0, 512)[..20].to_vec()),
        ("a WRITE without payload", request(0, WRITE, 1, 0, 512)),
        ("a WRITE with half its payload", [request(0, WRITE, 1, 0, 100_000), garbage[..50_000].to_vec()].concat()),
        ("a WRITE with all but a byte", [request(0, WRITE, 1, 0, 4096), garbage[..4095].to_vec()].concat()),
        ("a WRITE of 32 MiB and a byte", [request(0, WRITE, 1, 0, (32 << 20) + 1), garbage.clone()].concat()),
        ("a WRITE of 4 GiB", [request(0, WRITE, 1, 0, u32::MAX), garbage.clone()].concat()),
        ("a WRITE of 32 MiB that never comes", [request(0, WRITE, 1, 0, 32 << 20), garbage.clone()].concat()),
        (
            "a WRITE past the end that is cut",
            [request(0, WRITE, 1, u64::MAX - 9, 4096), garbage[..99].to_vec()].concat(),
        ),
        ("garbage", garbage),
        ("DISC with a length", request(0, DISC, 1, 77, u32::MAX)),
    ];
    for (what, bytes) in cases {
        for mut raw in [Raw::transmitting(&serving), Raw::structured(&serving)] {
            raw.say(&bytes);
            assert!(raw.hear_out().is_empty(), "{what}");
            unharmed(&serving, &content, what);
        }
    }
}

#[test]
fn bad_requests_get_errors_and_the_connection_goes_on() {
    let content = noise(LEN, 1);
    let serving = Serving::store(memory(&content));
    let (inval, nospc, overflow) = (22, 28, 75);
    let end = LEN as u64;
    let cases: Vec<(u16, u16, u64, u32, u32)> = vec![
        (0, READ, end, 1, inval),
        (0, READ, end - 1, 2, inval),
        (0, READ, u64::MAX, 1, inval),
        (0, READ, u64::MAX, u32::MAX, inval),
        (0, READ, u64::MAX - 511, 512, inval),
        (0, READ, 0, (32 << 20) + 1, inval),
        (0, READ, 0, u32::MAX, inval),
        (0, WRITE, end, 1, nospc),
        (0, WRITE, end - 1, 2, nospc),
        (0, WRITE, u64::MAX, 1, nospc),
        (0, WRITE, u64::MAX - 511, 100_000, nospc),
        (0, WRITE, 1 << 63, 3 << 20, nospc),
        (2, WRITE, 0, 512, inval),
        (1 << 15, WRITE, 0, 70_000, inval),
        (0, TRIM, end - 1, 2, nospc),
        (0, TRIM, u64::MAX, u32::MAX, nospc),
        (0, WRITE_ZEROES, end - 1, 2, nospc),
        (0, WRITE_ZEROES, u64::MAX, u32::MAX, nospc),
        (16, WRITE_ZEROES, 0, 512, inval), // FAST_ZERO was not offered
        (4, WRITE_ZEROES, 0, 512, inval),
        (2, TRIM, 0, 512, inval),
        (0, FLUSH, 1, 0, inval),
        (0, FLUSH, 0, 1, inval),
        (8, FLUSH, 0, 0, inval),
        (2, READ, 0, 512, inval),
        (0, BLOCK_STATUS, 0, 512, inval),
        (0, 5, 0, 512, inval),
        (0, 8, 0, 512, inval),
        (0, u16::MAX, u64::MAX, u32::MAX, inval),
    ];
    let payload = |command, len: u32| if command == WRITE { vec![0xee; len as usize] } else { vec![] };
    let mut raw = Raw::transmitting(&serving);
    for &(flags, command, offset, len, expected) in &cases {
        raw.say(&[request(flags, command, offset ^ 7, offset, len), payload(command, len)].concat());
        assert_eq!(raw.hear(16), simple_reply(expected, offset ^ 7), "{command} at {offset}, {len}");
    }
    raw.say(&request(4, READ, 9, 0, 512));
    assert_eq!(raw.hear(16), simple_reply(inval, 9), "DF without structured replies");
    raw.say(&request(0, READ, 2, 3, 4));
    assert_eq!(raw.hear(20), [&simple_reply(0, 2), &content[3..7]].concat());

    let mut raw = Raw::structured(&serving);
    let too_large = (4, READ, 0, (32 << 20) + 1, overflow);
    for &(flags, command, offset, len, expected) in cases.iter().chain([&too_large]) {
        raw.say(&[request(flags, command, 77, offset, len), payload(command, len)].concat());
        let header = raw.hear(20);
        assert_eq!(header[..8], [0x66, 0x8e, 0x33, 0xef, 0, 1, 0x80, 1], "{command} at {offset}, {len}");
        let error = raw.hear(u32::from_be_bytes(header[16..].try_into().expect("4 bytes")) as usize);
        assert_eq!(error[..4], expected.to_be_bytes(), "{command} at {offset}, {len}");
        assert_eq!(usize::from(u16::from_be_bytes([error[4], error[5]])), error.len() - 6);
    }
    // Nothing, read in both ways, and nothing written.
    raw.say(&[request(0, READ, 1, end, 0), request(0, WRITE, 2, end, 0), request(1, TRIM, 3, end, 0)].concat());
    let heard = raw.hear(20 + 16 + 16);
    assert_eq!(heard[..8], [0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 0]);
    assert_eq!(heard[20..], [simple_reply(0, 2), simple_reply(0, 3)].concat());
    unharmed(&serving, &content, "all of it");
}

#[test]
fn a_client_may_vanish_anywhere() {
    let content = noise(LEN, 1);
    let serving = Serving::store(memory(&content));
    // Ends in a WRITE: up to the last byte of it, nothing has been written.
    let session = [
        vec![0, 0, 0, 3],
        option(3, b""),
        option(8, b""),
        option(7, &[0, 0, 0, 4, b'd', b'i', b's', b'k', 0, 1, 0, 3]),
        request(0, READ, 1, 0, 70_000),
        request(0, FLUSH, 2, 0, 0),
        request(0, WRITE, 3, 100, 16),
        vec![0xaa; 16],
    ]
    .concat();
    for cut in 0..session.len() {
        let mut raw = Raw::connect(&serving);
        raw.say(&session[..cut]);
        if cut % 2 == 0 {
            raw.hear_out();
        } else {
            drop(raw); // without hearing a word
        }
    }
    unharmed(&serving, &content, "hundreds that vanished");
    let mut raw = Raw::connect(&serving);
    raw.say(&session);
    raw.hear_out();
    let mut changed = content;
    changed[100..116].fill(0xaa);
    unharmed(&serving, &changed, "one that did not");
}

#[test]
fn requests_may_come_in_any_pieces() {
    let content = noise(LEN, 1);
    let serving = Serving::store(memory(&content));
    let mut mirror = content;
    let mut random = Random::new(77);
    let (mut said, mut expected) = (vec![], vec![]);
    for cookie in 0..400u64 {
        let len = [0, 1, 16, 512, 4096, 9000, 20_000, 100_000][random.below(8)];
        let at = random.below(LEN - len);
        let range = at..at + len;
        if random.below(3) == 0 {
            said.extend(request(0, READ, cookie, at as u64, len as u32));
            expected.extend(simple_reply(0, cookie));
            expected.extend(&mirror[range]);
        } else {
            let data = noise(len, cookie);
            said.extend(request(0, WRITE, cookie, at as u64, len as u32));
            said.extend(&data);
            mirror[range].copy_from_slice(&data);
            expected.extend(simple_reply(0, cookie));
        }
    }
    let mut raw = Raw::transmitting(&serving);
    let mut other = Raw(raw.0.try_clone().expect("a second handle"));
    let speaking = std::thread::spawn(move || {
        let mut rest = &said[..];
        while !rest.is_empty() {
            let most = [1, 30, 5000, 200_000][random.below(4)];
            let (piece, after) = rest.split_at((1 + random.below(most)).min(rest.len()));
            other.say(piece);
            rest = after;
        }
    });
    assert!(raw.hear(expected.len()) == expected);
    speaking.join().expect("no panic");
    unharmed(&serving, &mirror, "all of it");
}

#[test]
fn mutated_sessions_harm_nothing() {
    let content = noise(LEN, 1);
    // Read-only: what a mutation makes may well be a proper WRITE.
    let export = Export { read_only: true, ..Export::new("disk", memory(&content)) };
    let serving = Serving::with(vec![export], ServerOptions::default());
    let session = [
        vec![0, 0, 0, 3],
        option(8, b""),
        option(7, &[0, 0, 0, 4, b'd', b'i', b's', b'k', 0, 1, 0, 3]),
        request(0, READ, 1, 0, 70_000),
        request(4, READ, 2, 5, 100),
        [request(0, WRITE, 3, 100, 16), vec![0xaa; 16]].concat(),
        request(0, FLUSH, 4, 0, 0),
        request(0, DISC, 4, 0, 0),
    ]
    .concat();
    let mut random = Random::new(4711);
    for round in 0..1000 {
        let mut bytes = session.clone();
        for _ in 0..=random.below(4) {
            let at = random.below(bytes.len());
            match random.below(4) {
                0 => bytes[at] ^= 1 << random.below(8),
                1 => bytes[at] = [0, 0xff, 0x7f, 0x80][random.below(4)],
                2 => drop(bytes.remove(at)),
                _ => bytes.insert(at, random.number() as u8),
            }
        }
        let mut raw = Raw::connect(&serving);
        raw.say(&bytes);
        raw.hear_out();
        if round % 100 == 99 {
            unharmed(&serving, &content, "mutations");
        }
    }
}

#[test]
fn a_store_that_fails_is_reported_as_far_as_the_protocol_can() {
    let len = 4 << 20;
    let content = noise(len, 1);
    let store = Faulty::new(&content);
    let serving = Serving::store(store.clone());

    // In the first chunk of a READ: an error, and the connection continues.
    store.bad_byte.store(1000, Ordering::SeqCst);
    let mut raw = Raw::transmitting(&serving);
    raw.say(&[request(0, READ, 1, 0, len as u32), request(0, READ, 2, 1001, 5)].concat());
    assert_eq!(raw.hear(37), [&simple_reply(5, 1)[..], &simple_reply(0, 2), &content[1001..1006]].concat());

    // In a later one: success is promised already, so the connection ends, without the bad chunk.
    store.bad_byte.store(3_000_000, Ordering::SeqCst);
    raw.say(&[request(0, READ, 3, 0, len as u32), request(0, READ, 4, 0, 1)].concat());
    let heard = raw.hear_end();
    assert_eq!(heard[..16], simple_reply(0, 3));
    assert!(heard.len() - 16 <= 3_000_000 && content.starts_with(&heard[16..]));

    // Structured, and in one piece: padded with zeros, and then the error.
    let mut raw = Raw::structured(&serving);
    raw.say(&[request(4, READ, 5, 0, len as u32), request(0, READ, 6, 0, 1)].concat());
    let header = raw.hear(28);
    assert_eq!(header[..8], [0x66, 0x8e, 0x33, 0xef, 0, 0, 0, 1]);
    assert_eq!(header[16..20], (len as u32 + 8).to_be_bytes());
    let data = raw.hear(len);
    let good = data.iter().zip(&content).take_while(|(a, b)| a == b).count();
    assert!(good <= 3_000_000 && data[good + 16..].iter().all(|&b| b == 0));
    let error = raw.hear(20);
    assert_eq!(error[..8], [0x66, 0x8e, 0x33, 0xef, 0, 1, 0x80, 1]);
    assert_eq!(raw.hear(u32::from_be_bytes(error[16..].try_into().expect("4 bytes")) as usize)[..4], [0, 0, 0, 5]);
    assert_eq!(raw.hear(29)[..8], [0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1]);

    // Structured, in chunks: the good ones, and then the error.
    raw.say(&request(0, READ, 7, 0, len as u32));
    let mut next = 0;
    loop {
        let header = raw.hear(20);
        let rest = raw.hear(u32::from_be_bytes(header[16..].try_into().expect("4 bytes")) as usize);
        if header[6..8] == [0x80, 1] {
            assert_eq!((header[5], &rest[..4]), (1, &[0, 0, 0, 5][..]));
            break;
        }
        assert_eq!((header[5], header[7]), (0, 1), "a chunk of data, and not the last");
        assert_eq!(rest[..8], (next as u64).to_be_bytes());
        assert!(rest[8..] == content[next..next + rest.len() - 8]);
        next += rest.len() - 8;
    }
    assert!(next > 0 && next <= 3_000_000);
    store.bad_byte.store(u64::MAX, Ordering::SeqCst);

    // Writes, whatever their size, and zeros.
    let mut raw = Raw::transmitting(&serving);
    for (kind, expected) in [
        (ErrorKind::StorageFull, 28),
        (ErrorKind::PermissionDenied, 1),
        (ErrorKind::OutOfMemory, 12),
        (ErrorKind::Unsupported, 95),
        (ErrorKind::Other, 5),
    ] {
        *store.fail_writes.lock().expect("no panic") = Some(kind);
        for len in [512usize, 100_000, 2 << 20] {
            raw.say(&[request(1, WRITE, 8, 0, len as u32), vec![1; len]].concat());
            assert_eq!(raw.hear(16), simple_reply(expected, 8));
            raw.say(&request(0, WRITE_ZEROES, 9, 0, len as u32));
            assert_eq!(raw.hear(16), simple_reply(expected, 9));
        }
    }
    *store.fail_writes.lock().expect("no panic") = None;
    unharmed(&serving, &content, "errors");

    // After a failed flush, every later one fails too, on every connection, because the lost writes stay lost.
    store.fail_flush.store(true, Ordering::SeqCst);
    raw.say(&request(0, FLUSH, 10, 0, 0));
    assert_eq!(raw.hear(16), simple_reply(5, 10));
    store.fail_flush.store(false, Ordering::SeqCst);
    let mut raw = Raw::transmitting(&serving);
    raw.say(&[request(0, FLUSH, 11, 0, 0), request(1, WRITE, 12, 0, 1), vec![content[0]]].concat());
    assert_eq!(raw.hear(32), [simple_reply(5, 11), simple_reply(5, 12)].concat());
    serving.stop().expect_err("the last flush fails as well");
}

#[test]
fn a_client_that_does_not_listen_holds_up_nobody_else() {
    let content = noise(8 << 20, 1);
    let serving = Serving::store(memory(&content));
    let mut deaf: Vec<Raw> = (0..5).map(|_| Raw::transmitting(&serving)).collect();
    for raw in &mut deaf {
        (0..20).for_each(|i| raw.say(&request(0, READ, i, 0, 8 << 20)));
    }
    unharmed(&serving, &content, "the deaf");
    serving.stop().expect("it ends, and does not wait for the deaf for ever");
    drop(deaf);
}

/// Handshakes that nobody continues with, and that do not pass by themselves while the test runs.
#[test]
fn unfinished_handshakes_keep_nobody_out() {
    more_descriptors();
    let content = noise(LEN, 1);
    let options = ServerOptions { handshake_timeout: Duration::from_secs(600), ..ServerOptions::default() };
    let serving = Serving::with(vec![Export::new("disk", memory(&content))], options);
    let mut one = serving.client();
    for many in [64, 500] {
        let unfinished: Vec<_> = (0..many)
            .map(|nth| match nth % 3 {
                0 => Raw::connect(&serving),
                1 => {
                    let mut raw = Raw::connect(&serving);
                    raw.say(&[0, 0, 0, 3]);
                    raw
                }
                _ => {
                    let mut raw = Raw::connect(&serving);
                    raw.say(&[&[0, 0, 0, 3][..], &option_of(1, 4, b"di")].concat());
                    raw
                }
            })
            .collect();
        // New clients get in, and connected ones stay.
        unharmed(&serving, &content, "unfinished handshakes");
        let mut byte = [0];
        one.read_at(7, &mut byte).expect("it is still served");
        assert_eq!(byte[0], content[7]);
        drop(unfinished);
    }
    let _unfinished: Vec<_> = (0..64).map(|_| Raw::connect(&serving)).collect();
    drop(one);
    serving.stop().expect("it ends");
}

#[test]
fn names_are_compared_as_they_are() {
    let exports = ["disk", "Disk", "disk ", "über"].map(|n| Export::new(n, memory(&[0; 512])));
    let serving = Serving::with(exports.into(), ServerOptions::default());
    for (name, there) in [("disk", true), ("DISK", false), ("disk ", true), ("über", true), ("", true), ("dis", false)]
    {
        let connected = Client::connect(&serving.address, name);
        match connected {
            Ok(_) => assert!(there, "{name}"),
            Err(e) => assert!(!there && e.kind() == ErrorKind::NotFound, "{name}: {e}"),
        }
    }
}
