//! `claviger header show`: shows the contents of a header that can be read without a password.

use std::io::{self, Write};

use claviger_engine::formats::{FactUnit, HeaderFacts, UnlockPlan};
use claviger_engine::opening::HeaderFound;
use claviger_engine::{Error, Unlock};
use serde::Serialize;
use serde_json::{Map, Number, Value};

use crate::opening::editing::HeaderArgs;
use crate::opening::patience;
use crate::terminal::date::date;
use crate::terminal::file_name::FileName;
use crate::terminal::output::{self, Report, printable};
use crate::terminal::size;

/// Show a header's contents, without a password
///
/// Shows keyslots, ciphers, key derivations, tokens, labels and the state of both header copies. No secret is shown,
/// and nothing is written. TrueCrypt and VeraCrypt headers are entirely encrypted; use `claviger info` for those.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  claviger header show disk.luks
  claviger header show --partition 2 /dev/sda
  claviger header show --json disk.luks")]
pub struct Args {
    #[command(flatten)]
    header: HeaderArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    path: FileName,
    format: &'static str,
    /// The header's contents.
    #[serde(serialize_with = "output::in_order_of_names")]
    header: HeaderFacts,
    /// The cost of trying the keyslots on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<UnlockPlan>,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let path = &args.header.path;
    let HeaderFound { format, header, .. } = args.header.opening()?.find_header()?;
    let facts = header.describe().ok_or_else(|| {
        let what = format!("showing headers of {} without a password", format.name());
        Error::unsupported(what).hint("To open the volume and show its properties: `claviger info VOLUME`.").at(path)
    })?;
    let path = FileName::path(path);
    output::print(
        &Shown { path, format: format.name(), header: facts, plan: header.plan(&Unlock::with(&[])) },
        args.json,
    )
}

impl Report for Shown {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", printable(&self.path))?;
        object(out, &members(&self.header)?, 2)?;
        match &self.plan {
            Some(plan) if !plan.keyslots.is_empty() => writeln!(out, "  {}", patience::sentence(plan)),
            _ => Ok(()),
        }
    }
}

/// The facts by their JSON names.
fn members(facts: &HeaderFacts) -> io::Result<Map<String, Value>> {
    match serde_json::to_value(facts)? {
        Value::Object(members) => Ok(members),
        _ => Ok(Map::new()),
    }
}

/// Prints single values first, then objects, then lists of objects.
fn object(out: &mut dyn Write, members: &Map<String, Value>, indent: usize) -> io::Result<()> {
    let lists = |value: &Value| matches!(value, Value::Array(all) if all.iter().any(Value::is_object));
    let lines: Vec<_> = members.iter().filter(|(_, value)| !lists(value) && !value.is_object()).collect();
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in lines {
        if let Some(text) = shown(name, value) {
            writeln!(out, "{:indent$}{:<width$}  {text}", "", title(name))?;
        }
    }
    for (name, inside) in members.iter().filter_map(|(name, value)| Some((name, value.as_object()?))) {
        writeln!(out, "{:indent$}{}", "", title(name))?;
        object(out, inside, indent + 2)?;
    }
    for (name, value) in members.iter().filter(|(_, value)| lists(value)) {
        writeln!(out, "{:indent$}{}", "", title(name))?;
        for member in value.as_array().into_iter().flatten().filter_map(Value::as_object) {
            let mut rest = member.clone();
            let title = ["number", "keyslot", "name"]
                .iter()
                .find_map(|name| rest.remove(*name))
                .and_then(|title| shown("", &title));
            let kind = rest.remove("type").and_then(|kind| shown("", &kind));
            let heading: Vec<_> = title.into_iter().chain(kind).collect();
            let inner = indent + 2;
            if !heading.is_empty() {
                writeln!(out, "{:inner$}{}", "", heading.join(": "))?;
            }
            object(out, &rest, inner + 2)?;
        }
    }
    Ok(())
}

/// The name of a member for people.
fn title(name: &str) -> String {
    if name == "microseconds" { "takes".to_owned() } else { name.replace('_', " ") }
}

/// A single value as text; `None` if it is empty.
fn shown(name: &str, value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) if text.is_empty() => None,
        Value::String(text) => Some(printable(text)),
        Value::Bool(yes) => Some(if *yes { "yes" } else { "no" }.to_owned()),
        Value::Number(number) => Some(with_unit(FactUnit::of_field(name), number)),
        Value::Array(all) => {
            let all: Vec<_> = all.iter().filter_map(|value| shown("", value)).collect();
            (!all.is_empty()).then(|| all.join(", "))
        }
        Value::Object(_) => Some(printable(&value.to_string())),
    }
}

/// A number with its unit.
fn with_unit(unit: Option<FactUnit>, number: &Number) -> String {
    let positive = number.as_u64().unwrap_or_default();
    match unit {
        Some(FactUnit::Bytes) => size::exact(positive),
        Some(FactUnit::Offset) => format!("byte {number}"),
        Some(FactUnit::Time) => date(number.as_i64().unwrap_or_default()),
        Some(FactUnit::Microseconds) => format!("about {:.2} s on one processor", positive as f64 / 1e6),
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn text_of(header: &Value) -> String {
        let mut out = Vec::new();
        object(&mut out, header.as_object().expect("facts"), 2).expect("memory");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn no_line_ends_in_a_bare_colon() {
        let header = json!({
            "segments": [{ "number": 0, "offset": 4096 }, { "type": "linear" }],
            "nameless": [{ "size": 1 }, {}],
        });
        let text = text_of(&header);
        assert!(!text.lines().any(|line| line.ends_with(':') || line.trim().is_empty()), "{text}");
        assert!(text.contains("    0\n") && text.contains("    linear\n"), "{text}");
    }

    #[test]
    fn lists_come_last_and_empty_things_not_at_all() {
        let header = json!({
            "label": "", "flags": [], "header_size": 16384, "uuid": "abc\u{1b}[31m",
            "keyslots": [{ "number": 3, "type": "luks2", "area_offset": 32768, "keyslots": [1, 2] }],
        });
        assert_eq!(
            text_of(&header),
            "  header size  16384 bytes (16 KiB)\n  uuid         abc?[31m\n  keyslots\n    3: luks2\n      \
             area offset  byte 32768\n      keyslots     1, 2\n"
        );
    }
}
