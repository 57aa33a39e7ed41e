//! Keys on smart cards and other tokens, through a PKCS#11 module: a library from the card's maker or from OpenSC.
//!
//! The module is foreign code inside this process and can read its memory. The key never leaves the card: the card decrypts.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use claviger_crypto::{Secret, rsa};
use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
use cryptoki::error::{Error as CardError, RvError};
use cryptoki::mechanism::Mechanism;
use cryptoki::object::{Attribute, AttributeType, KeyType, ObjectClass, ObjectHandle};
use cryptoki::session::{Session, UserType};
use cryptoki::slot::Slot;
use cryptoki::types::RawAuthPin;

use super::{About, Certificate, PrivateKey, not_for_this_key};
use crate::error::{Error, ErrorKind, Result};

/// The RSA keys of a token, with the certificates stored beside them. `token` is the token's label, needed if there are several.
/// Calls `ask` with the label for the PIN.
///
/// # Errors
/// `Misuse` if no token has that label, or if there are several and no label was given; `WrongCredential` for a wrong PIN;
/// `Unsupported` if it has no RSA key; `Io` for errors of the module.
pub fn open(
    module: &Path,
    token: Option<&str>,
    ask: &mut dyn FnMut(&str) -> Result<Secret>,
) -> Result<Vec<Arc<dyn PrivateKey>>> {
    if cfg!(target_feature = "crt-static") {
        return Err(Error::unsupported("loading PKCS#11 modules in the static program")
            .hint("Use a dynamically linked claviger: a package, or `cargo install claviger`."));
    }
    let mut open = || {
        let context = Pkcs11::new(module).map_err(|e| failed(&e))?;
        context.initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK)).or_else(|e| match e {
            CardError::Pkcs11(RvError::CryptokiAlreadyInitialized, _) => Ok(()),
            e => Err(failed(&e)),
        })?;
        let (slot, label) = choose(&context, token)?;
        let session = context.open_ro_session(slot).map_err(|e| failed(&e))?;
        log_in(&context, slot, &session, &label, ask)?;
        keys(session, &label)
    };
    open().map_err(|e| e.at(module))
}

/// The token with that label, or the only token.
fn choose(context: &Pkcs11, wanted: Option<&str>) -> Result<(Slot, String)> {
    let mut found = Vec::new();
    for slot in context.get_slots_with_token().map_err(|e| failed(&e))? {
        let info = context.get_token_info(slot).map_err(|e| failed(&e))?;
        let label = info.label().trim_end().replace(char::is_control, "\u{fffd}");
        // Drivers list a slot for each reader, and uninitialised tokens.
        if info.token_initialized() && wanted.is_none_or(|wanted| wanted == label) {
            found.push((slot, label));
        }
    }
    let labels = || found.iter().map(|(_, label)| &label[..]).collect::<Vec<_>>().join(", ");
    match (&found[..], wanted) {
        ([_], _) => Ok(found.remove(0)),
        ([], Some(wanted)) => Err(Error::misuse(format!("no token is called {wanted}"))),
        ([], None) => Err(Error::misuse("no smart card or other token was found")),
        _ => Err(Error::misuse(format!("several tokens were found: {}", labels())).hint("Choose one by its label.")),
    }
}

fn log_in(
    context: &Pkcs11,
    slot: Slot,
    session: &Session,
    label: &str,
    ask: &mut dyn FnMut(&str) -> Result<Secret>,
) -> Result<()> {
    let info = context.get_token_info(slot).map_err(|e| failed(&e))?;
    if !info.login_required() {
        return Ok(());
    }
    let logged_in = match info.protected_authentication_path() {
        // The reader has its own keypad.
        true => session.login(UserType::User, None),
        // The crate wipes its copy.
        false => session.login_with_raw(UserType::User, &RawAuthPin::new(Box::new(ask(label)?.to_vec()))),
    };
    logged_in.or_else(|e| match e {
        CardError::Pkcs11(RvError::UserAlreadyLoggedIn, _) => Ok(()),
        CardError::Pkcs11(RvError::PinIncorrect | RvError::PinInvalid | RvError::PinLenRange, _) => {
            let what = format!("wrong PIN for the token {label}");
            Err(Error::new(ErrorKind::WrongCredential(what)).hint("A few wrong PINs lock the card."))
        }
        CardError::Pkcs11(RvError::PinLocked, _) => {
            Err(ErrorKind::WrongCredential(format!("the token {label} is locked after too many wrong PINs")).into())
        }
        e => Err(failed(&e)),
    })
}

/// The keys of an open session, which they share.
fn keys(session: Session, label: &str) -> Result<Vec<Arc<dyn PrivateKey>>> {
    let certificates = certificates(&session)?;
    let wanted = [Attribute::Class(ObjectClass::PRIVATE_KEY), Attribute::KeyType(KeyType::RSA)];
    let mut found = Vec::new();
    for handle in session.find_objects(&wanted).map_err(|e| failed(&e))? {
        let asked = [AttributeType::Id, AttributeType::Label, AttributeType::Modulus];
        let mut about = About { origin: format!("token {label}"), ..About::default() };
        let mut id = Vec::new();
        for attribute in session.get_attributes(handle, &asked).map_err(|e| failed(&e))? {
            match attribute {
                Attribute::Id(bytes) => id = bytes,
                Attribute::Label(name) if !name.is_empty() => {
                    about.names.push(String::from_utf8_lossy(&name).replace(char::is_control, "\u{fffd}"));
                }
                Attribute::Modulus(modulus) => {
                    about.modulus = modulus.into_iter().skip_while(|byte| *byte == 0).collect();
                }
                _ => {}
            }
        }
        let modulus = |certificate: &Certificate| {
            certificate.public.as_ref().is_some_and(|public: &rsa::RsaPublicKey| public.modulus() == about.modulus)
        };
        let its_own = certificates.iter().find(|(_, certificate)| modulus(certificate));
        // Some cards do not reveal the modulus of a private key.
        let by_id =
            || certificates.iter().find(|(other, _)| about.modulus.is_empty() && !id.is_empty() && *other == id);
        if let Some((_, certificate)) = its_own.or_else(by_id) {
            about.thumbprint = Some(certificate.thumbprint);
            about.key_identifier.clone_from(&certificate.key_identifier);
            about.names.insert(0, certificate.subject.clone());
            about.modulus = certificate.public.as_ref().map_or_else(Vec::new, |public| public.modulus().to_vec());
        }
        found.push((handle, about));
    }
    if found.is_empty() {
        return Err(Error::unsupported(format!("the token {label}, which has no RSA key")));
    }
    let session = Arc::new(Mutex::new(session));
    let key = |(handle, about)| Arc::new(Key { session: Arc::clone(&session), handle, about }) as Arc<dyn PrivateKey>;
    Ok(found.into_iter().map(key).collect())
}

/// The certificates of a token, each with the identifier that it shares with its key.
fn certificates(session: &Session) -> Result<Vec<(Vec<u8>, Certificate)>> {
    let mut all = Vec::new();
    for handle in session.find_objects(&[Attribute::Class(ObjectClass::CERTIFICATE)]).map_err(|e| failed(&e))? {
        let (mut id, mut der) = (Vec::new(), Vec::new());
        let asked = [AttributeType::Id, AttributeType::Value];
        for attribute in session.get_attributes(handle, &asked).map_err(|e| failed(&e))? {
            match attribute {
                Attribute::Id(bytes) => id = bytes,
                Attribute::Value(bytes) => der = bytes,
                _ => {}
            }
        }
        // A certificate that cannot be read does not belong to a usable key.
        all.extend(Certificate::read(&der).ok().map(|certificate| (id, certificate)));
    }
    Ok(all)
}

/// A key on a token.
struct Key {
    /// One operation at a time.
    session: Arc<Mutex<Session>>,
    handle: ObjectHandle,
    about: About,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({:?})", self.about)
    }
}

impl PrivateKey for Key {
    fn about(&self) -> &About {
        &self.about
    }

    fn decrypt(&self, ciphertext: &[u8]) -> Result<Secret> {
        let significant = &ciphertext[ciphertext.iter().take_while(|byte| **byte == 0).count()..];
        // Cards require a ciphertext as long as the modulus.
        let len = if self.about.modulus.is_empty() { ciphertext.len() } else { self.about.modulus.len() };
        let mut whole = vec![0; len.checked_sub(significant.len()).ok_or_else(not_for_this_key)?];
        whole.extend_from_slice(significant);
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        match session.decrypt(&Mechanism::RsaPkcs, self.handle, &whole) {
            Ok(plain) => Ok(Secret::from_vec(plain)),
            Err(CardError::Pkcs11(
                RvError::EncryptedDataInvalid
                | RvError::EncryptedDataLenRange
                | RvError::DataInvalid
                | RvError::DataLenRange
                | RvError::FunctionFailed
                | RvError::GeneralError,
                _,
            )) => Err(not_for_this_key()),
            Err(e) => Err(failed(&e)),
        }
    }
}

fn failed(error: &CardError) -> Error {
    let what = match error {
        CardError::LibraryLoading(e) => format!("not a PKCS#11 module: {e}"),
        e => format!("the smart card's module says: {e}"),
    };
    ErrorKind::Io(std::io::Error::other(what)).into()
}
