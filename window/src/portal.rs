//! The desktop's portal, on the session bus: its file dialogs, and whether it prefers a dark theme. Threads wait for it, so that it delays
//! no frame.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use zbus::blocking::{Connection, Proxy, connection};
use zbus::zvariant::{OwnedObjectPath, OwnedValue, Value};

use crate::form::{Field, Input, absolute};

const PORTAL: &str = "org.freedesktop.portal.Desktop";
const OBJECT: &str = "/org/freedesktop/portal/desktop";

/// How long the portal may take to answer a call. People may take any time to choose.
const PATIENCE: Duration = Duration::from_secs(5);

/// The address of the session bus.
pub fn session_bus() -> Option<String> {
    Some(zbus::Address::session().ok()?.to_string())
}

/// Whether the desktop prefers a dark theme; `None` if it does not say.
pub fn dark(bus: &str) -> Option<bool> {
    let settings = "org.freedesktop.portal.Settings";
    let question = ("org.freedesktop.appearance", "color-scheme");
    let answer = connect(bus).ok()?.call_method(Some(PORTAL), OBJECT, Some(settings), "ReadOne", &question).ok()?;
    let answer: OwnedValue = answer.body().deserialize().ok()?;
    match u32::try_from(answer).ok()? {
        1 => Some(true),
        2 => Some(false),
        _ => None,
    }
}

fn connect(bus: &str) -> zbus::Result<Connection> {
    connection::Builder::address(bus)?.method_timeout(PATIENCE).build()
}

/// What a dialog lets people choose.
#[derive(Debug, PartialEq, Eq)]
pub enum Choice {
    File,
    Files,
    Folder,
    /// A name for a new file, which is this one at first.
    New(PathBuf),
}

impl Choice {
    /// For this field, or for a volume to open.
    pub fn of(field: Option<&Field>, home: &Path) -> Self {
        match field.map(|field| &field.input) {
            Some(Input::Paths(_)) => Self::Files,
            Some(Input::Folder(_)) => Self::Folder,
            Some(Input::New(text)) => Self::New(absolute(text, home)),
            _ => Self::File,
        }
    }

    fn method(&self) -> &'static str {
        if matches!(self, Self::New(_)) { "SaveFile" } else { "OpenFile" }
    }

    fn options(&self) -> HashMap<&'static str, Value<'static>> {
        match self {
            Self::File => HashMap::new(),
            Self::Files => HashMap::from([("multiple", true.into())]),
            Self::Folder => HashMap::from([("directory", true.into())]),
            Self::New(path) => {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let folder = path.parent().unwrap_or(path).as_os_str().as_bytes();
                HashMap::from([("current_name", name.into()), ("current_folder", [folder, b"\0"].concat().into())])
            }
        }
    }
}

/// How a dialog ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Chosen {
    Paths(Vec<PathBuf>),
    Cancelled,
    /// This is not a file of this machine.
    Foreign(String),
    /// There is no portal, or it failed.
    NoDialog,
}

/// A dialog of the desktop. It closes when this is dropped.
pub struct Dialog(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// The portal closes the dialog when this ends.
    connection: Option<Connection>,
    closed: bool,
    chosen: Option<Chosen>,
}

impl Dialog {
    /// Opens it, and calls `wake` when it has ended.
    pub fn open(bus: String, title: &'static str, choice: Choice, wake: Arc<dyn Fn() + Send + Sync>) -> Self {
        let state: Arc<Mutex<State>> = Arc::default();
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            let chosen = ask(&bus, title, &choice, &shared).unwrap_or(Chosen::NoDialog);
            lock(&shared).chosen = Some(chosen);
            wake();
        });
        Self(state)
    }

    /// How it ended, once.
    pub fn chosen(&self) -> Option<Chosen> {
        lock(&self.0).chosen.take()
    }
}

impl Drop for Dialog {
    fn drop(&mut self) {
        let mut state = lock(&self.0);
        state.closed = true;
        let _ = state.connection.take().map(Connection::close);
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nothing if there is no answer.
fn ask(bus: &str, title: &str, choice: &Choice, state: &Mutex<State>) -> Option<Chosen> {
    const TOKEN: &str = "claviger";
    let connection = connect(bus).ok()?;
    {
        let mut state = lock(state);
        if state.closed {
            return None;
        }
        state.connection = Some(connection.clone());
    }
    // The portal's name for this question, so that no answer comes too early to be heard.
    let sender = connection.unique_name()?.trim_start_matches(':').replace('.', "_");
    let request = format!("{OBJECT}/request/{sender}/{TOKEN}");
    let request = Proxy::new(&connection, PORTAL, request, "org.freedesktop.portal.Request").ok()?;
    let mut responses = request.receive_signal("Response").ok()?;
    let mut options = choice.options();
    options.insert("handle_token", TOKEN.into());
    let files = Proxy::new(&connection, PORTAL, OBJECT, "org.freedesktop.portal.FileChooser").ok()?;
    let handle: OwnedObjectPath = files.call(choice.method(), &("", title, options)).ok()?;
    if handle.as_str() != request.path().as_str() {
        return None;
    }
    let response = responses.next()?;
    let (code, results): (u32, HashMap<String, OwnedValue>) = response.body().deserialize().ok()?;
    match code {
        0 => chosen(results),
        1 => Some(Chosen::Cancelled),
        _ => None,
    }
}

fn chosen(mut results: HashMap<String, OwnedValue>) -> Option<Chosen> {
    let uris = Vec::<String>::try_from(results.remove("uris")?).ok().filter(|uris| !uris.is_empty())?;
    let path = |uri: String| local(&uri).ok_or(Chosen::Foreign(uri));
    Some(uris.into_iter().map(path).collect::<Result<_, _>>().map_or_else(|foreign| foreign, Chosen::Paths))
}

/// The path of a `file` URI, if it is a file of this machine.
fn local(uri: &str) -> Option<PathBuf> {
    let path = uri.strip_prefix("file://")?;
    let path = path.strip_prefix("localhost").unwrap_or(path);
    let mut parts = path.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let code = part.get(..2).filter(|code| code.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(code, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    (bytes.starts_with(b"/") && !bytes.contains(&0)).then(|| OsString::from_vec(bytes).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_this_machine_are_local() {
        let path = |text: &str| Some(PathBuf::from(text));
        assert_eq!(local("file:///a/my%20d%C3%A4ta%25.hc"), path("/a/my däta%.hc"));
        assert_eq!(local("file://localhost/a"), path("/a"));
        assert_eq!(local("file:///a/%ff").map(|path| path.into_os_string().into_vec()), Some(b"/a/\xff".to_vec()));
        let foreign =
            ["sftp://host/a", "file://host/a", "file:a", "/a", "file:///a%00b", "file:///a%+1", "file:///a%2"];
        assert_eq!(foreign.map(local), [const { None }; 7]);
        assert_eq!(local("file:///a%ä"), None);
    }

    #[test]
    fn a_field_says_what_is_chosen() {
        let of = |input| Choice::of(Some(&Field::new("", "", input)), Path::new("/home/u"));
        assert_eq!(Choice::of(None, Path::new("/")), Choice::File);
        assert_eq!(of(Input::Existing(String::new())), Choice::File);
        assert_eq!(of(Input::Folder(String::new())), Choice::Folder);
        assert_eq!(of(Input::Paths(Vec::new())), Choice::Files);
        let new = of(Input::New("~/a b.hc".into()));
        assert_eq!(new, Choice::New("/home/u/a b.hc".into()));
        let folder = new.options().remove("current_folder").and_then(|folder| Vec::<u8>::try_from(folder).ok());
        assert_eq!(folder.as_deref(), Some(&b"/home/u\0"[..]));
    }
}
