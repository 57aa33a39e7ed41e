//! Which PCR changed since sealing. A TPM and a token hold only digests over all PCRs of a policy, so earlier values are guessed: from
//! the firmware's event log with an event fewer, with fewer events, or with Secure Boot switched. A guess is right if it gives the
//! policy's digest (TCG, TPM 2.0 Library, Part 3, `TPM2_PolicyPCR`, `TPM2_PolicyAuthorize`, `TPM2_PolicyAuthValue`).

use super::wire::{Bytes, WireReader};
use super::{Bank, POLICY_AUTH_VALUE, POLICY_AUTHORIZE, POLICY_PCR, Pcrs, Policy, SIZE, answers, name, sha256};
use crate::error::{Error, ErrorKind, Result};

/// The longest event log, in bytes.
pub const LOG_MAX: u64 = 1 << 20;

/// How many digests of guesses are compared.
const GUESSES: usize = 1 << 17;

/// PCRs with more events are not tried without one of them.
const EVENTS: usize = 512;

/// The most hash algorithms of a log.
const ALGORITHMS: usize = 16;

/// Event types (TCG PC Client Platform Firmware Profile, section "Event Types").
const NO_ACTION: u32 = 3;
const VARIABLE_DRIVER_CONFIG: u32 = 0x8000_0001;

/// What is measured into each PCR (TCG PC Client Platform Firmware Profile, section "PCR Usage"; UAPI Group, Linux TPM PCR Registry).
const CONTENTS: [&str; 16] = [
    "firmware code",
    "firmware settings",
    "firmware of extension cards",
    "settings of extension cards",
    "boot loader",
    "partition table and boot settings",
    "events of the computer's maker",
    "Secure Boot state",
    "commands of the boot loader",
    "kernel and initrd",
    "files that Linux measures",
    "unified kernel image and boot phases",
    "kernel command line",
    "system extensions",
    "Secure Boot keys of shim",
    "identity of the system",
];

/// A PCR in words: `PCR 7 (Secure Boot state)`.
fn named(pcr: u32) -> String {
    let contents = CONTENTS.get(pcr as usize);
    contents.map_or_else(|| format!("PCR {pcr}"), |contents| format!("PCR {pcr} ({contents})"))
}

/// The firmware's list of measurements (TCG PC Client Platform Firmware Profile, section "Event Logging"). Anybody may have written
/// it: it only helps to guess.
#[derive(Clone, Debug)]
pub struct EventLog {
    /// For each algorithm, the size of its digests.
    sizes: Vec<(u16, usize)>,
    events: Vec<Event>,
    /// The locality in which the firmware started the TPM, which is the last byte of PCR 0 then.
    locality: u8,
}

#[derive(Clone, Debug)]
struct Event {
    pcr: u32,
    kind: u32,
    /// By algorithm.
    digests: Vec<(u16, Vec<u8>)>,
    data: Vec<u8>,
}

impl EventLog {
    /// Parses a crypto-agile log: `TCG_PCR_EVENT` with `TCG_EfiSpecIDEvent`, then `TCG_PCR_EVENT2` until the end.
    ///
    /// # Errors
    /// `Malformed` with the offset of the first wrong byte.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut reader = LogReader(WireReader(bytes));
        let wrong = |reader: &LogReader<'_>, what: &str| {
            let offset = (bytes.len() - reader.0.0.len()) as u64;
            Error::from(ErrorKind::Malformed { field: "TPM event log", offset, what: what.to_owned() })
        };
        let sizes = reader.sizes().ok_or_else(|| wrong(&reader, "it is not a TPM 2.0 event log"))?;
        let (mut events, mut locality) = (Vec::new(), 0);
        while !reader.0.0.is_empty() {
            let mut next = LogReader(reader.0);
            let event = next.event(&sizes).ok_or_else(|| wrong(&reader, "an event is cut off or wrong"))?;
            reader = next;
            match event.data.strip_prefix(b"StartupLocality\0") {
                _ if event.kind != NO_ACTION => events.push(event),
                Some([at]) => locality = *at,
                _ => {}
            }
        }
        Ok(Self { sizes, events, locality })
    }

    /// What this PCR may have been, and why: with Secure Boot switched, after each number of events, and without any one of them.
    /// None if the log has no digests of this bank.
    fn guesses(&self, bank: Bank, pcr: u32) -> Vec<Guess> {
        let algorithm = bank.algorithm();
        if self.sizes.iter().all(|(known, _)| *known != algorithm) {
            return Vec::new();
        }
        let digest = |event: &Event| Some(event.digests.iter().find(|(known, _)| *known == algorithm)?.1.clone());
        let of_pcr = self.events.iter().filter(|event| event.pcr == pcr);
        let (events, digests): (Vec<_>, Vec<_>) = of_pcr.filter_map(|event| Some((event, digest(event)?))).unzip();
        let mut start = vec![0; bank.hash().size];
        if let ([.., last], 0) = (&mut start[..], pcr) {
            *last = self.locality;
        }
        // The value of the PCR after none of the digests, one of them, and so on.
        let values = |digests: &[Vec<u8>]| {
            let mut values = vec![start.clone()];
            for digest in digests {
                values.push(hashed(bank, &[&values[values.len() - 1], digest]));
            }
            values
        };
        let mut guesses = Vec::new();
        if let Some((at, (on, other))) = events.iter().enumerate().find_map(|(at, event)| Some((at, event.switched()?)))
        {
            let mut switched = digests.clone();
            switched[at] = hashed(bank, &[&other]);
            let how = if on { "Secure Boot was off then" } else { "Secure Boot was on then" };
            guesses.extend(values(&switched).into_iter().skip(at + 1).rev().map(|value| (value, how)));
        }
        guesses.extend(values(&digests).into_iter().rev().map(|value| (value, "less was measured then")));
        for left_out in (0..digests.len()).filter(|_| digests.len() <= EVENTS) {
            let others = [&digests[..left_out], &digests[left_out + 1..]].concat();
            guesses.extend(values(&others).pop().map(|value| (value, "something is measured now that was not then")));
        }
        guesses
    }
}

/// A value that a PCR may have had, and what happened then.
type Guess = (Vec<u8>, &'static str);

fn hashed(bank: Bank, parts: &[&[u8]]) -> Vec<u8> {
    let mut hash = vec![0; bank.hash().size];
    bank.hash().checksum(parts, &mut hash);
    hash
}

impl Event {
    /// If it is about Secure Boot: whether that is on, and what is measured otherwise (`UEFI_VARIABLE_DATA`: a GUID, the lengths of
    /// name and contents, the name in UTF-16, the contents).
    fn switched(&self) -> Option<(bool, Vec<u8>)> {
        const NAME: &str = "SecureBoot";
        let name: Vec<u8> = NAME.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let (front, rest) = self.data.split_at_checked(32)?;
        let lengths = [NAME.len() as u64, 1].map(u64::to_le_bytes).concat();
        match rest.strip_prefix(&name[..])? {
            [on @ 0..=1] if self.kind == VARIABLE_DRIVER_CONFIG && front[16..] == lengths => {
                Some((*on == 1, [front, &name, &[on ^ 1]].concat()))
            }
            _ => None,
        }
    }
}

/// Reads numbers that are little-endian.
struct LogReader<'a>(WireReader<'a>);

impl LogReader<'_> {
    fn u16(&mut self) -> Option<u16> {
        self.0.u16().ok().map(u16::swap_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.0.u32().ok().map(u32::swap_bytes)
    }

    fn take(&mut self, len: usize) -> Option<Vec<u8>> {
        self.0.take(len).ok().map(<[u8]>::to_vec)
    }

    /// The first event, which lists the algorithms and the sizes of their digests.
    fn sizes(&mut self) -> Option<Vec<(u16, usize)>> {
        let (_pcr, kind, _sha1) = (self.u32()?, self.u32()?, self.take(20)?);
        let len = self.u32()? as usize;
        let data = self.take(len)?;
        let mut data = LogReader(WireReader(data.strip_prefix(b"Spec ID Event03\0")?));
        let (_class, _versions) = (data.u32()?, data.take(4)?);
        let count = data.u32()?;
        let known = |algorithm, size| Bank::of(algorithm).is_none_or(|hash| hash.size == size);
        let size = |_| Some((data.u16()?, data.u16()?.into())).filter(|(algorithm, size)| known(*algorithm, *size));
        (0..count.min(ALGORITHMS as u32 + 1))
            .map(size)
            .collect::<Option<Vec<_>>>()
            .filter(|sizes| (1..=ALGORITHMS).contains(&sizes.len()) && kind == NO_ACTION)
    }

    fn event(&mut self, sizes: &[(u16, usize)]) -> Option<Event> {
        let (pcr, kind, count) = (self.u32()?, self.u32()?, self.u32()?);
        let mut digest = |_| {
            let algorithm = self.u16()?;
            let (_, size) = sizes.iter().find(|(known, _)| *known == algorithm)?;
            Some((algorithm, self.take(*size)?))
        };
        // A log has no more digests than algorithms.
        let digests = (count as usize <= sizes.len()).then(|| (0..count).map(&mut digest).collect::<Option<_>>())??;
        let len = self.u32()? as usize;
        Some(Event { pcr, kind, digests, data: self.take(len)? })
    }
}

/// The digest of a policy if its PCRs have these values.
pub(super) fn digest(policy: &Policy, values: &[Vec<u8>]) -> Result<Vec<u8>> {
    let mut digest = [0; SIZE];
    let update = |digest: [u8; SIZE], code: u32, more: &[u8]| sha256(&[&digest, &code.to_be_bytes(), more]);
    if let Some(signed) = &policy.signed {
        // A second round is for the policy's reference, which is empty.
        digest = sha256(&[&update([0; SIZE], POLICY_AUTHORIZE, &name(&signed.public())?)]);
    }
    if policy.pin && policy.pin_first {
        digest = update(digest, POLICY_AUTH_VALUE, &[]);
    }
    if policy.pcrs.mask != 0 {
        let values = sha256(&values.iter().map(|value| &value[..]).collect::<Vec<_>>());
        digest = update(digest, POLICY_PCR, &policy.pcrs.selection(Bytes::new()).raw(&values));
    }
    if policy.pin && !policy.pin_first {
        digest = update(digest, POLICY_AUTH_VALUE, &[]);
    }
    Ok(digest.to_vec())
}

/// The error if no form of the policy has the digest `wanted` while its PCRs have the values `now`, in order. Names what changed, if
/// one or two guesses from the log explain it.
pub(super) fn changed(forms: &[Policy], now: &[Vec<u8>], wanted: &[u8], log: Option<&EventLog>) -> Error {
    let Pcrs { bank, .. } = forms[0].pcrs;
    let numbers: Vec<_> = forms[0].pcrs.numbers().collect();
    let fits = |values: &[Vec<u8>]| forms.iter().any(|form| digest(form, values).is_ok_and(|digest| digest == wanted));
    let mut guesses: Vec<_> =
        numbers.iter().map(|pcr| log.map(|log| log.guesses(bank, *pcr)).unwrap_or_default()).collect();
    // A PCR that nothing was measured into is empty.
    guesses.iter_mut().for_each(|all| all.push((vec![0; bank.hash().size], "nothing was measured then")));
    let in_words =
        |at: usize, guess: &Guess| format!("{} differs from when this was sealed; {}", named(numbers[at]), guess.1);
    let mut left = GUESSES;
    let mut values = now.to_vec();
    for (at, all) in guesses.iter().enumerate() {
        for guess in all {
            values[at].clone_from(&guess.0);
            if fits(&values) {
                return answers::other_state(in_words(at, guess));
            }
            left = left.saturating_sub(1);
        }
        values[at].clone_from(&now[at]);
    }
    for (first, second) in (0..numbers.len()).flat_map(|first| (0..first).map(move |second| (second, first))) {
        for one in &guesses[first] {
            values[first].clone_from(&one.0);
            for two in guesses[second].iter().take(left) {
                values[second].clone_from(&two.0);
                if fits(&values) {
                    return answers::other_state(format!("{}; {}", in_words(first, one), in_words(second, two)));
                }
            }
            left = left.saturating_sub(guesses[second].len());
        }
        values.clone_from_slice(now);
    }
    if numbers.is_empty() {
        return ErrorKind::WrongCredential("its policy is not the one that its token describes".to_owned()).into();
    }
    answers::other_state(match &numbers[..] {
        [one] => format!("{} differs from when this was sealed", named(*one)),
        _ => {
            let names: Vec<_> = numbers.iter().map(|pcr| named(*pcr)).collect();
            let all = names.join(", ");
            format!("at least one of these PCRs differs from when this was sealed, but it is not known which: {all}")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHA256: u16 = 0x000b;

    fn le(numbers: &[u32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    /// The event with which a log begins: digests of SHA-1 and SHA-256.
    fn front() -> Vec<u8> {
        let sizes = [4u16, 20, SHA256, 32].map(u16::to_le_bytes).concat();
        let data = [&b"Spec ID Event03\0"[..], &[0, 0, 0, 0, 0, 2, 0, 2], &le(&[2]), &sizes, &[0]].concat();
        [&le(&[0, NO_ACTION]), &[0; 20][..], &le(&[data.len() as u32]), &data].concat()
    }

    fn event(pcr: u32, kind: u32, data: &[u8]) -> Vec<u8> {
        let digest = |bank| hashed(bank, &[data]);
        let digests = [&[4, 0], &digest(Bank::Sha1)[..], &[11, 0], &digest(Bank::Sha256)].concat();
        [&le(&[pcr, kind, 2]), &digests[..], &le(&[data.len() as u32]), data].concat()
    }

    fn secure_boot(on: u8) -> Vec<u8> {
        let name: Vec<u8> = "SecureBoot".encode_utf16().flat_map(u16::to_le_bytes).collect();
        [&[7; 16][..], &10u64.to_le_bytes(), &1u64.to_le_bytes(), &name, &[on]].concat()
    }

    /// A log of a start with Secure Boot on, and one event of PCR 4.
    fn log() -> Vec<u8> {
        let events = [
            event(0, NO_ACTION, b"StartupLocality\0\x03"),
            event(7, VARIABLE_DRIVER_CONFIG, &secure_boot(1)),
            event(7, VARIABLE_DRIVER_CONFIG, b"db"),
            event(4, 5, b"loader"),
            event(0, 8, b"firmware"),
        ];
        [front(), events.concat()].concat()
    }

    /// A PCR after these measurements.
    fn extended(bank: Bank, mut value: Vec<u8>, measured: &[&[u8]]) -> Vec<u8> {
        measured.iter().for_each(|data| value = hashed(bank, &[&value, &hashed(bank, &[data])]));
        value
    }

    /// What is said if PCRs 4 and 7 had these values, and the log is `log` now.
    fn said(then: &[Vec<u8>], log: Option<&EventLog>) -> String {
        let policy =
            Policy { pcrs: Pcrs { bank: Bank::Sha256, mask: 1 << 4 | 1 << 7 }, pin: true, ..Policy::default() };
        let at = |measured: &[&[u8]]| extended(Bank::Sha256, vec![0; 32], measured);
        let now = [at(&[b"loader"]), at(&[&secure_boot(1), b"db"])];
        let wanted = digest(&policy, then).expect("a digest");
        changed(&[policy], &now, &wanted, log).kind.to_string()
    }

    #[test]
    fn what_changed_is_named() {
        let log = EventLog::parse(&log()).expect("a log");
        let at = |measured: &[&[u8]]| extended(Bank::Sha256, vec![0; 32], measured);
        let (loader, state) = (at(&[b"loader"]), at(&[&secure_boot(1), b"db"]));
        let off = at(&[&secure_boot(0), b"db"]);
        for (then, expected) in [
            ([loader.clone(), off.clone()], &["PCR 7 (Secure Boot state)", "Secure Boot was off then"][..]),
            ([loader.clone(), at(&[&secure_boot(0)])], &["PCR 7 (Secure Boot state)", "off then"]),
            ([loader.clone(), at(&[&secure_boot(1)])], &["PCR 7 (Secure Boot state)", "less was measured then"]),
            ([loader.clone(), at(&[b"db"])], &["PCR 7 (Secure Boot state)", "is measured now that was not then"]),
            ([at(&[]), state.clone()], &["PCR 4 (boot loader)", "less was measured then"]),
            ([at(&[]), off], &["PCR 4 (boot loader)", "PCR 7 (Secure Boot state)", "off then"]),
            ([at(&[b"another"]), state.clone()], &["it is not known which: PCR 4 (boot loader), PCR 7"]),
        ] {
            let said = said(&then, Some(&log));
            assert!(expected.iter().all(|words| said.contains(words)), "{said}");
            assert!(said.contains("PCR 4") == expected.iter().any(|words| words.contains("PCR 4")), "{said}");
        }
        // Without a log it is only known whether nothing was measured then.
        assert!(said(&[loader, at(&[b"db"])], None).contains("it is not known which"));
        assert!(said(&[at(&[]), state], None).contains("PCR 4 (boot loader)"));
    }

    #[test]
    fn pcr_0_begins_with_the_locality() {
        let log = EventLog::parse(&log()).expect("a log");
        for bank in [Bank::Sha1, Bank::Sha256] {
            let mut start = vec![0; bank.hash().size];
            *start.last_mut().expect("a byte") = 3;
            let value = extended(bank, start, &[b"firmware"]);
            assert!(log.guesses(bank, 0).iter().any(|guess| guess.0 == value));
        }
        assert!(log.guesses(Bank::Sha512, 0).is_empty());
    }

    /// Whatever the log is, it is read or refused with a place in it.
    #[test]
    fn truncated_and_mutated_logs_do_no_harm() {
        let whole = log();
        let read = |bytes: &[u8]| match EventLog::parse(bytes) {
            Ok(log) => (0..9).map(|pcr| log.guesses(Bank::Sha256, pcr).len()).sum::<usize>() < 1000,
            Err(Error { kind: ErrorKind::Malformed { offset, .. }, .. }) => offset <= bytes.len() as u64,
            Err(e) => panic!("{e}"),
        };
        let mut complete = 0;
        for len in 0..whole.len() {
            assert!(read(&whole[..len]), "{len}");
            complete += usize::from(EventLog::parse(&whole[..len]).is_ok());
        }
        assert_eq!(complete, 5, "only between events");
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut mutated = whole.clone();
                mutated[at] = value;
                assert!(read(&mutated), "{at} {value}");
            }
        }
        assert!(EventLog::parse(b"").is_err() && EventLog::parse(&[0; 4096]).is_err());
    }
}
