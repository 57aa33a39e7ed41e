//! Recognises a stored file of a folder from its metadata.

use std::io;

use super::header::{self, HEADER, Header, HeaderLocation, NoHeader, READ};
use super::suite::Suite;
use crate::error::{Error, Result};
use crate::file_formats::{FileFacts, FileState, StoredFile};
use crate::hex;

/// The extended attribute that holds a header.
pub(super) const ATTRIBUTE: &str = "user.ecryptfs";

/// The kind of a stored file.
pub(super) enum File<'a> {
    /// Encrypted, with its header and all bytes that were read of it.
    Encrypted(HeaderLocation, Header<'a>, &'a [u8]),
    /// Creation was interrupted; the file is empty.
    Unfinished,
    /// Only some zeros: the remains of a new file after a power cut, or a file that another program wrote.
    Blank,
    /// Not an eCryptfs file.
    Foreign,
    /// An eCryptfs file whose header cannot be parsed.
    Bad(NoHeader),
}

/// Calls `each` with the file's kind. Like the kernel, looks in front of the contents first, then in the attribute.
pub(super) fn look<T>(of: StoredFile<'_>, each: impl FnOnce(File<'_>) -> T) -> io::Result<T> {
    let mut room = [0; READ];
    let len = of.tree.read_at(of.contents, 0, &mut room)?;
    let bytes = &room[..len];
    let why = match header::parse(bytes, HeaderLocation::File) {
        Ok(header) => return Ok(each(File::Encrypted(HeaderLocation::File, header, bytes))),
        Err(why) => why,
    };
    let attribute = attribute(of)?.unwrap_or_default();
    let attribute = &attribute[..attribute.len().min(READ)];
    match header::parse(attribute, HeaderLocation::Attribute) {
        Ok(header) => return Ok(each(File::Encrypted(HeaderLocation::Attribute, header, attribute))),
        Err(NoHeader::Other) => {}
        Err(bad) => return Ok(each(File::Bad(bad))),
    }
    Ok(each(match why {
        NoHeader::CutShort { size: 0 } => File::Unfinished,
        NoHeader::Other if len == 0 => File::Unfinished,
        NoHeader::Other if is_blank(of, bytes)? => File::Blank,
        NoHeader::Other => File::Foreign,
        bad => File::Bad(bad),
    }))
}

/// The header attribute. `None` if the file has none or its file system does not support attributes.
pub(super) fn attribute(of: StoredFile<'_>) -> io::Result<Option<Vec<u8>>> {
    of.tree.extended(of.file, ATTRIBUTE.as_ref()).or_else(|e| match e.kind() {
        io::ErrorKind::Unsupported | io::ErrorKind::ReadOnlyFilesystem => Ok(None),
        _ => Err(e),
    })
}

/// Whether a file that begins with these bytes is the start of a new header, or all zeros and no longer than a header.
fn is_blank(of: StoredFile<'_>, bytes: &[u8]) -> io::Result<bool> {
    if bytes.len() < 16 {
        return Ok(bytes.iter().take(8).all(|byte| *byte == 0));
    }
    if bytes.iter().any(|byte| *byte != 0) {
        return Ok(false);
    }
    let mut rest = [0; HEADER as usize + 1];
    let len = of.tree.read_at(of.contents, 0, &mut rest)?;
    Ok(len as u64 <= HEADER && rest.iter().all(|byte| *byte == 0))
}

/// Bytes read at a time.
const PIECE: usize = 1 << 20;

/// Reports what is wrong with a file's stored contents. An extent of zeros comes from a crash or a hole, because no key encrypts an
/// extent to zeros.
pub(super) fn check_contents(of: StoredFile<'_>, each: &mut dyn FnMut() -> Result<()>) -> Result<Option<String>> {
    let extent = u64::from(header::EXTENT);
    let stored = look(of, |file| match file {
        File::Encrypted(_, header, _) => header.data_at..header.data_at + header.size.next_multiple_of(extent),
        _ => 0..0,
    })?;
    let (mut at, mut zeros, mut first) = (stored.start, 0u64, 0);
    let mut buffer = vec![0; PIECE.min((stored.end - stored.start) as usize)];
    while at < stored.end {
        let piece = &mut buffer[..(stored.end - at).min(PIECE as u64) as usize];
        match of.tree.read_at(of.contents, at, piece) {
            Ok(read) if read == piece.len() => {}
            Ok(_) => return Ok(Some(format!("It ends in the middle of its contents, after byte {at}."))),
            Err(e) => return Ok(Some(format!("Its contents cannot be read after byte {at}: {e}."))),
        }
        for (place, extent) in (at..).step_by(header::EXTENT as usize).zip(piece.chunks(header::EXTENT as usize)) {
            if extent.iter().all(|byte| *byte == 0) {
                first = if zeros == 0 { place } else { first };
                zeros += 1;
            }
        }
        at += piece.len() as u64;
        each()?;
    }
    let lost = zeros.saturating_mul(extent);
    Ok((zeros > 0).then(|| {
        format!("{lost} stored bytes of its contents are zeros, the first at byte {first}: lost, or never written.")
    }))
}

/// The facts about a file that need no key.
pub(super) fn facts(of: StoredFile<'_>) -> io::Result<FileFacts> {
    let stored = of.tree.attributes(of.contents)?.size;
    let clear = FileFacts::clear(stored);
    look(of, |file| match file {
        File::Encrypted(place, header, _) => encrypted(place, &header, stored),
        File::Unfinished | File::Blank => {
            let problem = Some(match stored {
                0 => "It is empty and has no header: it was cut short or never finished.".to_owned(),
                _ => "Its header is missing or zeros: it was destroyed, or never finished.".to_owned(),
            });
            FileFacts { state: FileState::Unfinished, size: Some(0), problem, ..clear }
        }
        File::Foreign => clear,
        File::Bad(why) => {
            let state = match &why {
                NoHeader::Unsupported(_) => FileState::Unsupported,
                NoHeader::Other | NoHeader::CutShort { .. } | NoHeader::Damaged { .. } => FileState::Damaged,
            };
            let problem = Some(format!("Its header cannot be read: {}.", Error::from(why).kind));
            FileFacts { state, size: None, problem, ..clear }
        }
    })
}

/// Bytes that may be stored beyond the end: older kernels gave an empty file its first extent.
fn spare(size: u64) -> u64 {
    if size == 0 { header::EXTENT.into() } else { 0 }
}

fn encrypted(place: HeaderLocation, header: &Header<'_>, stored: u64) -> FileFacts {
    let suite: Option<Suite> = header.keys.first().map(|key| key.suite);
    let end = header.data_at + header.size.next_multiple_of(u64::from(header::EXTENT));
    let (state, problem) = if suite.is_none() {
        let what = "It is encrypted for a public key (eCryptfs's openssl module), which is not supported.";
        (FileState::Unsupported, Some(what.to_owned()))
    } else if header.size > 0 && stored < end {
        let what = format!("It was cut short: {end} bytes should be stored, but only {stored} are.");
        (FileState::CutShort, Some(what))
    } else if stored > end + spare(header.size) {
        let what = format!(
            "{end} bytes should be stored, but {stored} are: data was appended, or its recorded size is wrong."
        );
        (FileState::TooLong, Some(what))
    } else {
        (FileState::Encrypted, None)
    };
    let signatures = header.keys.iter().map(|key| &key.signature).chain(&header.public);
    FileFacts {
        state,
        cipher: suite.map(|suite| suite.cipher().name.to_owned()),
        key_bits: suite.map(|suite| suite.key_bytes as u32 * 8),
        keys: signatures.map(|signature| hex::digits(signature)).collect(),
        metadata: Some(match place {
            HeaderLocation::File => format!("its first {} bytes", header.data_at),
            HeaderLocation::Attribute => format!("the extended attribute {ATTRIBUTE}"),
        }),
        version: Some(header.version.into()),
        size: Some(header.size),
        stored,
        problem,
    }
}
