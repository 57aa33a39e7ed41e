//! AES whose round keys are never in memory. Each call derives them again in vector registers, and clears these before it returns
//! (the idea of TRESOR: Müller, Freiling, Dewald, USENIX Security 2011). Memory holds only the key, once.
//!
//! All of it is assembly, so that no compiler spills a register. It uses 31 of the 32 registers: fifteen round keys, each four
//! times in a vector of 512 bits, eight vectors of data and eight of tweaks. ECB is XTS with tweaks of zero.
#![allow(unsafe_code, reason = "round keys in registers")]

use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::atomic::{AtomicBool, Ordering};

use super::x86::VAES512;
use crate::ciphers::{BlockCipher, Kernel, assert_blocks, assert_sectors};
use crate::secret::Secret;

/// Whether AES keeps its round keys out of memory.
static WANTED: AtomicBool = AtomicBool::new(false);

/// Makes AES derive its round keys again for each call. Returns whether this processor supports that; otherwise nothing changes.
pub fn keys_in_registers() -> bool {
    let can = (VAES512.usable)() && is_x86_feature_detected!("avx512vl");
    WANTED.store(can, Ordering::Relaxed);
    can
}

/// For keys of 16 and 32 bytes. Keys of 24 have their round keys in memory.
pub(super) const FRESH: Kernel = Kernel {
    name: "vaes512-registers",
    usable: || WANTED.load(Ordering::Relaxed),
    aes_instructions: true,
    constant_time: true,
    expand: |key| match key.len() {
        24 => (VAES512.expand)(key),
        _ => Box::new(Fresh(Secret::copy_from(key))),
    },
};

struct Fresh(Secret);

/// Bytes that the assembly works on at a time.
const GRAIN: usize = 512;

/// The most sectors, or remainders of sectors, that one derivation of the round keys serves.
const TOGETHER: usize = 16;

/// The tweaks of 32 consecutive blocks.
type Tweaks = [__m512i; 8];

impl BlockCipher for Fresh {
    fn block_size(&self) -> usize {
        16
    }
    fn encrypt_blocks(&self, blocks: &mut [u8]) {
        assert_blocks(16, blocks);
        self.run(false, &[[0; 16]], blocks.len(), blocks);
    }
    fn decrypt_blocks(&self, blocks: &mut [u8]) {
        assert_blocks(16, blocks);
        self.run(true, &[[0; 16]], blocks.len(), blocks);
    }
    fn xts_encrypt(&self, tweaks: &[[u8; 16]], sector: usize, run: &mut [u8]) {
        assert_sectors(16, tweaks, sector, run);
        self.run(false, tweaks, sector, run);
    }
    fn xts_decrypt(&self, tweaks: &[[u8; 16]], sector: usize, run: &mut [u8]) {
        assert_sectors(16, tweaks, sector, run);
        self.run(true, tweaks, sector, run);
    }
    fn xts_in_registers(&self) -> bool {
        true
    }
}

impl Fresh {
    fn run(&self, decrypt: bool, tweaks: &[[u8; 16]], sector: usize, run: &mut [u8]) {
        if sector == 0 {
            return;
        }
        let whole = sector - sector % GRAIN;
        for (tweaks, run) in tweaks.chunks(TOGETHER).zip(run.chunks_mut(TOGETHER * sector)) {
            // SAFETY: it is only made on processors that have what this takes.
            let mut table = [unsafe { zero() }; TOGETHER];
            for (powers, tweak) in table.iter_mut().zip(tweaks) {
                // SAFETY: as above.
                unsafe { first_tweaks(tweak, powers) };
            }
            let table = &mut table[..tweaks.len()];
            if whole == sector {
                // SAFETY: as above; the run is whole sectors, one for each of the tweaks, and those are whole grains.
                unsafe { self.enter(decrypt, table, run.as_mut_ptr(), sector / GRAIN) };
                continue;
            }
            for (powers, sector) in table.iter_mut().zip(run.chunks_mut(sector)) {
                let (front, rest) = sector.split_at_mut(whole);
                if !front.is_empty() {
                    // SAFETY: as above, for one sector.
                    unsafe { self.enter(decrypt, std::slice::from_mut(powers), front.as_mut_ptr(), whole / GRAIN) };
                }
                let mut room = [0; GRAIN];
                room[..rest.len()].copy_from_slice(rest);
                // SAFETY: as above, for one grain.
                unsafe { self.enter(decrypt, std::slice::from_mut(powers), room.as_mut_ptr(), 1) };
                rest.copy_from_slice(&room[..rest.len()]);
            }
        }
    }

    /// On return, `tweaks` are those of the blocks that follow.
    ///
    /// # Safety
    /// The processor has VAES, AVX-512 and VPCLMULQDQ, and at `data` are `grains` grains for each of the tweaks.
    unsafe fn enter(&self, decrypt: bool, tweaks: &mut [Tweaks], data: *mut u8, grains: usize) {
        let enter = match (self.0.len(), decrypt) {
            (16, false) => encrypt_128,
            (16, true) => decrypt_128,
            (_, false) => encrypt_256,
            (_, true) => decrypt_256,
        };
        // SAFETY: the caller's promise.
        unsafe { enter(self.0.as_ptr(), tweaks, data, grains) }
    }
}

/// # Safety
/// The processor has AVX-512F.
#[target_feature(enable = "avx512f")]
unsafe fn zero() -> Tweaks {
    [_mm512_setzero_si512(); 8]
}

/// The tweaks of the first 32 blocks of a sector.
///
/// # Safety
/// The processor has AVX-512F, AVX-512BW and VPCLMULQDQ.
#[target_feature(enable = "avx512f,avx512bw,vpclmulqdq")]
unsafe fn first_tweaks(tweak: &[u8; 16], out: &mut Tweaks) {
    // SAFETY: 16 bytes are read, at any alignment.
    let t = _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(tweak.as_ptr().cast()) });
    let reduction = _mm512_set1_epi64(0x87);
    let mut power = _mm512_set_epi64(3, 3, 2, 2, 1, 1, 0, 0);
    for out in out {
        // A shift by 64 gives zero.
        let carry = _mm512_srlv_epi64(t, _mm512_sub_epi64(_mm512_set1_epi64(64), power));
        let carried = _mm512_clmulepi64_epi128::<0x01>(carry, reduction);
        let shifted = _mm512_xor_si512(_mm512_sllv_epi64(t, power), _mm512_bslli_epi128::<8>(carry));
        *out = _mm512_xor_si512(shifted, carried);
        power = _mm512_add_epi64(power, _mm512_set1_epi64(4));
    }
}

/// Copies a round key four times into the register where it is used.
macro_rules! put {
    ($from:literal, $to:literal) => {
        concat!("vshufi32x4 zmm", $to, ", zmm", $from, ", zmm", $from, ", 0")
    };
}

/// The same for the equivalent inverse cipher (FIPS 197, 5.3.5).
macro_rules! put_inverse {
    ($from:literal, $to:literal) => {
        concat!("vaesimc xmm5, xmm", $from, "\n vshufi32x4 zmm", $to, ", zmm5, zmm5, 0")
    };
}

/// Replaces an older round key by the next one (FIPS 197, 5.2): the older key, added up word by word, plus a substituted word of
/// the previous key, which `shuffle` picks.
macro_rules! next {
    ($before:literal, $shuffle:literal, $constant:literal, $at:literal) => {
        concat!(
            "vaeskeygenassist xmm2, xmm",
            $before,
            ", ",
            $constant,
            "\n",
            "vpshufd xmm2, xmm2, ",
            $shuffle,
            "\n",
            "vpslldq xmm3, xmm",
            $at,
            ", 4\n",
            "vpxor xmm",
            $at,
            ", xmm",
            $at,
            ", xmm3\n",
            "vpslldq xmm3, xmm3, 4\n",
            "vpxor xmm",
            $at,
            ", xmm",
            $at,
            ", xmm3\n",
            "vpslldq xmm3, xmm3, 4\n",
            "vpxor xmm",
            $at,
            ", xmm",
            $at,
            ", xmm3\n",
            "vpxor xmm",
            $at,
            ", xmm",
            $at,
            ", xmm2"
        )
    };
}

/// An instruction with a round key for each of the eight vectors of data.
macro_rules! all {
    (concat $round:literal, $key:literal) => {
        all!(@ $round, "last", $key)
    };
    ($what:literal, $key:literal) => {
        all!(@ $what, "", $key)
    };
    (@ $what:literal, $more:literal, $key:literal) => {
        concat!(
            $what, $more, " zmm0, zmm0, zmm", $key, "\n", $what, $more, " zmm1, zmm1, zmm", $key, "\n",
            $what, $more, " zmm2, zmm2, zmm", $key, "\n", $what, $more, " zmm3, zmm3, zmm", $key, "\n",
            $what, $more, " zmm4, zmm4, zmm", $key, "\n", $what, $more, " zmm5, zmm5, zmm", $key, "\n",
            $what, $more, " zmm6, zmm6, zmm", $key, "\n", $what, $more, " zmm7, zmm7, zmm", $key
        )
    };
}

/// Replaces tweaks by those of the blocks 32 further on.
macro_rules! advance {
    ($room:literal, $at:literal) => {
        concat!(
            "vpsrldq zmm",
            $room,
            ", zmm",
            $at,
            ", 12\n",
            "vpclmulqdq zmm",
            $room,
            ", zmm",
            $room,
            ", zmm31, 0\n",
            "vpslldq zmm",
            $at,
            ", zmm",
            $at,
            ", 4\n",
            "vpxord zmm",
            $at,
            ", zmm",
            $at,
            ", zmm",
            $room
        )
    };
}

/// A function that derives the round keys by these steps, encrypts or decrypts, and clears the registers.
macro_rules! kernel {
    ($name:ident, $round:literal, $first:literal, [$($middle:literal),*], $last:literal, $($schedule:expr),*) => {
        /// # Safety
        /// The processor has VAES, AVX-512 and VPCLMULQDQ; `key` has its bytes, and at `data` are `grains` grains for each of the
        /// tweaks.
        #[inline(never)]
        unsafe fn $name(key: *const u8, tweaks: &mut [Tweaks], data: *mut u8, grains: usize) {
            if tweaks.is_empty() || grains == 0 {
                return;
            }
            // SAFETY: what is read and written is what the caller vouches for; all registers are named as clobbered, and the stack is
            // not used.
            unsafe {
                asm!(
                    $($schedule,)*
                    "mov eax, 0x87",
                    "vpbroadcastq zmm31, rax",
                    // A sector.
                    "2:",
                    "vmovdqu64 zmm8, [rsi]", "vmovdqu64 zmm9, [rsi + 64]",
                    "vmovdqu64 zmm10, [rsi + 128]", "vmovdqu64 zmm11, [rsi + 192]",
                    "vmovdqu64 zmm12, [rsi + 256]", "vmovdqu64 zmm13, [rsi + 320]",
                    "vmovdqu64 zmm14, [rsi + 384]", "vmovdqu64 zmm15, [rsi + 448]",
                    "mov r9, r8",
                    // 32 blocks of it.
                    "3:",
                    "vpxord zmm0, zmm8, [rdx]", "vpxord zmm1, zmm9, [rdx + 64]",
                    "vpxord zmm2, zmm10, [rdx + 128]", "vpxord zmm3, zmm11, [rdx + 192]",
                    "vpxord zmm4, zmm12, [rdx + 256]", "vpxord zmm5, zmm13, [rdx + 320]",
                    "vpxord zmm6, zmm14, [rdx + 384]", "vpxord zmm7, zmm15, [rdx + 448]",
                    all!("vpxord", $first),
                    $(all!($round, $middle),)*
                    all!(concat $round, $last),
                    "vpxord zmm0, zmm0, zmm8", "vpxord zmm1, zmm1, zmm9", "vpxord zmm2, zmm2, zmm10", "vpxord zmm3, zmm3, zmm11",
                    "vpxord zmm4, zmm4, zmm12", "vpxord zmm5, zmm5, zmm13", "vpxord zmm6, zmm6, zmm14", "vpxord zmm7, zmm7, zmm15",
                    "vmovdqu64 [rdx], zmm0", "vmovdqu64 [rdx + 64], zmm1", "vmovdqu64 [rdx + 128], zmm2", "vmovdqu64 [rdx + 192], zmm3",
                    "vmovdqu64 [rdx + 256], zmm4", "vmovdqu64 [rdx + 320], zmm5", "vmovdqu64 [rdx + 384], zmm6", "vmovdqu64 [rdx + 448], zmm7",
                    // Times x^32: a shift by four bytes, and the bytes that fall out come back times x^7 + x^2 + x + 1.
                    advance!("0", "8"), advance!("1", "9"), advance!("2", "10"), advance!("3", "11"),
                    advance!("4", "12"), advance!("5", "13"), advance!("6", "14"), advance!("7", "15"),
                    "add rdx, 512",
                    "dec r9",
                    "jnz 3b",
                    "vmovdqu64 [rsi], zmm8", "vmovdqu64 [rsi + 64], zmm9",
                    "vmovdqu64 [rsi + 128], zmm10", "vmovdqu64 [rsi + 192], zmm11",
                    "vmovdqu64 [rsi + 256], zmm12", "vmovdqu64 [rsi + 320], zmm13",
                    "vmovdqu64 [rsi + 384], zmm14", "vmovdqu64 [rsi + 448], zmm15",
                    "add rsi, 512",
                    "dec rcx",
                    "jnz 2b",
                    "vpxord zmm16, zmm16, zmm16", "vpxord zmm17, zmm17, zmm17", "vpxord zmm18, zmm18, zmm18",
                    "vpxord zmm19, zmm19, zmm19", "vpxord zmm20, zmm20, zmm20", "vpxord zmm21, zmm21, zmm21",
                    "vpxord zmm22, zmm22, zmm22", "vpxord zmm23, zmm23, zmm23", "vpxord zmm24, zmm24, zmm24",
                    "vpxord zmm25, zmm25, zmm25", "vpxord zmm26, zmm26, zmm26", "vpxord zmm27, zmm27, zmm27",
                    "vpxord zmm28, zmm28, zmm28", "vpxord zmm29, zmm29, zmm29", "vpxord zmm30, zmm30, zmm30",
                    "vzeroall",
                    inout("rdi") key => _,
                    inout("rsi") tweaks.as_mut_ptr() => _,
                    inout("rdx") data => _,
                    inout("rcx") tweaks.len() => _,
                    inout("r8") grains => _,
                    clobber_abi("sysv64"),
                    options(nostack)
                );
            }
        }
    };
}

macro_rules! kernel_128 {
    ($name:ident, $round:literal, $first:literal, [$($middle:literal),*], $last:literal, $put:ident, [$k0:literal,
        $k1:literal, $k2:literal, $k3:literal, $k4:literal, $k5:literal, $k6:literal, $k7:literal, $k8:literal, $k9:literal,
        $k10:literal]) => {
        kernel!(
            $name, $round, $first, [$($middle),*], $last,
            "vmovdqu xmm0, [rdi]", put!("0", $k0),
            next!("0", "0xff", "0x01", "0"), $put!("0", $k1), next!("0", "0xff", "0x02", "0"), $put!("0", $k2),
            next!("0", "0xff", "0x04", "0"), $put!("0", $k3), next!("0", "0xff", "0x08", "0"), $put!("0", $k4),
            next!("0", "0xff", "0x10", "0"), $put!("0", $k5), next!("0", "0xff", "0x20", "0"), $put!("0", $k6),
            next!("0", "0xff", "0x40", "0"), $put!("0", $k7), next!("0", "0xff", "0x80", "0"), $put!("0", $k8),
            next!("0", "0xff", "0x1b", "0"), $put!("0", $k9), next!("0", "0xff", "0x36", "0"), put!("0", $k10)
        );
    };
}

macro_rules! kernel_256 {
    ($name:ident, $round:literal, $first:literal, [$($middle:literal),*], $last:literal, $put:ident, [$k0:literal,
        $k1:literal, $k2:literal, $k3:literal, $k4:literal, $k5:literal, $k6:literal, $k7:literal, $k8:literal, $k9:literal,
        $k10:literal, $k11:literal, $k12:literal, $k13:literal, $k14:literal]) => {
        kernel!(
            $name, $round, $first, [$($middle),*], $last,
            "vmovdqu xmm0, [rdi]", put!("0", $k0), "vmovdqu xmm1, [rdi + 16]", $put!("1", $k1),
            next!("1", "0xff", "0x01", "0"), $put!("0", $k2), next!("0", "0xaa", "0", "1"), $put!("1", $k3),
            next!("1", "0xff", "0x02", "0"), $put!("0", $k4), next!("0", "0xaa", "0", "1"), $put!("1", $k5),
            next!("1", "0xff", "0x04", "0"), $put!("0", $k6), next!("0", "0xaa", "0", "1"), $put!("1", $k7),
            next!("1", "0xff", "0x08", "0"), $put!("0", $k8), next!("0", "0xaa", "0", "1"), $put!("1", $k9),
            next!("1", "0xff", "0x10", "0"), $put!("0", $k10), next!("0", "0xaa", "0", "1"), $put!("1", $k11),
            next!("1", "0xff", "0x20", "0"), $put!("0", $k12), next!("0", "0xaa", "0", "1"), $put!("1", $k13),
            next!("1", "0xff", "0x40", "0"), put!("0", $k14)
        );
    };
}

// Registers 16 and on hold the round keys in order of use.
kernel_128!(
    encrypt_128,
    "vaesenc",
    "16",
    ["17", "18", "19", "20", "21", "22", "23", "24", "25"],
    "26",
    put,
    ["16", "17", "18", "19", "20", "21", "22", "23", "24", "25", "26"]
);
kernel_128!(
    decrypt_128,
    "vaesdec",
    "16",
    ["17", "18", "19", "20", "21", "22", "23", "24", "25"],
    "26",
    put_inverse,
    ["26", "25", "24", "23", "22", "21", "20", "19", "18", "17", "16"]
);
kernel_256!(
    encrypt_256,
    "vaesenc",
    "16",
    ["17", "18", "19", "20", "21", "22", "23", "24", "25", "26", "27", "28", "29"],
    "30",
    put,
    ["16", "17", "18", "19", "20", "21", "22", "23", "24", "25", "26", "27", "28", "29", "30"]
);
kernel_256!(
    decrypt_256,
    "vaesdec",
    "16",
    ["17", "18", "19", "20", "21", "22", "23", "24", "25", "26", "27", "28", "29"],
    "30",
    put_inverse,
    ["30", "29", "28", "27", "26", "25", "24", "23", "22", "21", "20", "19", "18", "17", "16"]
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_as_with_round_keys_in_memory() {
        if !(VAES512.usable)() {
            eprintln!("skipped: this processor has no VAES with AVX-512");
            return;
        }
        for size in [16, 32] {
            let key: Vec<u8> = (0..size).map(|i| (i * 73 + 5) as u8).collect();
            let (fresh, usual) = (Fresh(Secret::copy_from(&key)), VAES512.with_key(&key));
            for sectors in [1, 2, 15, 16, 17, 40] {
                let tweaks: Vec<[u8; 16]> = (0..sectors).map(|i| [(i * 31 + 200) as u8; 16]).collect();
                for sector in [16, 48, 448, 512, 528, 1024, 4096, 4112] {
                    let run: Vec<u8> = (0..sector * sectors).map(|i| (i * 7 / 5) as u8).collect();
                    let (mut one, mut other) = (run.clone(), run.clone());
                    fresh.xts_encrypt(&tweaks, sector, &mut one);
                    usual.xts_encrypt(&tweaks, sector, &mut other);
                    assert!(one == other, "{size}, {sectors} sectors of {sector}: encrypted");
                    fresh.xts_decrypt(&tweaks, sector, &mut one);
                    assert!(one == run, "{size}, {sectors} sectors of {sector}: decrypted");
                    fresh.encrypt_blocks(&mut one);
                    let mut other = run.clone();
                    usual.encrypt_blocks(&mut other);
                    assert!(one == other, "{size}, {sectors} sectors of {sector}: blocks encrypted");
                    fresh.decrypt_blocks(&mut one);
                    assert!(one == run, "{size}, {sectors} sectors of {sector}: blocks decrypted");
                }
            }
        }
    }
}
