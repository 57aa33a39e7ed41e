//! A stand-in for the desktop's portal, for tests and for the guide's pictures:
//!
//!     cargo run --example portal 1
//!
//! takes the portal's name on the session bus, and prefers a dark theme (1) or a light one (2).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use zbus::blocking::{Connection, connection::Builder};
use zbus::message::Header;
use zbus::names::OwnedUniqueName;
use zbus::zvariant::{OwnedObjectPath, OwnedValue, Value};
use zbus::{fdo, interface};

const OBJECT: &str = "/org/freedesktop/portal/desktop";

/// A file dialog that is open.
pub struct Asked {
    pub method: &'static str,
    pub title: String,
    pub options: HashMap<String, OwnedValue>,
    pub by: OwnedUniqueName,
    request: OwnedObjectPath,
}

/// The portal. A test answers its dialogs through this.
pub struct Portal {
    pub connection: Connection,
    asked: Arc<Mutex<Option<Asked>>>,
}

impl Portal {
    pub fn on(bus: Builder<'_>, scheme: u32) -> zbus::Result<Self> {
        let asked = Arc::default();
        let chooser = FileChooser(Arc::clone(&asked));
        let served = bus.serve_at(OBJECT, chooser)?.serve_at(OBJECT, Settings(scheme))?;
        Ok(Self { connection: served.name("org.freedesktop.portal.Desktop")?.build()?, asked })
    }

    /// The dialog that was opened last, once.
    pub fn asked(&self) -> Option<Asked> {
        self.asked.lock().expect("no panic").take()
    }

    /// Ends the dialog: 0 says that these were chosen, 1 that it was cancelled, and 2 that it failed.
    pub fn answer(&self, asked: &Asked, code: u32, uris: &[&str]) -> zbus::Result<()> {
        let results = HashMap::from([("uris", Value::from(uris))]);
        let (request, interface) = (&asked.request, "org.freedesktop.portal.Request");
        self.connection.emit_signal(Some(&asked.by), request, interface, "Response", &(code, results))
    }
}

struct FileChooser(Arc<Mutex<Option<Asked>>>);

impl FileChooser {
    fn opens(
        &self,
        method: &'static str,
        header: &Header<'_>,
        title: String,
        options: HashMap<String, OwnedValue>,
    ) -> fdo::Result<OwnedObjectPath> {
        let failed = |_| fdo::Error::Failed("no name".into());
        let by = header.sender().ok_or_else(|| failed(()))?.to_owned();
        let token = options.get("handle_token").and_then(|token| token.downcast_ref::<String>().ok());
        let sender = by.trim_start_matches(':').replace('.', "_");
        let request = format!("{OBJECT}/request/{sender}/{}", token.unwrap_or_default());
        let request = OwnedObjectPath::try_from(request).map_err(|_| failed(()))?;
        *self.0.lock().expect("no panic") =
            Some(Asked { method, title, options, by: by.into(), request: request.clone() });
        Ok(request)
    }
}

#[interface(name = "org.freedesktop.portal.FileChooser")]
impl FileChooser {
    fn open_file(
        &self,
        #[zbus(header)] header: Header<'_>,
        _parent: &str,
        title: String,
        options: HashMap<String, OwnedValue>,
    ) -> fdo::Result<OwnedObjectPath> {
        self.opens("OpenFile", &header, title, options)
    }

    fn save_file(
        &self,
        #[zbus(header)] header: Header<'_>,
        _parent: &str,
        title: String,
        options: HashMap<String, OwnedValue>,
    ) -> fdo::Result<OwnedObjectPath> {
        self.opens("SaveFile", &header, title, options)
    }
}

/// The theme that is preferred.
struct Settings(u32);

#[interface(name = "org.freedesktop.portal.Settings")]
impl Settings {
    fn read_one(&self, _namespace: &str, _key: &str) -> OwnedValue {
        self.0.into()
    }
}

fn main() {
    let scheme = std::env::args().nth(1).and_then(|scheme| scheme.parse().ok()).expect("a scheme");
    let _portal = Portal::on(Builder::session().expect("an address"), scheme).expect("a session bus");
    loop {
        std::thread::park();
    }
}
