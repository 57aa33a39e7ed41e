//! A volume that could have one of several formats without a signature.

use std::sync::Arc;
use std::time::Instant;

use super::takes::Takes;
use super::{Header, Unlocked};
use crate::credential::{Credential, Unlock};
use crate::error::{Error, ErrorKind, Result};
use crate::store::Store;

/// The headers of a volume, one for each possible format. All are tried, the cheapest first.
pub(super) struct Several {
    /// The headers, each with its format's name.
    pub headers: Vec<(&'static str, Box<dyn Header>)>,
}

impl Header for Several {
    /// The first format that opens wins. Formats that do not know a parameter, such as another format's hash or a PIM, are left
    /// out.
    fn unlock(&self, with: &Unlock<'_>) -> Result<Unlocked> {
        let begun = Instant::now();
        let mut headers: Vec<_> = self.headers.iter().map(|(name, h)| (*name, h, h.effort(with))).collect();
        headers.sort_by_key(|(_, _, effort)| *effort);
        let total: u64 = headers.iter().map(|(_, _, effort)| effort).sum();
        let (mut before, mut refused, mut wrong, mut left_out) = (0, Vec::new(), Vec::new(), None);
        for (name, header, effort) in headers {
            let show = |done: u64, _| {
                if let Some(progress) = with.progress {
                    progress(before + done, total);
                }
            };
            if let Some(trying) = with.trying {
                trying(name);
            }
            match header.unlock(&Unlock { progress: Some(&show), ..*with }) {
                Ok(unlocked) => {
                    if let Some(progress) = with.progress {
                        progress(total, total);
                    }
                    return Ok(Unlocked { took: begun.elapsed(), ..unlocked });
                }
                Err(e) => match e.kind {
                    ErrorKind::WrongCredential(_) => wrong.push((name, e)),
                    ErrorKind::Misuse(_) | ErrorKind::CredentialKind { .. } => refused.push(e),
                    ErrorKind::TooLittleMemory { .. } => left_out = Some(e),
                    _ => return Err(e),
                },
            }
            before += effort;
        }
        Err(left_out.unwrap_or_else(|| none_opened(wrong, refused, begun)))
    }

    fn takes(&self) -> Vec<(&'static str, Takes)> {
        self.headers.iter().flat_map(|(_, header)| header.takes()).collect()
    }

    fn data(&self) -> &Arc<dyn Store> {
        self.headers[0].1.data()
    }

    fn asks_passphrase(&self, keyfiles: &[Credential]) -> bool {
        self.headers.iter().any(|(_, header)| header.asks_passphrase(keyfiles))
    }

    fn effort(&self, with: &Unlock<'_>) -> u64 {
        self.headers.iter().map(|(_, header)| header.effort(with)).sum()
    }
}

/// The error for all formats. Those that could not be tried are mentioned only if none could.
fn none_opened(mut wrong: Vec<(&'static str, Error)>, mut refused: Vec<Error>, begun: Instant) -> Error {
    match wrong.len() {
        // The last format names the most hashes and ciphers.
        0 => refused.pop().expect("there are at least two formats, and each has failed"),
        1 => wrong.remove(0).1,
        _ => {
            let names: Vec<_> = wrong.iter().map(|(name, _)| *name).collect();
            let what = format!(
                "nothing opens as {} (tried for {:.2} s). These formats have no signature: a wrong passphrase, \
                 wrong keyfiles, a damaged header and a file that is not a volume look the same",
                names.join(" or as "),
                begun.elapsed().as_secs_f64()
            );
            let hint = wrong.pop().and_then(|(_, error)| error.hint);
            Error { hint, ..Error::new(ErrorKind::WrongCredential(what)) }
        }
    }
}
