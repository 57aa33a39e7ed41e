//! The beginning of an encryption: turns a file system into a volume whose data are still all plaintext.
//!
//! The reserved areas go after the file system, which must leave enough space before the end of its device. The first sectors are
//! copied there, then the metadata are written, and the boot sector comes last. Until then the file system is not touched.

use std::sync::Arc;

use crate::credential::Credential;
use crate::edit::Step;
use crate::error::{Error, Result};
use crate::filesystems;
use crate::filesystems::free_tail::{end_by_boot_sector, free_tail};
use crate::formats::bitlocker::create::Plan;
use crate::formats::bitlocker::metadata::{Metadata, State};
use crate::formats::bitlocker::protect::Opener;
use crate::formats::bitlocker::{VMK, write};
use crate::random;
use crate::spec::{ReservedAt, Spec};
use crate::store::{SliceStore, Store};

/// The index of the first sectors' place in the plan.
const HEADER_PLACE: usize = 1;

pub(super) fn encryption(store: &Arc<dyn Store>, spec: &Spec<'_>, first: &[Credential]) -> Result<()> {
    if spec.discovery || spec.reserved_at != ReservedAt::AtEnd {
        return Err(Error::misuse("encrypting in place keeps the data's position and size"));
    }
    let plan = Plan::of(store.len(), spec)?;
    let protectors = first.iter().map(|one| Opener::of(std::slice::from_ref(one))).collect::<Result<Vec<_>>>()?;
    if protectors.is_empty() {
        return Err(Error::misuse("a new volume needs a password, a recovery password or a startup key"));
    }
    let begin = plan.kept.iter().map(|part| part.offset).min().unwrap_or_default();
    has_room(store, begin)?;
    let vmk = random::secret(VMK)?;
    let (state, next_state) = (State::PAUSED, State::ENCRYPTED);
    let metadata = Metadata { state, next_state, state_offset: 0, ..plan.metadata(&protectors, &vmk, spec)? };

    let place = plan.kept[HEADER_PLACE].offset;
    let mut header = vec![0; plan.header as usize];
    store.read_at(0, &mut header)?;
    let mut edit = write::rewritten(metadata, &vmk, &[])?;
    edit.steps.insert(0, Step { what: "the beginning of the file system".to_owned(), at: place, bytes: header });
    edit.steps.push(Step { what: "the first sector".to_owned(), at: 0, bytes: plan.first_sector().to_vec() });
    edit.carry_out(&**store)
}

/// Checks that there is a sound file system that Windows can encrypt, and that it ends before `begin`.
fn has_room(store: &Arc<dyn Store>, begin: u64) -> Result<()> {
    let end = end_by_boot_sector(&**store)?.ok_or_else(|| {
        Error::unsupported("encrypting anything but NTFS, exFAT or FAT in place").hint("Nothing was changed.")
    })?;
    let len = store.len();
    if end > begin {
        let (missing, needed) = (end - begin, len - begin);
        let what = format!("the file system ends at byte {end} of {len}, but {needed} bytes are needed after it");
        return Err(Error::misuse(what).hint(format!(
            "Nothing was changed. Shrink the file system (ntfsresize) or enlarge the file or partition by at least \
             {missing} bytes."
        )));
    }
    // Checks that it is sound and was cleanly unmounted.
    let inside: Arc<dyn Store> = Arc::new(SliceStore::new(Arc::clone(store), 0, end)?);
    filesystems::must_not_be_hibernated(&inside)?;
    free_tail(&*inside).map(drop)
}
