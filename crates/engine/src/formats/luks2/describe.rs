//! What a header says without any passphrase, for people and programs: what `cryptsetup luksDump` shows, and what its tokens mean.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value, json};

use super::binary::Which;
use super::metadata::{Digest, Id, Keyslot, Segment, Size};
use super::read::{CopyState, ReadHeader};
use super::validate::{digests_of, printable, requirements};
use super::{derivation, layout};
use crate::hex;

/// Of the whole header. Salts and digests are in it, which are no secrets, and no key.
pub(super) fn describe(header: &ReadHeader) -> Value {
    let metadata = &header.metadata;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let numbered = |number: u32, mut value: Value| {
        value["number"] = number.into();
        value
    };
    json!({
        "format": "LUKS2",
        "version": 2,
        "uuid": text(&header.binary.uuid),
        "label": text(&header.binary.label),
        "subsystem": text(&header.binary.subsystem),
        "sequence_number": header.binary.seqid,
        "header_size": header.binary.hdr_size,
        "keyslots_size": metadata.config.keyslots_size.0,
        "checksum": header.binary.csum_alg,
        "flags": metadata.config.flags,
        "requirements": requirements(metadata),
        "copies": [copy(header, Which::Primary, &header.primary), copy(header, Which::Secondary, &header.secondary)],
        "segments": metadata.segments.iter().map(|(n, s)| numbered(*n, segment(s))).collect::<Vec<_>>(),
        "keyslots": metadata.keyslots.iter().map(|(n, k)| numbered(*n, keyslot(header, *n, k))).collect::<Vec<_>>(),
        "tokens": metadata.tokens.iter().map(|(n, t)| numbered(*n, token(t))).collect::<Vec<_>>(),
        "digests": metadata.digests.iter().map(|(n, d)| numbered(*n, digest(d))).collect::<Vec<_>>(),
    })
}

fn copy(header: &ReadHeader, which: Which, state: &CopyState) -> Value {
    let state = match state {
        CopyState::Current => "sound".to_owned(),
        CopyState::Stale { seqid } => format!("sound, but older: sequence number {seqid}"),
        CopyState::Differs => "sound, but not the same".to_owned(),
        CopyState::Damaged(error) => error.to_string(),
    };
    json!({ "name": which.name(), "at": which.offset(header.binary.hdr_size), "state": state, "used": which == header.which })
}

fn segment(segment: &Segment) -> Value {
    let Segment { kind, offset, size, iv_tweak, encryption, sector_size, integrity, flags, other: _ } = segment;
    let mut told = json!({ "type": kind, "offset": offset.0 });
    told["size"] = match size {
        Size::Dynamic => "dynamic".into(),
        Size::Fixed(size) => (*size).into(),
    };
    put(&mut told, "cipher", encryption.as_deref());
    put(&mut told, "sector_size", *sector_size);
    put(&mut told, "iv_tweak", iv_tweak.map(|n| n.0).filter(|n| *n > 0));
    put(&mut told, "integrity", integrity.as_ref().map(|i| i.kind.as_str()));
    put(&mut told, "flags", (!flags.is_empty()).then_some(flags.as_slice()));
    told
}

fn keyslot(header: &ReadHeader, number: u32, keyslot: &Keyslot) -> Value {
    let Keyslot { kind, key_size, priority, area, kdf, af, other } = keyslot;
    let digests = digests_of(number, &header.metadata, |d| &d.keyslots);
    let bound = digests.iter().any(|d| layout::digests(header).contains(d));
    let mut told = json!({
        "type": kind,
        "key_bits": u64::from(*key_size) * 8,
        "priority": match priority { Some(0) => "ignored", Some(2) => "preferred", _ => "normal" },
        "area_offset": area.offset.0,
        "area_size": area.size.0,
    });
    if kind == "luks2" {
        told["opens"] = if bound { "the volume" } else { "nothing (unbound)" }.into();
    } else {
        told["resilience"] = area.kind.as_str().into();
        for name in ["mode", "direction"] {
            put(&mut told, name, other.get(name).cloned());
        }
    }
    put(&mut told, "cipher", area.encryption.as_deref());
    put(&mut told, "cipher_key_bits", area.key_size.map(|bytes| u64::from(bytes) * 8));
    put(&mut told, "digest", digests.first().copied());
    if let Some(kdf) = kdf {
        told["kdf"] = kdf.kind.as_str().into();
        told["salt"] = hex::digits(&kdf.salt.0).into();
        put(&mut told, "hash", kdf.hash.as_deref());
        put(&mut told, "iterations", kdf.iterations.or(kdf.time));
        put(&mut told, "memory", kdf.memory.map(|kib| u64::from(kib) << 10));
        put(&mut told, "lanes", kdf.cpus);
        let effort = derivation::of(kdf).map(|kdf| kdf.effort(area.key_size.unwrap_or(0) as usize));
        put(&mut told, "microseconds", effort.ok());
    }
    put(&mut told, "af_hash", af.as_ref().and_then(|af| af.hash.as_deref()));
    put(&mut told, "af_stripes", af.as_ref().and_then(|af| af.stripes));
    told
}

fn digest(digest: &Digest) -> Value {
    let Digest { kind, keyslots, segments, salt, digest, hash, iterations, other: _ } = digest;
    let ids = |ids: &[Id]| ids.iter().map(|id| id.0).collect::<Vec<_>>();
    let mut told = json!({
        "type": kind, "keyslots": ids(keyslots), "segments": ids(segments), "salt": hex::digits(&salt.0), "digest": hex::digits(&digest.0),
    });
    put(&mut told, "hash", hash.as_deref());
    put(&mut told, "iterations", *iterations);
    told
}

fn token(token: &Map<String, Value>) -> Value {
    let kind = token.get("type").and_then(Value::as_str).unwrap_or_default();
    let keyslots = token.get("keyslots").cloned().unwrap_or_default();
    json!({ "type": kind, "keyslots": keyslots, "means": meaning(kind, token) })
}

/// What a token is for, in words. The fields are those of systemd (src/shared/cryptsetup-tpm2.c, cryptsetup-fido2.c of
/// cryptenroll and the manual page of systemd-cryptenroll), of cryptsetup (specification, section 3.6) and of clevis (its luks2
/// token, `clevis-luks-bind`).
pub(super) fn meaning(kind: &str, token: &Map<String, Value>) -> String {
    let text = |name: &str| token.get(name).and_then(Value::as_str).unwrap_or("?");
    let yes = |name: &str| token.get(name).and_then(Value::as_bool).unwrap_or(false);
    match kind {
        "luks2-keyring" => {
            format!("the passphrase is in the kernel's keyring, as the key \"{}\"", text("key_description"))
        }
        "systemd-tpm2" => {
            let pcrs = |name: &str, how: &str| {
                let pcrs = token.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
                let pcrs: Vec<_> = pcrs.iter().map(Value::to_string).collect();
                if pcrs.is_empty() { String::new() } else { format!(", {how} PCRs {}", pcrs.join(", ")) }
            };
            let lock = if yes("tpm2_pcrlock") { ", by what systemd-pcrlock keeps in it" } else { "" };
            let bound = pcrs("tpm2-pcrs", "bound to") + &pcrs("tpm2_pubkey_pcrs", "with signatures of") + lock;
            let pin = if yes("tpm2-pin") { ", with a PIN" } else { "" };
            format!("the TPM of one machine releases the passphrase{bound}{pin} (systemd-cryptenroll --tpm2-device)")
        }
        "systemd-fido2" => {
            let pin = if yes("fido2-clientPin-required") { ", with its PIN" } else { "" };
            let touch = if yes("fido2-up-required") { ", when touched" } else { "" };
            let party = text("fido2-rp").escape_debug();
            format!(
                "a FIDO2 security key with a credential for {party} makes the passphrase{pin}{touch} (systemd-cryptenroll --fido2-device)"
            )
        }
        "systemd-recovery" => {
            "the passphrase is a recovery key, to be typed (systemd-cryptenroll --recovery-key)".to_owned()
        }
        "systemd-pkcs11" => format!("the smart card {} decrypts the passphrase", text("pkcs11-uri")),
        "clevis" => {
            let protected = token.get("jwe").and_then(|jwe| jwe.get("protected")).and_then(Value::as_str);
            let with = protected.and_then(|protected| pin(protected, 0));
            format!("clevis finds the passphrase, with {}", with.as_deref().unwrap_or("a server or a TPM"))
        }
        _ => "kept for another program".to_owned(),
    }
}

/// What one of clevis' pins takes, by the protected header of its JWE (clevis, src/pins; RFC 7516, section 3): a pin that shares a
/// secret out has others inside it.
fn pin(protected: &str, depth: usize) -> Option<String> {
    /// Nobody nests them deeper.
    const DEEPEST: usize = 4;
    let header: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(protected).ok()?).ok()?;
    let clevis = header.get("clevis")?;
    let kind = clevis.get("pin")?.as_str()?;
    let text = |name: &str| Some(printable(clevis.get(kind)?.get(name)?.as_str()?));
    match kind {
        "tang" => Some(format!("the tang server {}", text("url")?)),
        "tpm2" => {
            let bound = text("pcr_ids").map(|pcrs| format!(", bound to PCRs {pcrs}"));
            Some(format!("the TPM of one machine{}", bound.unwrap_or_default()))
        }
        "sss" if depth < DEEPEST => {
            let threshold = clevis.get(kind)?.get("t")?.as_u64()?;
            let parts = clevis.get(kind)?.get("jwe")?.as_array()?.iter();
            let named = |jwe: &Value| pin(jwe.as_str()?.split('.').next()?, depth + 1);
            let parts: Vec<_> = parts.map(|jwe| named(jwe).unwrap_or_else(|| "something else".to_owned())).collect();
            Some(format!("{threshold} of {}: ({})", parts.len(), parts.join("; ")))
        }
        _ => None,
    }
}

fn put<T: Into<Value>>(told: &mut Value, name: &str, value: Option<T>) {
    if let Some(value) = value {
        told[name] = value.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn protected(header: &Value) -> String {
        URL_SAFE_NO_PAD.encode(header.to_string())
    }

    #[test]
    fn clevis_pins_are_named_with_what_they_take() {
        let tang = protected(&json!({ "clevis": { "pin": "tang", "tang": { "url": "http://tang\n:7500" } } }));
        let tpm2 = protected(&json!({ "clevis": { "pin": "tpm2", "tpm2": { "pcr_ids": "1,7" } } }));
        assert_eq!(pin(&tang, 0).as_deref(), Some("the tang server http://tang\\n:7500"));
        assert_eq!(pin(&tpm2, 0).as_deref(), Some("the TPM of one machine, bound to PCRs 1,7"));
        let parts = [format!("{tang}.a.b.c.d"), tpm2, "?".to_owned()];
        let mut sss = protected(&json!({ "clevis": { "pin": "sss", "sss": { "t": 2, "jwe": parts } } }));
        let told = pin(&sss, 0).expect("it has parts");
        assert!(told.starts_with("2 of 3: (the tang server") && told.ends_with("; something else)"), "{told}");
        for _ in 0..10 {
            sss = protected(&json!({ "clevis": { "pin": "sss", "sss": { "t": 1, "jwe": [sss] } } }));
        }
        assert!(pin(&sss, 0).is_some_and(|told| told.contains("something else")));
        for wrong in
            [json!({}), json!({ "clevis": { "pin": "tang" } }), json!({ "clevis": { "pin": "null", "null": {} } })]
        {
            assert_eq!(pin(&protected(&wrong), 0), None);
        }
        assert_eq!(pin("%", 0), None);
    }
}
