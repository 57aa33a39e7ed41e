//! Finds the format of a store or a name.

use std::sync::Arc;

use super::several::Several;
use super::{FORMATS, Format, Header, Verdict, luks2};
use crate::advice::Advice;
use crate::error::{Error, ErrorKind, Result};
use crate::file_formats::FILE_FORMATS;
use crate::filesystems::{detect, magic};
use crate::store::Store;

/// The name of both versions of LUKS.
const LUKS: &str = "LUKS";

/// Finds the format of `store`, or uses the named one, and reads its header. A `Yes` outranks every `Possible`. Of several
/// `Possible` formats the first is returned, with a header that tries them all.
///
/// # Errors
/// `NotThisFormat` if every format answers `No`; `Misuse` if no format has that name; those of [`Format::open`].
pub fn open(store: &Arc<dyn Store>, name: Option<&str>) -> Result<(&'static dyn Format, Box<dyn Header>)> {
    if let Some(name) = name {
        let format = named(&**store, name)?;
        return Ok((format, format.open(store).map_err(|e| e.in_format(format.name()))?));
    }
    let mut possible = Vec::new();
    let mut reasons = Vec::new();
    for format in FORMATS.iter().copied().filter(|f| !f.headerless()) {
        match format.identify(&**store)? {
            Verdict::Yes(_) => return Ok((format, format.open(store)?)),
            Verdict::Possible(_) => possible.push(format),
            Verdict::No(why) => reasons.push((format.name(), why)),
        }
    }
    if possible.is_empty() {
        let mut start = vec![0; store.len().min(detect::LOOKED_AT as u64) as usize];
        store.read_at(0, &mut start)?;
        // Saying what the store is helps more than saying what it is not.
        let why = match magic::known(&start) {
            _ if store.is_empty() => " (it is empty)".to_owned(),
            Some(what) => format!(" (it holds {what})"),
            None if start.iter().all(|byte| *byte == 0) => format!(" (its first {} bytes are zeros)", start.len()),
            None => {
                let reasons =
                    by_reason(reasons.iter().flat_map(|(format, why)| why.iter().map(|why| (*format, &**why))));
                reasons.iter().map(|reason| format!("\n  {reason}")).collect()
            }
        };
        let what = ErrorKind::NotThisFormat(format!("not an encrypted volume{why}"));
        return Err(Error::new(what)
            .hint("If its beginning was overwritten, restore a header backup, or try the backup header at its end.")
            .advise(Advice::NameFormat));
    }
    all_of(store, &possible)
}

/// Each reason once, after the formats that have it: `LUKS1, LUKS2: no LUKS signature at the start`.
pub fn by_reason<'a>(reasons: impl IntoIterator<Item = (&'static str, &'a str)>) -> Vec<String> {
    let mut all: Vec<(&str, Vec<&str>)> = Vec::new();
    for (format, why) in reasons {
        match all.iter_mut().find(|(known, _)| *known == why) {
            Some((_, formats)) => formats.push(format),
            None => all.push((why, vec![format])),
        }
    }
    all.into_iter().map(|(why, formats)| format!("{}: {why}", formats.join(", "))).collect()
}

/// Like [`open`] for a volume whose beginning may be overwritten: uses every format that finds a possible header, wherever that
/// format stores its copies.
///
/// # Errors
/// Those of [`open`].
pub fn open_by_backup(store: &Arc<dyn Store>) -> Result<(&'static dyn Format, Box<dyn Header>)> {
    let with_header: Vec<_> = FORMATS.iter().copied().filter(|f| !f.headerless()).collect();
    all_of(store, &with_header).or_else(|_| open(store, None))
}

/// Returns a header that tries all those `formats` that find a possible header.
fn all_of(store: &Arc<dyn Store>, formats: &[&'static dyn Format]) -> Result<(&'static dyn Format, Box<dyn Header>)> {
    let mut headers = Vec::new();
    let mut error = None;
    for &format in formats {
        match format.open(store) {
            Ok(header) => headers.push((format, header)),
            Err(e) => error = error.or(Some(e)),
        }
    }
    match headers.len() {
        0 => Err(error.unwrap_or_else(|| ErrorKind::NotThisFormat("there is no format to try".into()).into())),
        1 => Ok(headers.remove(0)),
        _ => {
            let first = headers[0].0;
            let headers = headers.into_iter().map(|(format, header)| (format.name(), header)).collect();
            Ok((first, Box::new(Several { headers })))
        }
    }
}

/// Whether two names are the same, ignoring case and hyphens. `sha512` is `SHA-512`.
pub fn same_name(one: &str, other: &str) -> bool {
    let plain = |name: &str| name.replace('-', "").to_ascii_lowercase();
    plain(one) == plain(other)
}

/// Returns the format with this name for the volume in `store`: `LUKS` means LUKS1 or LUKS2, depending on the header.
///
/// # Errors
/// `Misuse` if there is none; `Io`.
pub fn named(store: &dyn Store, name: &str) -> Result<&'static dyn Format> {
    if same_name(name, LUKS) {
        for format in FORMATS.iter().copied().filter(|f| f.name().starts_with(LUKS)) {
            if !matches!(format.identify(store)?, Verdict::No(_)) {
                return Ok(format);
            }
        }
    }
    by_name(name)
}

/// Returns the format with this name, ignoring case. `LUKS` means its newer version, LUKS2; see [`named`].
///
/// # Errors
/// `Misuse` if there is none.
pub fn by_name(name: &str) -> Result<&'static dyn Format> {
    let name = if same_name(name, LUKS) { luks2::NAME } else { name };
    FORMATS.iter().copied().find(|f| same_name(f.name(), name)).ok_or_else(|| {
        let folders = FILE_FORMATS.iter().filter(|f| f.encrypts()).map(|f| f.name());
        let all: Vec<_> = FORMATS.iter().map(|f| f.name()).chain(folders).collect();
        Error::misuse(format!("there is no format called {name}; use one of: {}", all.join(", ")))
    })
}
