//! Arguments that do not fit each other are refused by every kernel and every mode, in release builds too: what is silently passed over
//! would stay in clear, and what kernels write through pointers must be there.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common::usable;
use claviger_crypto::dmcrypt::{Sectors, Specification};
use claviger_crypto::hash;
use claviger_crypto::modes::{Adiantum, Cbc, Ctr, Ecb, IvMode, Lrw, TrueCryptCbc, Xts, adiantum, aead, cbc, xts};
use claviger_crypto::{Acceleration, BlockCipher, CIPHERS, SectorCipher};

/// Checks that the call panics by itself, and by no index out of bounds.
#[track_caller]
fn refused(what: &str, call: impl FnOnce()) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(call)) else { panic!("{what}: it is let through") };
    let why = panic.downcast_ref::<String>().map_or("", String::as_str);
    assert!(why.contains("whole") || why.contains("not") || why.contains("no "), "{what}: {why:?}");
    assert!(!why.contains("range") && !why.contains("overflow") && !why.contains("divi"), "{what}: {why:?}");
}

#[test]
fn checksums_are_of_whole_blocks() {
    for (block, data, sums) in [(512, 513, 32), (512, 1024, 32), (512, 1024, 65), (0, 0, 0)] {
        refused(&format!("{sums} bytes of sums for {data}"), || {
            hash::SHA256.checksums(block, &vec![0; data], &mut vec![0; sums]);
        });
    }
}

#[test]
fn kernels_take_whole_blocks_and_a_tweak_for_each_sector() {
    for cipher in CIPHERS {
        let key = vec![7; *cipher.key_sizes.last().expect("a cipher has key sizes")];
        for kernel in usable(cipher) {
            let keyed = kernel.with_key(&key);
            let block = cipher.block_size;
            let call = |what: &str, len: usize, call: &dyn Fn(&dyn BlockCipher, &mut [u8])| {
                refused(&format!("{} {}, {what} of {len} bytes", cipher.name, kernel.name), || {
                    call(&*keyed, &mut vec![0; len]);
                });
            };
            for len in [1, block - 1, block + 1, 32 * block + 1, 100 * block - 1] {
                call("encryption", len, &|c, run| c.encrypt_blocks(run));
                call("decryption", len, &|c, run| c.decrypt_blocks(run));
                call("a chain", len, &|c, run| c.cbc_decrypt(&[0; 16], run));
                call("an encrypted chain", len, &|c, run| c.cbc_encrypt(&[0; 16], run));
            }
            // Vectors, bytes of a chain, bytes of the run.
            for (ivs, sector, len) in [(1, 512, 0), (2, 512, 1023), (3, 512, 2048), (1, 9, 9), (16, 1 << 60, 0)] {
                let ivs = vec![[0; 16]; ivs];
                call("chains", len, &|c, run| c.cbc_decrypt_abreast(&ivs, sector, run));
                call("encrypted chains", len, &|c, run| c.cbc_encrypt_abreast(&ivs, sector, run));
            }
            // Tweaks, bytes of a sector, bytes of the run.
            for (tweaks, sector, len) in [
                (1, 512, 0),
                (1, 512, 1024),
                (2, 512, 512),
                (0, 512, 512),
                (4, 0, 512),
                (1, 24, 24),
                (5, 520, 2600),
                // The product wraps.
                (16, 1 << 60, 0),
            ] {
                let tweaks = vec![[0; 16]; tweaks];
                call("XTS", len, &|c, run| c.xts_encrypt(&tweaks, sector, run));
                call("XTS", len, &|c, run| c.xts_decrypt(&tweaks, sector, run));
            }
            if block != 16 {
                call("XTS", 512, &|c, run| c.xts_encrypt(&[[0; 16]], 512, run));
                call("XTS", 512, &|c, run| c.xts_decrypt(&[[0; 16]], 512, run));
            }
        }
    }
}

fn aes() -> Box<dyn BlockCipher> {
    CIPHERS[0].with_key(&[7; 32], Acceleration::On)
}

#[test]
fn sector_ciphers_take_whole_sectors() {
    let layer = || xts::Layer { data: aes(), tweak: aes() };
    let mut all: Vec<(String, Box<dyn SectorCipher>)> = vec![
        ("XTS".into(), Box::new(Xts::new(vec![layer()], 512))),
        ("a cascade".into(), Box::new(Xts::new(vec![layer(), layer()], 512))),
        ("LRW".into(), Box::new(Lrw::new(vec![aes()], &[1; 16], 512))),
        ("TrueCrypt's CBC".into(), Box::new(TrueCryptCbc::outer(vec![aes()], &[1; 32], 512))),
    ];
    for (text, key) in
        [("aes-cbc-essiv:sha256", 32), ("aes-cbc-tcw", 64), ("aes:64-cbc-lmk", 64 * 32), ("aes-cbc-elephant", 64)]
    {
        let specification = Specification::parse(text).expect("it is known");
        let cipher = specification.with_key(&vec![7; key], Sectors::default(), Acceleration::On).expect("it fits");
        all.push((text.into(), Box::new(Shared(cipher))));
    }
    for (name, cipher) in all {
        for len in [1, 16, 496, 528, 513, 1024 + 16, 40 * 512 - 16] {
            refused(&format!("{name}, {len} bytes"), || cipher.encrypt(0, &mut vec![0; len]));
            refused(&format!("{name}, {len} bytes"), || cipher.decrypt(0, &mut vec![0; len]));
        }
    }
}

/// A sector cipher that others have, too.
struct Shared(std::sync::Arc<dyn SectorCipher>);

impl SectorCipher for Shared {
    fn sector_size(&self) -> usize {
        self.0.sector_size()
    }
    fn encrypt(&self, first: u64, run: &mut [u8]) {
        self.0.encrypt(first, run);
    }
    fn decrypt(&self, first: u64, run: &mut [u8]) {
        self.0.decrypt(first, run);
    }
}

#[test]
fn modes_take_a_vector_for_each_sector() {
    let modes: Vec<(&str, Box<dyn IvMode>)> = vec![
        ("XTS", Box::new(Xts::new(vec![xts::Layer { data: aes(), tweak: aes() }], 512))),
        ("LRW", Box::new(Lrw::new(vec![aes()], &[1; 16], 512))),
        ("CBC", Box::new(Cbc(aes()))),
        ("CTR", Box::new(Ctr(aes()))),
        ("Adiantum", Box::new(Adiantum::new(adiantum::Rounds::Twelve, &[7; 32], false, Acceleration::On))),
    ];
    for (name, mode) in &modes {
        for (ivs, len) in [(0, 512), (1, 0), (3, 512), (2, 1025)] {
            refused(&format!("{name}, {ivs}, {len}"), || mode.encrypt_sectors(&vec![[0; 16]; ivs], &mut vec![0; len]));
            refused(&format!("{name}, {ivs}, {len}"), || mode.decrypt_sectors(&vec![[0; 16]; ivs], &mut vec![0; len]));
        }
        if *name != "CTR" {
            refused(&format!("{name}, half a block"), || mode.encrypt_sectors(&[[0; 16]; 2], &mut [0; 2 * 40]));
            refused(&format!("{name}, half a block"), || mode.decrypt_sectors(&[[0; 16]; 2], &mut [0; 2 * 40]));
        }
    }
    refused("ECB", || Ecb(aes()).encrypt_sectors(&[[0; 16]], &mut [0; 17]));
    for (ivs, sector, len) in [(1, 512, 1024), (2, 512, 512), (2, 40, 80)] {
        let ivs = vec![[0; 16]; ivs];
        refused("chains", || cbc::encrypt_sectors(&*aes(), &ivs, sector, &mut vec![0; len]));
        refused("chains", || cbc::decrypt_sectors(&*aes(), &ivs, sector, &mut vec![0; len]));
    }
}

#[test]
fn authenticated_sectors_have_a_tag_each() {
    for (encryption, integrity) in [
        ("aes-xts-plain64", "hmac(sha256)"),
        ("aes-gcm-random", "aead"),
        ("chacha20-random", "poly1305"),
        ("aegis128-random", "aead"),
    ] {
        let specification = aead::AeadSpecification::parse(encryption, integrity).expect("it is known");
        let key = vec![7; specification.key_sizes()[0]];
        let cipher = specification.with_key(&key, Sectors::default(), Acceleration::On).expect("it fits");
        let tag = cipher.tag_size();
        for (len, tags) in [(512, 0), (512, tag - 1), (512, 2 * tag), (1024, tag), (513, tag), (511, 0)] {
            refused(encryption, || cipher.encrypt(0, &mut vec![0; len], &mut vec![0; tags]));
            refused(encryption, || cipher.decrypt(0, &mut vec![0; len], &vec![0; tags]).expect("a tag"));
        }
    }
}
