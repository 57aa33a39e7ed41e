//! Chooses an implementation of the diffusers for a run of sectors.

use super::diffuser::{Kernel, PORTABLE};
#[cfg(target_arch = "x86_64")]
use super::x86;

/// The widest first; the last one runs everywhere.
const KERNELS: &[Kernel] = &[
    #[cfg(target_arch = "x86_64")]
    x86::AVX512,
    #[cfg(target_arch = "x86_64")]
    x86::AVX2,
    #[cfg(target_arch = "x86_64")]
    x86::SSE2,
    PORTABLE,
];

/// Mixes a run of sectors of `size` bytes, or unmixes them to decrypt. Fewer sectors than the widest vector holds use the narrowest
/// vector that holds them.
pub(super) fn diffuse(decrypt: bool, size: usize, run: &mut [u8]) {
    let usable = || KERNELS.iter().filter(|kernel| (kernel.usable)());
    let widest = usable().next().expect("the last one runs everywhere");
    let (whole, rest) = run.split_at_mut(run.len() - run.len() % (widest.lanes * size));
    let holding = usable().filter(|kernel| kernel.lanes * size >= rest.len());
    let narrow = holding.min_by_key(|kernel| kernel.lanes).expect("the widest does");
    for (kernel, part) in [(widest, whole), (narrow, rest)] {
        if !part.is_empty() {
            (kernel.run)(decrypt, size, part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use claviger_testkit::random::Random;
    use claviger_testkit::reference::elephant;

    /// Checks every number of sectors, whole vectors and less, in both directions.
    #[test]
    fn every_kernel_mixes_and_unmixes_as_the_reference_does() {
        let mut random = Random::new(1);
        for size in [512, 1024, 2048, 4096] {
            let plain = random.bytes(40 * size);
            let mut mixed = plain.clone();
            mixed.chunks_exact_mut(size).for_each(elephant::mix);
            for kernel in KERNELS.iter().filter(|kernel| (kernel.usable)()) {
                for count in 0..=40 {
                    let mut run = plain[..count * size].to_vec();
                    (kernel.run)(false, size, &mut run);
                    assert!(run == mixed[..run.len()], "{} mixes {count} sectors of {size}", kernel.name);
                    (kernel.run)(true, size, &mut run);
                    assert!(run == plain[..run.len()], "{} unmixes {count} sectors of {size}", kernel.name);
                }
            }
        }
    }
}
