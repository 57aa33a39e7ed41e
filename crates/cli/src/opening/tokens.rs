//! `--token-only`: what a token in the header names releases the passphrase, and nobody types one.

use claviger_engine::formats::{Releaser, Sealed};
use claviger_engine::{Credential, Error, ErrorKind, Header, Result};

use crate::opening::certificates::CertificateArgs;

/// A passphrase that was released, and the keyslot that it is for, if that is only one.
pub struct Released {
    pub credentials: Vec<Credential>,
    pub keyslot: Option<u32>,
}

/// Asks what the tokens name, one after the other, for a passphrase: only for `keyslot`, if one is given. No device is asked that the
/// options do not name, since a header may come from anybody.
///
/// # Errors
/// `Misuse` if there is no such token, or the options do not name what it takes; `Unsupported` where none can be used here; what
/// the last device says otherwise.
pub fn release(header: &dyn Header, keyslot: Option<u32>, args: &CertificateArgs) -> Result<Released> {
    let mut sealed = header.sealed();
    sealed.retain(|sealed| keyslot.is_none_or(|wanted| sealed.keyslots.contains(&wanted)));
    if sealed.is_empty() {
        return Err(Error::misuse("no token in its header leads to a passphrase")
            .hint("Leave out --token-only. Only LUKS2 has tokens; `claviger token list` shows them."));
    }
    let mut said = None;
    for sealed in &sealed {
        let Releaser::SmartCard { label, .. } = &sealed.by else { continue };
        match args.smart_card(label.as_deref()).and_then(|keys| sealed.release(&keys)) {
            Ok(credential) => {
                let only = if let [number] = sealed.keyslots[..] { Some(number) } else { None };
                return Ok(Released { credentials: vec![credential], keyslot: keyslot.or(only) });
            }
            // Another card may be meant by another token.
            Err(e) if matches!(e.kind, ErrorKind::WrongCredential(_)) => said = Some(e),
            Err(e) => return Err(e),
        }
    }
    Err(said.unwrap_or_else(|| cannot_be_used(&sealed)))
}

fn cannot_be_used(sealed: &[Sealed]) -> Error {
    let each = sealed.iter().map(|sealed| format!("token {}: {}", sealed.token, sealed.needs));
    Error::unsupported(format!("what its tokens take ({})", each.collect::<Vec<_>>().join("; ")))
        .hint("A passphrase or a recovery key of another keyslot opens the volume without --token-only.")
}
