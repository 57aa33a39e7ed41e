//! What the bytes show without a password: of one copy, and of two.

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

/// Where the header of a hidden volume is, from the beginning, and that of its backup, from the end, in bytes (VeraCrypt's
/// documentation, "VeraCrypt Volume Format Specification"). Every volume has noise there.
const HIDDEN_HEADER: u64 = 64 << 10;

/// As the headers of a backup begin there, from the end.
const BACKUP_HEADERS: u64 = 128 << 10;

/// What has a mark, or is no noise from its first byte on: then there is nothing to be denied.
pub fn says_what_it_is(store: &Arc<dyn Store>) -> Result<Option<Finding>> {
    let seen = diagnosis::look(store)?;
    if let Some(sure) = seen.formats.iter().find(|opinion| matches!(opinion.verdict, Verdict::Yes(_))) {
        let sees = format!("It is a volume of {}, and says so. No more was looked at.", sure.format);
        return Ok(Some(Finding::nothing("mark", View::OneCopy, sees).gives(What::Encryption, Sure::Certain).advised(
            "Nobody can deny that. Volumes without any mark are those of TrueCrypt, VeraCrypt and plain dm-crypt, and of LUKS2 \
             without its detached header.",
        )));
    }
    let kind = seen.filesystem.map(|found| found.kind.described().to_owned());
    let begins = seen.content.map_or(Look::Zeros, |content| content.begins);
    let sees = match seen.mark.map(|mark| mark.what).or(kind) {
        Some(what) => {
            format!("It begins as {what} does: no volume, unless one is hidden as that. No more was looked at.")
        }
        None if begins == Look::Random => return Ok(None),
        None => "It does not begin with noise, as every volume without a mark does. No more was looked at.".to_owned(),
    };
    Ok(Some(Finding::nothing("mark", View::OneCopy, sees)))
}

/// What one copy shows, `file` being what is at `path`, if that is a file, and `store` the volume in it.
pub fn one_copy(path: &Path, file: Option<&FileStore>, store: &dyn Store) -> Result<Vec<Finding>> {
    // First: what was read is in the cache, and counts as written.
    if let Some(file) = file {
        file.forget_cached();
    }
    let holes = file.map(holes).transpose()?;
    let noise = measured("Looking", store.len(), |done| Noise::of(store, done))?;
    let rest = [not_noise(&noise), frequencies(&noise), headers(store)?];
    Ok([shape(path, store.len(), &noise)].into_iter().chain(holes).chain(rest).collect())
}

/// Bytes without any mark that are noise from end to end: hardly anything but volumes looks so.
fn shape(path: &Path, len: u64, noise: &Noise) -> Finding {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let named = ["tc", "hc"].iter().any(|usual| extension.eq_ignore_ascii_case(usual));
    let whole = if len.is_multiple_of(512) { "a multiple" } else { "not a multiple" };
    let name = if named { ", and its name ends as theirs usually do" } else { "" };
    let sees = format!(
        "{}, {whole} of 512, without a mark, and it begins with noise{name}. So do volumes of TrueCrypt, VeraCrypt and plain \
         dm-crypt; a disk that was wiped, or a file of random bytes, would as well.",
        size::exact(len)
    );
    let sure = if named || noise.first.is_none() && len.is_multiple_of(512) { Sure::Likely } else { Sure::Possible };
    Finding::nothing("shape", View::OneCopy, sees).gives(What::Encryption, sure).advised(
        "Nothing hides that. Have a reason why such a file is there, or a whole disk that was wiped instead of a file.",
    )
}

fn holes(file: &FileStore) -> Result<Finding> {
    let holes = file.unwritten()?;
    let bytes: u64 = holes.iter().map(|hole| hole.end - hole.start).sum();
    let Some(first) = holes.first() else {
        let sees = "As far as its file system tells, every byte was written once: there is no hole.";
        return Ok(Finding::nothing("holes", View::OneCopy, sees));
    };
    let (bytes, at) = (size::exact(bytes), first.start);
    let sees = format!("{bytes} of the file were never written, the first from byte {at} on: nothing can be there.");
    Ok(Finding::nothing("holes", View::OneCopy, sees).gives(What::Use, Sure::Certain).advised(FILL))
}

const FILL: &str = "Make the volume anew without --quick, which fills it with noise, and move the files there. A copy made with \
                    `cp --sparse=always`, a disk that got TRIM, and a quick creation leave such places; this program never passes \
                    TRIM on.";

fn not_noise(noise: &Noise) -> Finding {
    let Noise { sectors, zeros, ordered, first, .. } = noise;
    let Some(first) = first else {
        let sees =
            format!("All {sectors} sectors are like noise, each by itself (of noise, less than one in 10^9 fails).");
        return Finding::nothing("noise", View::OneCopy, sees);
    };
    let sees = format!(
        "Of {sectors} sectors {zeros} are zeros, and {ordered} are no noise either (of noise, less than one in 10^9 fails); the \
         first is at byte {first}. All others hold something."
    );
    Finding::nothing("noise", View::OneCopy, sees).gives(What::Use, Sure::Certain).advised(FILL)
}

fn frequencies(noise: &Noise) -> Finding {
    let deviation = noise.deviation;
    let sees = format!(
        "How often each byte value occurs in all that is like noise is {deviation:+.1} standard deviations from noise; beyond 4.9, up \
         or down, noise is once in 10^6."
    );
    let finding = Finding::nothing("frequencies", View::OneCopy, sees);
    if deviation.abs() <= 4.9 {
        return finding;
    }
    finding
        .gives(What::Use, Sure::Likely)
        .advised("Make the volume anew with a program that fills it with encrypted zeros or noise.")
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
        let sees = "Where headers of a volume, of a hidden one and of their backups would be there is noise. So there is in every \
                    volume: without a password nobody knows what it is.";
        return Ok(Finding::nothing("headers", View::OneCopy, sees));
    }
    let sees = format!("There is no noise, and so no header, at byte {}.", other.join(" and "));
    Ok(Finding::nothing("headers", View::OneCopy, sees).gives(What::Use, Sure::Certain).advised(
        "In a volume of TrueCrypt 6 or later, or VeraCrypt, that is damage: `claviger verify` says of which copy.",
    ))
}

/// What two copies show, and what of it lies in free space, where somebody has the password.
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
    let size = if same_size { "" } else { " Their sizes differ; what both have was compared." };
    match changed {
        0 => Finding::nothing("changes", View::TwoCopies, format!("None of {sectors} sectors was changed.{size}")),
        _ => {
            let sees = format!(
                "{changed} of {sectors} sectors were changed, in these of {} equal parts: [{map}].{size}",
                parts.len()
            );
            Finding::nothing("changes", View::TwoCopies, sees).gives(What::Use, Sure::Certain).advised(
                "Who sees a volume twice sees where it was written. Keep backups of its files, not of the volume, or make a new \
                 volume for each copy; and no snapshots below it.",
            )
        }
    }
}

fn hidden_headers(changed: &[String], front: bool) -> Finding {
    if changed.is_empty() {
        let sees = "Where a hidden volume's header or its backup would be, nothing was changed.";
        return Finding::nothing("hidden-header", View::TwoCopies, sees);
    }
    let sees = format!(
        "Where a hidden volume's header or its backup would be, at byte {}, something was changed. That happens when a hidden \
         volume is made or its password changed, and when a volume is made anew or a backup of its headers restored.",
        changed.join(" and ")
    );
    // The header in front changes where all headers do.
    Finding::nothing("hidden-header", View::TwoCopies, sees)
        .gives(What::Hidden, if front { Sure::Possible } else { Sure::Likely })
        .advised("Destroy all copies from before. Make a hidden volume before the first copy of the outer one is made.")
}

/// Something that reads `len` bytes, with a bar.
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
