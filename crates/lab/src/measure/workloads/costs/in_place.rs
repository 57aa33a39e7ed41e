//! How long it takes to encrypt what is there already.

use claviger_engine::Result;

use super::{SMALL, apart, by_level};
use crate::measure::facility::Target;
use crate::measure::lab::Lab;
use crate::measure::workloads::{On, Outcome, Workload};
use crate::model::figures::{Case, Measure};
use crate::model::plan::Plan;

/// Encrypting data in place.
pub struct InPlace;

/// Bytes per second, about: everything is read and written, and some of it twice.
const RATE: f64 = 100e6;

impl Workload for InPlace {
    fn name(&self) -> &'static str {
        "in-place"
    }

    fn title(&self) -> &'static str {
        "Encrypting in place"
    }

    fn measures(&self, plan: &Plan) -> String {
        format!(
            "Bytes per second at which {} MiB of data that are there already become a volume, with its header in front or behind \
             and a cheap key derivation, safe against a crash at any moment. BSI 2010 names the operation (section 3.1.4) and \
             prints no time of it.",
            size(plan) >> 20
        )
    }

    fn not(&self) -> &'static str {
        "The disk is not in use meanwhile, as a system's is that TrueCrypt or BitLocker encrypts in the background. Formats that cannot \
         be made so have no figure."
    }

    fn on(&self) -> On {
        On::Itself
    }

    fn estimate_s(&self, plan: &Plan) -> f64 {
        1.0 + size(plan) as f64 / RATE
    }

    fn room(&self, _: &Plan) -> u64 {
        SMALL
    }

    fn run(&self, target: &mut Target, lab: &Lab) -> Result<Outcome> {
        let (bytes, took) = apart(target, lab, size(&lab.plan), |target| {
            lab.drop_caches()?;
            let done = target.encrypt_in_place()?;
            target.close()?;
            Ok(done)
        })?;
        Ok(Outcome { measures: vec![Measure::rate(Case::new("encrypt in place"), bytes, took)], ..Outcome::default() })
    }
}

fn size(plan: &Plan) -> u64 {
    by_level(plan.level, [SMALL, 1 << 30, 16 << 30]).min(plan.size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::facility::Catalogue;
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
        let mut target = Target::new(catalogue.find("plain").expect("there"), &lab).expect("a target");
        let error = InPlace.run(&mut target, &lab).expect_err("it encrypts nothing");
        assert!(matches!(error.kind, claviger_engine::ErrorKind::Unsupported { .. }), "{error}");
    }
}
