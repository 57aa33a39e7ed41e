//! Round keys that no memory has. A program of its own: the choice is for a whole process, whose memory is searched.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use claviger_crypto::Acceleration;
use claviger_crypto::ciphers::BlockCipher;
use claviger_crypto::ciphers::aes::{AES, keys_in_registers};
use claviger_crypto::dmcrypt::{Sectors, Specification};
use claviger_testkit::processes::{Memory, found};
use claviger_testkit::random::Random;
use claviger_testkit::reference::aes::Aes;
use claviger_testkit::tools;

/// How the program is told that it is the process that is searched: whether round keys are to be in registers alone.
const SEARCHED: &str = "CLAVIGER_TEST_SEARCHED";

/// Specifications, and bytes of their keys.
const SPECIFICATIONS: &[(&str, usize)] = &[
    ("aes-xts-plain64", 32),
    ("aes-xts-plain64", 64),
    ("aes-cbc-plain", 16),
    ("aes-cbc-plain64", 32),
    ("aes-cbc-essiv:sha256", 32),
];

fn main() {
    tools::list_as("no_round_key_is_in_memory");
    match std::env::var(SEARCHED) {
        Ok(registers) => be_searched(registers == "yes"),
        Err(_) if !claims_can() => println!("This processor has no VAES with AVX-512, and refuses."),
        Err(_) => {
            same_bytes();
            println!("The same bytes as with round keys in memory.");
            nowhere_in_memory();
        }
    }
}

/// In a process of its own, since it cannot be taken back.
fn claims_can() -> bool {
    let can = keys_in_registers();
    let named = AES.kernels.iter().any(|kernel| kernel.name == "vaes512" && (kernel.usable)());
    assert!(can <= named, "without VAES there is no way");
    can
}

/// Against the kernel that has its round keys in memory.
fn same_bytes() {
    let mut random = Random::new(7);
    let kernel = |name| AES.kernels.iter().find(|kernel| kernel.name == name).expect("it is there");
    let (fresh, usual) = (kernel("vaes512-registers"), kernel("vaes512"));
    for size in [16, 24, 32] {
        let key = random.bytes(size);
        let (fresh, usual) = (fresh.with_key(&key), usual.with_key(&key));
        for sector in [16, 48, 448, 512, 528, 1024, 4096, 4112] {
            for sectors in [1, 2, 15, 16, 17, 33, 70] {
                let ivs: Vec<[u8; 16]> = random.bytes(16 * sectors).as_chunks().0.to_vec();
                let run = random.bytes(sectors * sector);
                let what = format!("{size}, {sectors} sectors of {sector}");
                let both = |crypt: &dyn Fn(&dyn BlockCipher, &mut [u8]), what: &str| {
                    let (mut one, mut other) = (run.clone(), run.clone());
                    crypt(&*fresh, &mut one);
                    crypt(&*usual, &mut other);
                    assert!(one == other, "{what}");
                };
                both(&|c, run| c.encrypt_blocks(run), &format!("{what}: encrypted"));
                both(&|c, run| c.decrypt_blocks(run), &format!("{what}: decrypted"));
                both(&|c, run| c.xts_encrypt(&ivs, sector, run), &format!("{what}: encrypted in XTS"));
                both(&|c, run| c.xts_decrypt(&ivs, sector, run), &format!("{what}: decrypted in XTS"));
                both(&|c, run| c.cbc_encrypt_abreast(&ivs, sector, run), &format!("{what}: chains"));
                both(&|c, run| c.cbc_decrypt_abreast(&ivs, sector, run), &format!("{what}: chains back"));
                both(&|c, run| c.cbc_encrypt(&ivs[0], run), &format!("{what}: a chain"));
                both(&|c, run| c.cbc_decrypt(&ivs[0], run), &format!("{what}: a chain back"));
            }
        }
    }
}

/// Of the process that works so, no round key is found but the key itself, which the first ones are. Of one that does not, all are.
fn nowhere_in_memory() {
    if tools::root().is_none() {
        return;
    }
    for (number, (spec, size)) in SPECIFICATIONS.iter().enumerate() {
        let halves = if spec.contains("xts") { 2 } else { 1 };
        let mut needles = Vec::new();
        for key in key(number, *size).chunks(size / halves) {
            let rounds = Aes::new(key).round_keys().to_vec();
            let derived = rounds.iter().enumerate().skip(key.len() / 16);
            needles.extend(derived.map(|(i, round)| (format!("round key {i}"), round.to_vec())));
        }
        let seen = |registers: &str| {
            let mut command = Command::new(std::env::current_exe().expect("a name"));
            command.env(SEARCHED, registers).arg(number.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().expect("it starts");
            let mut line = String::new();
            BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("it is ready");
            let Memory { locked, ordinary, hidden } = Memory::of(child.id());
            drop(child.stdin.take());
            assert!(child.wait().expect("it ends").success());
            assert_eq!(hidden, 0, "nothing is kept from the one who searches");
            found(&[locked, ordinary].concat(), &needles)
        };
        let (with, without) = (seen("yes"), seen("no"));
        assert!(with.is_empty(), "{spec}, {size}: {with:?}");
        assert!(without.len() >= needles.len(), "{spec}, {size}: the search finds {without:?} where they are");
        println!("{spec}, {size}: no round key in memory; {} where they are usually.", without.len());
    }
}

fn key(number: usize, size: usize) -> Vec<u8> {
    Random::new(40 + number as u64).bytes(size)
}

/// Works for a while, and then waits until it was searched.
fn be_searched(registers: bool) {
    assert!(!registers || keys_in_registers());
    let number: usize = std::env::args().nth(1).and_then(|number| number.parse().ok()).expect("a number");
    let (spec, size) = SPECIFICATIONS[number];
    let cipher = Specification::parse(spec).expect("it is known");
    let cipher = cipher.with_key(&key(number, size), Sectors::default(), Acceleration::On).expect("it fits");
    let mut run = vec![7; 1 << 20];
    cipher.encrypt(3, &mut run);
    cipher.decrypt(9, &mut run);
    cipher.encrypt(1 << 33, &mut run[..512]);
    println!("ready");
    std::io::stdout().flush().expect("written");
    let _ = std::io::stdin().lock().read_line(&mut String::new());
}
