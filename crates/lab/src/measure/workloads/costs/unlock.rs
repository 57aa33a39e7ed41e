//! How long it takes to open a facility, and to refuse a wrong passphrase.

use std::fs;

use super::{SMALL, apart, if_supported};
use crate::measure::facility::Gives;
use crate::measure::workloads::prelude::*;

/// The file whose first byte is read, in a facility that provides a folder.
const FIRST: &str = "claviger-lab-first";

/// Opening with the right passphrase and with a wrong one.
pub static UNLOCK: Workload = Workload {
    name: "unlock",
    title: "Time to unlock it",
    measures: |_| {
        "Seconds from the command until the first byte can be read, and until a wrong passphrase is refused. The \
            volume is created with its own program's defaults, at the full cost of the key derivation."
            .into()
    },
    not: "The time says how long people wait, not how strong the derivation is: that depends on its kind and cost, \
        and an attacker uses another machine. Programs that choose the cost by a measurement (LUKS2) aim at the same \
        time on every machine. Where a wrong passphrase is not recognised, there is no figure for it.",
    on: On::Itself,
    estimate_s: |_| 10.0,
    room: |_| SMALL,
    run: |target, lab| Ok(apart(target, lab, SMALL, |target| unlocked(target, lab))?.into()),
    ..Workload::PLAIN
};

/// The figures of a facility that is made anew for them.
fn unlocked(target: &mut FacilityTarget, lab: &Lab) -> Result<Vec<Measure>> {
    target.create_default()?;
    // Creates what is read first, so that no measured time includes writing it.
    if target.facility().gives == Gives::Folder {
        fs::write(target.folder()?.join(FIRST), FIRST)?;
    } else {
        target.bytes()?;
    }
    target.close()?;

    lab.go_on()?;
    lab.drop_caches()?;
    let mut measures = vec![Measure::cost(Case::new("unlock"), first_byte(target)?)];
    target.close()?;

    lab.go_on()?;
    lab.drop_caches()?;
    let refused = if_supported(target.refuse())?;
    measures.extend(refused.map(|took| Measure::cost(Case::new("refuse a wrong passphrase"), took)));
    Ok(measures)
}

/// Opens it and reads its first sectors, or a file.
fn first_byte(target: &mut FacilityTarget) -> Result<Elapsed> {
    let meter = Meter::start();
    target.open()?;
    if target.facility().gives == Gives::Folder {
        fs::read(target.folder()?.join(FIRST))?;
    } else {
        target.bytes()?.device()?.read(0, &mut Buffer::new(4096))?;
    }
    Ok(meter.elapsed())
}
