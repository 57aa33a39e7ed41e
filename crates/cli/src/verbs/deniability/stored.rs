//! What the bytes of one copy, or of two, reveal without a password.

use std::path::Path;
use std::sync::Arc;

use claviger_engine::diagnosis::observer::{Changes, Noise, is_noise};
use claviger_engine::diagnosis::{self, Look};
use claviger_engine::store::FileStore;
use claviger_engine::{Result, Store, Verdict};

use super::finding::{Finding, Sure, View, What};
use super::outer::Free;
use crate::terminal::progress::Progress;
use crate::terminal::{cancel, size};

/// The offset of a hidden volume's header from the start, and of its backup from the end, in bytes (VeraCrypt's documentation,
/// "VeraCrypt Volume Format Specification"). Every volume has random bytes there.
const HIDDEN_HEADER: u64 = 64 << 10;

/// The offset of the backup headers from the end, in bytes.
const BACKUP_HEADERS: u64 = 128 << 10;

/// A finding for a volume with a signature, or with a start that is not random: it has nothing to deny.
pub fn says_what_it_is(store: &Arc<dyn Store>) -> Result<Option<Finding>> {
    let seen = diagnosis::look(store)?;
    if let Some(sure) = seen.formats.iter().find(|opinion| matches!(opinion.verdict, Verdict::Yes(_))) {
        let sees = format!("It is a {} volume: its header has a signature. Nothing else was checked.", sure.format);
        return Ok(Some(Finding::nothing("mark", View::OneCopy, sees).gives(What::Encryption, Sure::Certain).advised(
            "This cannot be denied. TrueCrypt, VeraCrypt and plain dm-crypt volumes have no signature, nor has LUKS2 with a detached \
             header.",
        )));
    }
    let kind = seen.filesystem.map(|found| found.kind.described().to_owned());
    let begins = seen.content.map_or(Look::Zeros, |content| content.begins);
    let sees = match seen.mark.map(|mark| mark.what).or(kind) {
        Some(what) => {
            format!("It begins like {what}, so it does not look encrypted. Nothing else was checked.")
        }
        None if begins == Look::Random => return Ok(None),
        None => "It does not begin with noise, so it does not look like a volume. Nothing else was checked.".to_owned(),
    };
    Ok(Some(Finding::nothing("mark", View::OneCopy, sees)))
}

/// The findings from one copy. `file` is the file at `path`, if it is one; `store` is the volume in it.
pub fn one_copy(path: &Path, file: Option<&FileStore>, store: &dyn Store) -> Result<Vec<Finding>> {
    // First, because cached data would count as written.
    if let Some(file) = file {
        file.forget_cached();
    }
    let holes = file.map(holes).transpose()?;
    let noise = measured("Examining", store.len(), |done| Noise::of(store, done))?;
    let rest = [not_noise(&noise), frequencies(&noise), headers(store)?];
    Ok([shape(path, store.len(), &noise)].into_iter().chain(holes).chain(rest).collect())
}

/// Bytes without a signature that are random throughout: hardly anything but volumes looks like this.
fn shape(path: &Path, len: u64, noise: &Noise) -> Finding {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let named = ["tc", "hc"].iter().any(|usual| extension.eq_ignore_ascii_case(usual));
    let whole = if len.is_multiple_of(512) { "a multiple" } else { "not a multiple" };
    let name = if named { ", and its name has a usual extension" } else { "" };
    let sees = format!(
        "{}, {whole} of 512. It has no signature and begins with noise{name}. TrueCrypt, VeraCrypt and plain dm-crypt volumes look \
         like this. So do a wiped disk and a file of random bytes.",
        size::exact(len)
    );
    let sure = if named || noise.first.is_none() && len.is_multiple_of(512) { Sure::Likely } else { Sure::Possible };
    Finding::nothing("shape", View::OneCopy, sees).gives(What::Encryption, sure).advised(
        "This cannot be hidden. Have a reason for such a file, or use a whole disk, which may have been wiped.",
    )
}

fn holes(file: &FileStore) -> Result<Finding> {
    let holes = file.unwritten()?;
    let bytes: u64 = holes.iter().map(|hole| hole.end - hole.start).sum();
    let Some(first) = holes.first() else {
        let sees = "According to its file system every byte has been written: there are no holes.";
        return Ok(Finding::nothing("holes", View::OneCopy, sees));
    };
    let (bytes, at) = (size::exact(bytes), first.start);
    let sees = format!("{bytes} of the file were never written, the first at byte {at}. No data can be there.");
    Ok(Finding::nothing("holes", View::OneCopy, sees).gives(What::Use, Sure::Certain).advised(FILL))
}

const FILL: &str = "Create a new volume without --quick, which fills it with noise, and move the files there. Quick creation, \
                    `cp --sparse=always` and TRIM leave such places. This program never passes TRIM on.";

fn not_noise(noise: &Noise) -> Finding {
    let Noise { sectors, zeros, ordered, first, .. } = noise;
    let Some(first) = first else {
        let sees = format!("All {sectors} sectors look like noise (fewer than one random sector in 10^9 would not).");
        return Finding::nothing("noise", View::OneCopy, sees);
    };
    let sees = format!(
        "Of {sectors} sectors {zeros} are zeros, and {ordered} more do not look like noise (fewer than one random sector in 10^9 \
         would not). The first is at byte {first}. All others contain data."
    );
    Finding::nothing("noise", View::OneCopy, sees).gives(What::Use, Sure::Certain).advised(FILL)
}

fn frequencies(noise: &Noise) -> Finding {
    let deviation = noise.deviation;
    let sees = format!(
        "In the sectors that look like noise, the frequencies of byte values deviate from noise by {deviation:+.1} standard \
         deviations. Noise deviates by more than 4.9 once in 10^6 times."
    );
    let finding = Finding::nothing("frequencies", View::OneCopy, sees);
    if deviation.abs() <= 4.9 {
        return finding;
    }
    finding
        .gives(What::Use, Sure::Likely)
        .advised("Create a new volume with a program that fills it with encrypted zeros or noise.")
}

fn headers(store: &dyn Store) -> Result<Finding> {
    let len = store.len();
    let places = [Some(0), Some(HIDDEN_HEADER), len.checked_sub(BACKUP_HEADERS), len.checked_sub(HIDDEN_HEADER)];
    let mut other = Vec::new();
    for at in places.into_iter().flatten() {
        if !is_noise(store, at)? {
            other.push(at.to_string());
        }
    }
    if other.is_empty() {
        let sees = "There is noise where headers, a hidden volume's headers and their backups would be. Every volume has noise there: \
                    only a password tells what it is.";
        return Ok(Finding::nothing("headers", View::OneCopy, sees));
    }
    let sees = format!("There is no noise, and therefore no header, at byte {}.", other.join(" and "));
    Ok(Finding::nothing("headers", View::OneCopy, sees).gives(What::Use, Sure::Certain).advised(
        "In a VeraCrypt volume, or one of TrueCrypt 6 or later, this is damage. To see which copy: \
         `claviger verify VOLUME`.",
    ))
}

/// The findings from two copies. With the password, also which changes are in free space.
pub fn two_copies(earlier: &dyn Store, later: &dyn Store, mut free: Option<Free>) -> Result<Vec<Finding>> {
    let len = later.len().min(earlier.len());
    let (mut front, mut hidden) = (false, Vec::new());
    let changes = measured("Comparing", len, |done| {
        let each = &mut |at: u64| {
            front |= at == 0;
            if at == HIDDEN_HEADER || Some(at) == later.len().checked_sub(HIDDEN_HEADER) {
                hidden.push(at.to_string());
            }
            free.as_mut().map_or(Ok(()), |free| free.changed(at))
        };
        Changes::between(earlier, later, each, done)
    })?;
    let mut findings = vec![changed(&changes, earlier.len() == later.len()), hidden_headers(&hidden, front)];
    findings.extend(free.map(Free::finding));
    Ok(findings)
}

fn changed(changes: &Changes, same_size: bool) -> Finding {
    let Changes { sectors, changed, parts } = changes;
    let map: String = parts.iter().map(|count| if *count > 0 { '#' } else { '.' }).collect();
    let size = if same_size { "" } else { " Their sizes differ; only the common part was compared." };
    match changed {
        0 => Finding::nothing("changes", View::TwoCopies, format!("None of {sectors} sectors was changed.{size}")),
        _ => {
            let sees = format!(
                "{changed} of {sectors} sectors were changed, in these of {} equal parts: [{map}].{size}",
                parts.len()
            );
            Finding::nothing("changes", View::TwoCopies, sees).gives(What::Use, Sure::Certain).advised(
                "Two copies show where the volume was written. Back up its files instead of the volume, or create a new volume for each \
                 copy. Keep no snapshots below it.",
            )
        }
    }
}

fn hidden_headers(changed: &[String], front: bool) -> Finding {
    if changed.is_empty() {
        let sees = "Nothing was changed where a hidden volume's header or its backup would be.";
        return Finding::nothing("hidden-header", View::TwoCopies, sees);
    }
    let sees = format!(
        "The place of a hidden volume's header or its backup, at byte {}, was changed. This happens when a hidden volume is \
         created or its password changed. It also happens when a volume is created anew or its header backup restored.",
        changed.join(" and ")
    );
    // The primary hidden header changes together with all other headers.
    Finding::nothing("hidden-header", View::TwoCopies, sees)
        .gives(What::Hidden, if front { Sure::Possible } else { Sure::Likely })
        .advised("Destroy all older copies. Create a hidden volume before you first copy the outer one.")
}

/// Runs `work` over `len` bytes, with a progress bar.
fn measured<T>(
    what: &'static str,
    len: u64,
    work: impl FnOnce(&mut dyn FnMut(u64) -> Result<()>) -> Result<T>,
) -> Result<T> {
    let bar = Progress::bytes(what);
    let result = work(&mut |done| {
        bar.at(done, len);
        cancel::check()
    });
    bar.clear();
    result
}
