//! Ensures a single writer of an image in a Ceph cluster. Its exclusive lock moves silently from one client to the
//! next, so two clients could both write. But each client that has an image open for writing watches it, and Ceph lists
//! the watchers.

use std::io;
use std::process::Command;

use claviger_engine::deadline::{Deadline, is_cancelled};
use claviger_engine::{Error, ErrorKind, Result};
use serde::Deserialize;

use super::walls::{self, Output, Walls};

/// The output of `rbd status --format json`.
#[derive(Deserialize)]
struct Status {
    watchers: Vec<Watcher>,
}

#[derive(Deserialize)]
struct Watcher {
    address: String,
}

/// The addresses of clients that have the image open for writing. A killed client stays listed for half a minute.
///
/// # Errors
/// `Io` if this cannot be determined.
pub(super) fn writers(mut command: Command, image: &str, deadline: Deadline) -> Result<Vec<String>> {
    command.args(["status", "--format", "json"]).args(arguments(image));
    let start = |command| walls::spawn(command, Walls::NoListenerRefused);
    let Output { ended, out, err } = walls::output(command, deadline, start).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => Error::not_installed("the check for other writers", ("rbd", "ceph-common"), ""),
        _ => e.into(),
    })?;
    let succeeded = match ended {
        Err(e) if is_cancelled(&e) => return Err(e.into()),
        ended => ended.is_ok_and(|status| status.success()),
    };
    let unknown = |why: String| io::Error::other(format!("other writers of the image cannot be determined: {why}"));
    if !succeeded {
        let last = err.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("rbd did not finish").to_owned();
        return Err(unknown(last).into());
    }
    let status: Status = serde_json::from_str(&out).map_err(|e| unknown(e.to_string()))?;
    Ok(status.watchers.into_iter().map(|watcher| watcher.address).collect())
}

/// Checks that there is at most one writer besides earlier ones of this process: its helper, which has just opened the
/// image. If two clients begin at the same time, each sees the other.
///
/// # Errors
/// `InUse` with the others' addresses.
pub(super) fn one_writer(writers: &[String], own: &[String]) -> Result<()> {
    let others: Vec<_> = writers.iter().filter(|address| !own.contains(address)).map(String::as_str).collect();
    match others.len() {
        0 | 1 => Ok(()),
        _ => Err(Error::new(ErrorKind::InUse { holder: Some(format!("this one and another: {}", others.join(", "))) })
            .hint("Close it there, or add --read-only. Ceph forgets a killed client after half a minute.")),
    }
}

/// Translates qemu's name for an image, `POOL/IMAGE:OPTION=VALUE…`, into rbd's name and options. A backslash quotes the
/// next character (block/rbd.c of qemu).
fn arguments(image: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut chars = image.chars();
    while let Some(char) = chars.next() {
        let last = parts.last_mut().expect("there is one");
        match char {
            '\\' => last.extend(chars.next()),
            ':' => parts.push(String::new()),
            char => last.push(char),
        }
    }
    let name = parts.remove(0);
    parts.into_iter().map(|option| format!("--{option}")).chain(["--".into(), name]).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn names_of_qemu_are_arguments_of_rbd() {
        assert_eq!(arguments("p/i"), ["--", "p/i"]);
        assert_eq!(arguments(r"p/i\:1@s:id=me:conf=/etc/a\:b"), ["--id=me", "--conf=/etc/a:b", "--", "p/i:1@s"]);
    }

    #[test]
    fn one_watcher_is_this_process_and_two_are_one_too_many() {
        let rbd = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script, "rbd"]);
            writers(command, "p/i", Deadline::within(Duration::from_millis(500), None))
        };
        let watcher = |n: u32| format!(r#"{{"address":"10.0.0.{n}:0/1","client":{n},"cookie":1}}"#);
        let says = |watchers: &[u32]| {
            let watchers = watchers.iter().map(|n| watcher(*n)).collect::<Vec<_>>().join(",");
            rbd(&format!(r#"[ "$*" = 'status --format json -- p/i' ] && echo '{{"watchers":[{watchers}]}}'"#))
                .expect("it says who")
        };
        for (now, before, refused) in [
            (&[][..], &[][..], None),
            (&[1], &[], None),
            (&[1, 2], &[], Some("10.0.0.2")),
            // The killed helper is still listed, together with the next one.
            (&[1, 2], &[1], None),
            (&[2], &[1], None),
            (&[1, 2, 3], &[1], Some("10.0.0.3")),
        ] {
            match (one_writer(&says(now), &says(before)), refused) {
                (Ok(()), None) => {}
                (Err(error), Some(other)) => assert!(
                    matches!(&error.kind, ErrorKind::InUse { holder: Some(who) } if who.contains(other)),
                    "{error}"
                ),
                (got, _) => panic!("{now:?} after {before:?}: {got:?}"),
            }
        }
        for (script, word) in
            [("echo no; echo why >&2; exit 2", "why"), ("echo '{}'", "watchers"), ("sleep 9", "not finish")]
        {
            let error = rbd(script).expect_err(script);
            assert!(matches!(error.kind, ErrorKind::Io(_)) && error.to_string().contains(word), "{script}: {error}");
        }
        let missing = writers(Command::new("no-such-program"), "p/i", Deadline::within(Duration::from_secs(60), None))
            .expect_err("it is not there");
        assert!(missing.to_string().contains("ceph-common") || format!("{missing:?}").contains("ceph-common"));
    }
}
