//! The real thing: facilities are made, opened, worked on and closed.

use std::collections::BTreeMap;
use std::time::Duration;

use claviger_engine::{Error, Result};

use crate::measure::facility::{Facility, FacilityTarget};
use crate::measure::lab::Lab;
use crate::measure::run::schedule::{Attempt, Bench, PassDone, ScheduledPass, Trouble};
use crate::measure::run::watch::{self, Watch};
use crate::measure::workloads::{On, Workload};
use crate::measure::{machine, processes};
use crate::model::machine::OTHERS_MAX;
use crate::model::plan::Caches;

/// The machine is calm if other programs leave it alone for this long; it gets `CALM_TRIES` chances.
const CALM: Duration = Duration::from_millis(500);
const CALM_TRIES: usize = 20;

/// How many stores of facilities there are at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoresAtOnce {
    /// To the end of the run: there is room for all of them at once.
    All,
    /// For one pass, which makes it anew: there is room for one at a time.
    One,
}

/// Facilities in use. Dropping it closes them and removes their stores.
pub struct Real<'a> {
    labs: &'a [Lab],
    facilities: &'a [Facility],
    workloads: &'a [&'static Workload],
    stores_at_once: StoresAtOnce,
    targets: BTreeMap<String, FacilityTarget>,
}

impl<'a> Real<'a> {
    /// Nothing is made yet. `labs` has one for each medium of the plan.
    pub fn new(
        labs: &'a [Lab],
        facilities: &'a [Facility],
        workloads: &'a [&'static Workload],
        stores_at_once: StoresAtOnce,
    ) -> Self {
        Self { labs, facilities, workloads, stores_at_once, targets: BTreeMap::new() }
    }

    /// The facility, made and open, unless the workload is to do that.
    fn target(&mut self, step: &ScheduledPass, on: On, lab: &Lab) -> Result<FacilityTarget> {
        let mut target = match self.targets.remove(&step.facility) {
            Some(target) => target,
            None => {
                let facility = self.facilities.iter().find(|f| f.name == step.facility);
                let unknown = || Error::misuse(format!("there is no facility called {}", step.facility));
                FacilityTarget::new(facility.ok_or_else(unknown)?, lab)?
            }
        };
        if on != On::Itself {
            target.open()?;
        }
        Ok(target)
    }
}

impl Bench for Real<'_> {
    fn pass(&mut self, step: &ScheduledPass) -> Attempt {
        let workload = self.workloads.iter().find(|w| w.name == step.workload).ok_or_else(|| {
            Trouble::Workload(Error::misuse(format!("there is no workload called {}", step.workload)))
        })?;
        let medium = self.labs[0].plan.medium_of(&step.facility);
        let lab = &self.labs[medium];
        // If anything below fails, the target is dropped and made again for the next pass.
        let mut target = self.target(step, workload.on, lab).map_err(Trouble::Facility)?;
        lab.drop_caches().map_err(Trouble::Workload)?;
        let at = machine::utc_now();
        let watch = Watch::start();
        let outcome = (workload.run)(&mut target, lab).map_err(Trouble::Workload)?;
        processes::reap();
        let conditions = watch.conditions(lab.plan.caches == Caches::Dropped);
        match self.stores_at_once {
            StoresAtOnce::All => drop(self.targets.insert(step.facility.clone(), target)),
            // Closed first, so that a failure to reach the store is not counted as a success.
            StoresAtOnce::One => target.close().map_err(Trouble::Workload)?,
        }
        Ok(PassDone { at, conditions, outcome })
    }

    fn wait_for_calm(&mut self) {
        let cancelled = self.labs[0].cancelled;
        for _ in 0..CALM_TRIES {
            if cancelled() || watch::idle_cpu(CALM) <= OTHERS_MAX {
                return;
            }
        }
    }
}
