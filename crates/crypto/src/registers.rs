//! The vector registers of the processor. Ciphers keep round keys in them. The values that the last cipher left there are part of
//! every context switch, signal frame and core dump of the thread, until they are overwritten. Little else uses the upper sixteen
//! of AVX-512.
//!
//! On x86-64 and AArch64 all of them are zeroed; elsewhere nothing is done. Registers that nothing here uses are left
//! alone: x87 and MMX, the tiles of AMX. General registers are overwritten by a few calls anyway.
#![allow(unsafe_code, reason = "registers are cleared in assembly")]

/// Zeroes this thread's vector registers and, if it has any, its mask registers.
pub fn wipe() {
    #[cfg(target_arch = "x86_64")]
    x86::wipe();
    #[cfg(target_arch = "aarch64")]
    aarch64::wipe();
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::{asm, is_x86_feature_detected};

    pub(super) fn wipe() {
        // Detection asks the system as well: registers that it does not switch cannot be used.
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has AVX-512F, and the system saves its registers.
            unsafe { avx512() }
        } else if is_x86_feature_detected!("avx") {
            // SAFETY: the same holds for AVX.
            unsafe { avx() }
        } else {
            sse2();
        }
    }

    /// Zeroes the full width of the upper sixteen, of the masks (`kxorw` clears the bits beyond 16) and of the lower sixteen.
    ///
    /// # Safety
    /// The processor has AVX-512F.
    #[inline(never)]
    unsafe fn avx512() {
        // SAFETY: only registers are written, all of which are named as clobbered; the caller vouches for the
        // instructions.
        unsafe {
            asm!(
                "vpxord zmm16, zmm16, zmm16",
                "vpxord zmm17, zmm17, zmm17",
                "vpxord zmm18, zmm18, zmm18",
                "vpxord zmm19, zmm19, zmm19",
                "vpxord zmm20, zmm20, zmm20",
                "vpxord zmm21, zmm21, zmm21",
                "vpxord zmm22, zmm22, zmm22",
                "vpxord zmm23, zmm23, zmm23",
                "vpxord zmm24, zmm24, zmm24",
                "vpxord zmm25, zmm25, zmm25",
                "vpxord zmm26, zmm26, zmm26",
                "vpxord zmm27, zmm27, zmm27",
                "vpxord zmm28, zmm28, zmm28",
                "vpxord zmm29, zmm29, zmm29",
                "vpxord zmm30, zmm30, zmm30",
                "vpxord zmm31, zmm31, zmm31",
                "kxorw k0, k0, k0",
                "kxorw k1, k1, k1",
                "kxorw k2, k2, k2",
                "kxorw k3, k3, k3",
                "kxorw k4, k4, k4",
                "kxorw k5, k5, k5",
                "kxorw k6, k6, k6",
                "kxorw k7, k7, k7",
                "vzeroall",
                clobber_abi("sysv64"),
                options(nomem, nostack, preserves_flags)
            );
        }
    }

    /// # Safety
    /// The processor has AVX.
    #[inline(never)]
    unsafe fn avx() {
        // SAFETY: as above.
        unsafe { asm!("vzeroall", clobber_abi("sysv64"), options(nomem, nostack, preserves_flags)) }
    }

    #[inline(never)]
    fn sse2() {
        // SAFETY: as above; every x86-64 has SSE2.
        unsafe {
            asm!(
                "pxor xmm0, xmm0",
                "pxor xmm1, xmm1",
                "pxor xmm2, xmm2",
                "pxor xmm3, xmm3",
                "pxor xmm4, xmm4",
                "pxor xmm5, xmm5",
                "pxor xmm6, xmm6",
                "pxor xmm7, xmm7",
                "pxor xmm8, xmm8",
                "pxor xmm9, xmm9",
                "pxor xmm10, xmm10",
                "pxor xmm11, xmm11",
                "pxor xmm12, xmm12",
                "pxor xmm13, xmm13",
                "pxor xmm14, xmm14",
                "pxor xmm15, xmm15",
                clobber_abi("sysv64"),
                options(nomem, nostack, preserves_flags)
            );
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod aarch64 {
    use std::arch::asm;

    /// Writing a NEON register clears the rest of its SVE register. The compiler restores the lower halves of v8 to
    /// v15, which belong to the caller.
    #[inline(never)]
    pub(super) fn wipe() {
        // SAFETY: only registers are written, all of which are named as clobbered; every AArch64 Linux has NEON.
        unsafe {
            asm!(
                "movi v0.2d, #0",
                "movi v1.2d, #0",
                "movi v2.2d, #0",
                "movi v3.2d, #0",
                "movi v4.2d, #0",
                "movi v5.2d, #0",
                "movi v6.2d, #0",
                "movi v7.2d, #0",
                "movi v8.2d, #0",
                "movi v9.2d, #0",
                "movi v10.2d, #0",
                "movi v11.2d, #0",
                "movi v12.2d, #0",
                "movi v13.2d, #0",
                "movi v14.2d, #0",
                "movi v15.2d, #0",
                "movi v16.2d, #0",
                "movi v17.2d, #0",
                "movi v18.2d, #0",
                "movi v19.2d, #0",
                "movi v20.2d, #0",
                "movi v21.2d, #0",
                "movi v22.2d, #0",
                "movi v23.2d, #0",
                "movi v24.2d, #0",
                "movi v25.2d, #0",
                "movi v26.2d, #0",
                "movi v27.2d, #0",
                "movi v28.2d, #0",
                "movi v29.2d, #0",
                "movi v30.2d, #0",
                "movi v31.2d, #0",
                clobber_abi("C"),
                options(nomem, nostack, preserves_flags)
            );
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::arch::asm;

    use super::*;

    /// Puts a pattern into a register, calls a function, and stores the register's contents afterwards: one piece of
    /// code, so that nothing comes between. `$at` moves between the register and memory.
    macro_rules! after {
        ($function:path, $load:literal, $store:literal) => {{
            let mut area = MARK;
            // SAFETY: the area is as large as the largest register. The function gets an aligned stack and keeps rbx
            // and r12.
            unsafe {
                asm!(
                    "push rbx", "push r12", "mov rbx, {area}", "mov r12, rsp", "and rsp, -16",
                    $load, "call {function}", $store,
                    "mov rsp, r12", "pop r12", "pop rbx",
                    area = in(reg) area.as_mut_ptr(), function = sym $function, clobber_abi("sysv64")
                );
            }
            area
        }};
    }

    const MARK: [u64; 8] = [0x796b_6579_6b65_796b; 8];

    extern "sysv64" fn nothing() {}
    extern "sysv64" fn wiped() {
        wipe();
    }

    /// Checks what is left of the patterns in registers of this size; a function that does nothing leaves all of them.
    macro_rules! check {
        ($bytes:literal: $(($load:literal, $store:literal)),+) => {
            $(
                assert_eq!(after!(nothing, $load, $store), MARK, $load);
                let area = after!(wiped, $load, $store);
                assert!(area[..$bytes / 8].iter().all(|word| *word == 0), "{}: {area:x?}", $load);
            )+
        };
    }

    #[test]
    fn nothing_is_left_in_any_register() {
        check!(16: ("movdqu xmm0, [rbx]", "movdqu [rbx], xmm0"), ("movdqu xmm1, [rbx]", "movdqu [rbx], xmm1"),
            ("movdqu xmm7, [rbx]", "movdqu [rbx], xmm7"), ("movdqu xmm8, [rbx]", "movdqu [rbx], xmm8"),
            ("movdqu xmm14, [rbx]", "movdqu [rbx], xmm14"), ("movdqu xmm15, [rbx]", "movdqu [rbx], xmm15"));
        if is_x86_feature_detected!("avx") {
            check!(32: ("vmovdqu ymm0, [rbx]", "vmovdqu [rbx], ymm0"), ("vmovdqu ymm15, [rbx]", "vmovdqu [rbx], ymm15"));
        }
        if is_x86_feature_detected!("avx512f") {
            check!(64: ("vmovdqu64 zmm0, [rbx]", "vmovdqu64 [rbx], zmm0"), ("vmovdqu64 zmm15, [rbx]", "vmovdqu64 [rbx], zmm15"));
            check!(64: ("vmovdqu64 zmm16, [rbx]", "vmovdqu64 [rbx], zmm16"), ("vmovdqu64 zmm17, [rbx]", "vmovdqu64 [rbx], zmm17"),
                ("vmovdqu64 zmm18, [rbx]", "vmovdqu64 [rbx], zmm18"), ("vmovdqu64 zmm19, [rbx]", "vmovdqu64 [rbx], zmm19"),
                ("vmovdqu64 zmm20, [rbx]", "vmovdqu64 [rbx], zmm20"), ("vmovdqu64 zmm21, [rbx]", "vmovdqu64 [rbx], zmm21"),
                ("vmovdqu64 zmm22, [rbx]", "vmovdqu64 [rbx], zmm22"), ("vmovdqu64 zmm23, [rbx]", "vmovdqu64 [rbx], zmm23"),
                ("vmovdqu64 zmm24, [rbx]", "vmovdqu64 [rbx], zmm24"), ("vmovdqu64 zmm25, [rbx]", "vmovdqu64 [rbx], zmm25"),
                ("vmovdqu64 zmm26, [rbx]", "vmovdqu64 [rbx], zmm26"), ("vmovdqu64 zmm27, [rbx]", "vmovdqu64 [rbx], zmm27"),
                ("vmovdqu64 zmm28, [rbx]", "vmovdqu64 [rbx], zmm28"), ("vmovdqu64 zmm29, [rbx]", "vmovdqu64 [rbx], zmm29"),
                ("vmovdqu64 zmm30, [rbx]", "vmovdqu64 [rbx], zmm30"), ("vmovdqu64 zmm31, [rbx]", "vmovdqu64 [rbx], zmm31"));
        }
        if is_x86_feature_detected!("avx512bw") {
            check!(8: ("kmovq k0, [rbx]", "kmovq [rbx], k0"), ("kmovq k1, [rbx]", "kmovq [rbx], k1"),
                ("kmovq k2, [rbx]", "kmovq [rbx], k2"), ("kmovq k3, [rbx]", "kmovq [rbx], k3"),
                ("kmovq k4, [rbx]", "kmovq [rbx], k4"), ("kmovq k5, [rbx]", "kmovq [rbx], k5"),
                ("kmovq k6, [rbx]", "kmovq [rbx], k6"), ("kmovq k7, [rbx]", "kmovq [rbx], k7"));
        }
    }
}
