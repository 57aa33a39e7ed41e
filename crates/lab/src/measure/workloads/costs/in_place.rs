//! How long it takes to encrypt what is there already.

use super::{SMALL, apart};
use crate::measure::workloads::prelude::*;

/// Bytes per second, about: everything is read and written, and some of it twice.
const RATE: f64 = 100e6;

/// Encrypting data in place.
pub static IN_PLACE: Workload = Workload {
    name: "in-place",
    title: "Encrypting in place",
    measures: |plan| {
        format!(
            "Bytes per second at which {} MiB of existing data are encrypted in place, with the header before or \
                after them and a cheap key derivation, safe against a crash at any moment. BSI 2010 names the operation \
                (section 3.1.4) but gives no time for it.",
            size(plan) >> 20
        )
    },
    not: "The disk is not in use during the conversion, as a system disk is when TrueCrypt or BitLocker encrypts it \
        in the background. Formats that cannot be created in place have no figure.",
    on: On::Itself,
    estimate_s: |plan| 1.0 + size(plan) as f64 / RATE,
    room: |_| SMALL,
    run: |target, lab| {
        let (bytes, took) = apart(target, lab, size(&lab.plan), |target| {
            lab.drop_caches()?;
            let done = target.encrypt_in_place()?;
            target.close()?;
            Ok(done)
        })?;
        Ok(vec![Measure::rate(Case::new("encrypt in place"), bytes, took)].into())
    },
    ..Workload::PLAIN
};

fn size(plan: &Plan) -> u64 {
    plan.level.choose([SMALL, 1 << 30, 16 << 30]).min(plan.size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::facility::{Catalogue, FacilityTarget};
    use crate::measure::lab::tests::lab;

    /// The program itself is tried by the tests of the command line.
    #[test]
    fn what_cannot_encrypt_in_place_is_left_out() {
        let lab = lab();
        let catalogue = Catalogue::load(None).expect("facilities");
        for (name, can) in
            [("LUKS2", true), ("BitLocker", true), ("LUKS2:serpent-xts-plain64", false), ("plain", false)]
        {
            assert_eq!(!catalogue.find(name).expect("there").encrypt.is_empty(), can, "{name}");
        }
        let mut target = FacilityTarget::new(catalogue.find("plain").expect("there"), &lab).expect("a target");
        let error = (IN_PLACE.run)(&mut target, &lab).expect_err("it encrypts nothing");
        assert!(matches!(error.kind, claviger_engine::ErrorKind::Unsupported { .. }), "{error}");
    }
}
