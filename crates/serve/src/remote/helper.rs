//! A table of programs that access remote stores and serve them to this process over NBD. They see only encrypted data,
//! get no key or password of a volume and hardly any environment. They end when the store is closed or this process
//! dies.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use claviger_engine::deadline::Deadline;
use claviger_engine::store::Access;
use claviger_engine::{Error, Result};
use rustix::process::{Pid, Signal, kill_process_group};

use super::ceph;
use super::image::Image;
use super::walls::{self, Walled, Walls};
use crate::nbd::remote::Reach;
use crate::nbd::socket::Socket;

/// A way to access one kind of remote store: a row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Helper {
    /// The scheme: the part of the address before the colon.
    pub scheme: String,
    /// The form of the rest: text, and `{NAME}` for values used in the arguments. `?NAME=VALUE&…` may follow.
    pub form: String,
    /// The program. It takes over a listening socket as from systemd (sd_listen_fds(3)), and serves NBD there.
    pub program: String,
    /// Its arguments. `{plugins}` stands for the folder of nbdkit's plugins.
    pub arguments: Vec<String>,
    /// Additional arguments for read-only access, in front of the others.
    pub read_only: Vec<String>,
    /// Options that may follow the `?`. They are passed as `NAME=VALUE` after the other arguments.
    pub options: Vec<String>,
    /// Environment variables that the program needs, besides PATH, HOME, LANG and the user's name.
    pub environment: Vec<String>,
    /// The Debian package with the program.
    pub package: String,
    /// How concurrent writers are prevented.
    pub writers: Writers,
    /// The service that the program asks, for errors: text, and `{NAME}` or `{NAME=DEFAULT}` for values and options. Of a
    /// URL, only the host and port are shown. Empty if the store is on this machine or unknown.
    pub service: String,
    /// qemu's name of the format, if the store is a disk image in a file. The image is checked before it is opened, and
    /// is refused if it names other files. The program, which is qemu-nbd, can access only that one file.
    pub image: Option<String>,
}

/// How concurrent writers of one store are prevented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writers {
    /// The helper locks the file.
    Locked,
    /// Not prevented, but for a Ceph image, `rbd` lists the clients that have it open for writing.
    Listed,
    /// Neither prevented nor detected.
    Unknown,
    /// The store is read-only.
    Nobody,
}

/// Environment variables for every helper.
const ENVIRONMENT: [&str; 5] = ["PATH", "HOME", "LANG", "USER", "LOGNAME"];

/// Time limit for a helper to end.
const LAST: Duration = Duration::from_secs(10);

/// Shell commands before the helper starts: the socket, passed as standard output, becomes descriptor 3. This process
/// holds the other end of standard input. When that closes, the helper's whole process group is killed.
const BEGIN: &str = r#"ulimit -c 0
exec 3>&1 1>&2 4<&0 </dev/null
(exec 3>&-; read -r _ <&4; kill 0) >/dev/null 2>&1 &
exec 4<&-
LISTEN_FDS=1 LISTEN_PID=$$ exec "$@""#;

/// The built-in rows of the table.
pub fn helpers() -> Vec<Helper> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let served = ["--persistent", "--shared=8", "--cache=writeback"];
    let image = |format: &str| Helper {
        scheme: format.into(),
        form: "{image}".into(),
        program: "qemu-nbd".into(),
        arguments: words(&served),
        read_only: words(&["--read-only"]),
        options: Vec::new(),
        environment: Vec::new(),
        package: "qemu-utils".into(),
        writers: Writers::Locked,
        service: String::new(),
        image: Some(format.into()),
    };
    let nbdkit =
        |scheme: &str, form: &str, arguments: &[&str], options: &[&str], environment: &[&str], package: &str| Helper {
            scheme: scheme.into(),
            form: form.into(),
            program: "nbdkit".into(),
            arguments: [&["--foreground"], arguments].concat().into_iter().map(str::to_owned).collect(),
            read_only: words(&["--readonly"]),
            options: words(options),
            environment: words(environment),
            package: package.into(),
            writers: Writers::Unknown,
            service: String::new(),
            image: None,
        };
    // Read-only: few servers can replace a part of a file, and most would replace all of it.
    let http = |scheme: &str, environment: &[&str]| Helper {
        writers: Writers::Nobody,
        service: format!("{scheme}:{{rest}}"),
        ..nbdkit(
            scheme,
            "{rest}",
            &["curl", "protocols=http,https", &format!("url={scheme}:{{rest}}")],
            &[],
            environment,
            "nbdkit",
        )
    };
    let ceph = ["CEPH_CONF", "CEPH_ARGS", "CEPH_KEYRING"];
    let aws = [
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_PROFILE",
        "AWS_DEFAULT_REGION",
        "AWS_CA_BUNDLE",
    ];
    vec![
        Helper {
            scheme: "rbd".into(),
            arguments: words(&[&served[..], &["--format=raw", "rbd:{image}"]].concat()),
            environment: words(&ceph),
            package: "qemu-block-extra".into(),
            writers: Writers::Listed,
            service: "the Ceph cluster".into(),
            image: None,
            ..image("raw")
        },
        image("qcow2"),
        image("vmdk"),
        image("vhdx"),
        image("vpc"),
        image("vdi"),
        image("qed"),
        image("parallels"),
        image("dmg"),
        Helper {
            service: "{host}:{port=22}".into(),
            ..nbdkit(
                "ssh",
                "{host}/{path}",
                &["ssh", "host={host}", "path=/{path}"],
                &["user", "port", "identity", "known-hosts"],
                &["SSH_AUTH_SOCK"],
                "nbdkit",
            )
        },
        http("http", &["http_proxy"]),
        http("https", &["https_proxy", "SSL_CERT_FILE"]),
        Helper {
            service: "{endpoint-url=https://s3.amazonaws.com}".into(),
            ..nbdkit(
                "s3",
                "{bucket}/{key}",
                // Given by name only, the plugin would be a script that replaces nbdkit and does not get our socket.
                &["--filter=blocksize", "python", "{plugins}/nbdkit-S3-plugin", "bucket={bucket}", "key={key}"],
                &["endpoint-url", "size", "object-size"],
                &aws,
                "nbdkit-plugin-python",
            )
        },
    ]
}

/// A store that a helper serves.
pub struct Helped {
    helper: Helper,
    /// The part of the address after the scheme.
    rest: String,
    access: Access,
    arguments: Vec<String>,
    /// The image file, opened once, so that no other file can take its place.
    image: OnceLock<Image>,
    running: Mutex<Option<Running>>,
    /// The addresses of this process's own writers: one per started helper, seen when there was no other writer.
    own: Mutex<Vec<String>>,
}

/// A running helper.
struct Running {
    child: Child,
    /// The thread that started the helper ends when this is dropped. The helper may have asked to end with that thread.
    _parent: Sender<Infallible>,
    /// Whether there was no other writer after the helper had opened the store.
    checked: bool,
    /// The helper ends when this is closed.
    life: Option<ChildStdin>,
    /// Its listening socket, which has no name.
    socket: OwnedFd,
    /// The helper's messages.
    messages: File,
}

impl Helper {
    /// The program's arguments for the part after the scheme.
    ///
    /// # Errors
    /// `Misuse` if the part has another form, or an option that the row does not list.
    fn arguments(&self, rest: &str, access: Access) -> Result<Vec<String>> {
        let (rest, query) = self.query(rest);
        let form = || Error::misuse(format!("write such an address as {}:{}", self.scheme, self.form));
        let values = matched(&self.form, rest).ok_or_else(form)?;
        let fill = |word: &String| {
            values.iter().fold(word.clone(), |word, (name, value)| word.replace(&format!("{{{name}}}"), value))
        };
        let only_read = access == Access::ReadOnly || self.writers == Writers::Nobody;
        let mut arguments: Vec<_> = if only_read { self.read_only.clone() } else { Vec::new() };
        arguments.extend(self.arguments.iter().map(fill));
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let name = pair.split('=').next().unwrap_or(pair);
            if !pair.contains('=') || !self.options.iter().any(|option| option == name) {
                let known = self.options.join(", ");
                return Err(Error::misuse(format!("unknown option {pair:?}: {}: takes {known}", self.scheme)));
            }
            arguments.push(pair.to_owned());
        }
        Ok(arguments)
    }

    /// The part after the scheme without its options, and the options.
    fn query<'a>(&self, rest: &'a str) -> (&'a str, &'a str) {
        match rest.split_once('?') {
            // Only for rows with options: elsewhere a `?` is part of the address.
            Some((rest, query)) if !self.options.is_empty() => (rest, query),
            _ => (rest, ""),
        }
    }

    /// The service that the program asks for the part after the scheme.
    fn service(&self, rest: &str) -> Option<String> {
        let (rest, query) = self.query(rest);
        let mut values = matched(&self.form, rest)?;
        let options = query.split('&').filter_map(|pair| pair.split_once('='));
        values.extend(options.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let (mut form, mut service) = (&*self.service, String::new());
        while let Some((before, (name, after))) =
            form.split_once('{').and_then(|(before, after)| Some((before, after.split_once('}')?)))
        {
            let (name, usual) = name.split_once('=').unwrap_or((name, ""));
            service += before;
            service += values.get(name).map_or(usual, String::as_str);
            form = after;
        }
        service += form;
        // A URL may hold a password, and its path stands in the name of the store.
        if let Some((scheme, url)) = service.split_once("://") {
            let authority = url.split(['/', '?', '#']).next().unwrap_or_default();
            service = format!("{scheme}://{}", authority.rsplit('@').next().unwrap_or_default());
        }
        (!service.is_empty()).then_some(service)
    }

    /// The sandbox of a helper that does not serve an image.
    fn walls(&self) -> Walls {
        if self.writers == Writers::Listed { Walls::NoListenerRefused } else { Walls::NoListener }
    }

    /// Another program of the same package.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        self.close_environment(&mut command);
        command
    }

    /// Limits a program's environment to the variables that it needs.
    fn close_environment(&self, command: &mut Command) {
        let variables = ENVIRONMENT.into_iter().chain(self.environment.iter().map(String::as_str));
        command.env_clear().envs(variables.filter_map(|name| Some((name, std::env::var_os(name)?))));
    }
}

/// The values of a form's `{NAME}`s in a text. Each extends to the next fixed part of the form and is never empty.
fn matched(form: &str, text: &str) -> Option<BTreeMap<String, String>> {
    let mut values = BTreeMap::new();
    let (mut form, mut text) = (form, text);
    while let Some((before, after)) = form.split_once('{') {
        let (name, next) = after.split_once('}')?;
        text = text.strip_prefix(before)?;
        let end = next.split('{').next().unwrap_or(next);
        let value = if end.is_empty() { text } else { text.split_once(end)?.0 };
        if value.is_empty() || value.starts_with('-') {
            return None;
        }
        values.insert(name.to_owned(), value.to_owned());
        (form, text) = (next, &text[value.len()..]);
    }
    (form == text).then_some(values)
}

impl Helped {
    /// Parses the part after a scheme. Starts nothing yet.
    ///
    /// # Errors
    /// `Misuse` if the text has another form.
    pub fn new(helper: &Helper, rest: &str, access: Access) -> Result<Self> {
        let arguments = helper.arguments(rest, access)?;
        let (helper, rest) = (helper.clone(), rest.to_owned());
        let (image, running, own) = (OnceLock::new(), Mutex::default(), Mutex::default());
        Ok(Self { helper, rest, access, arguments, image, running, own })
    }

    /// Opens the image, if there is one, and checks that it holds the whole disk.
    ///
    /// # Errors
    /// Those of [`Image::open`] and [`Image::check`].
    pub fn check(&self, deadline: Deadline) -> Result<()> {
        let Some(format) = &self.helper.image else { return Ok(()) };
        if self.image.get().is_none() {
            let _ = self.image.set(Image::open(&self.rest, format)?);
        }
        let qemu_img = || self.helper.command("qemu-img");
        self.image.get().map_or(Ok(()), |image| image.check(qemu_img(), &self.helper.package, deadline))
    }

    /// The arguments, including those known only at the start.
    fn all_arguments(&self) -> Vec<String> {
        const PLUGINS: &str = "{plugins}";
        let mut arguments = self.arguments.clone();
        if arguments.iter().any(|word| word.contains(PLUGINS)) {
            let plugins = self.plugins().unwrap_or_default();
            arguments.iter_mut().for_each(|word| *word = word.replace(PLUGINS, &plugins));
        }
        arguments.extend(self.image.get().map(Image::node));
        arguments
    }

    /// The folder of nbdkit's plugins.
    fn plugins(&self) -> Option<String> {
        let mut nbdkit = self.helper.command(&self.helper.program);
        nbdkit.arg("--dump-config");
        let start = |command| walls::spawn(command, self.helper.walls());
        let text = walls::output(nbdkit, Deadline::within(LAST, None), start).ok()?.out;
        text.lines().find_map(|line| line.strip_prefix("plugindir=")).map(str::to_owned)
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self) -> io::Result<Running> {
        let (listener, socket) = nameless()?;
        let messages = tempfile::tempfile()?;
        let mut command = Command::new("/bin/sh");
        command.args(["-c", BEGIN, "sh", &self.helper.program]).args(self.all_arguments());
        self.helper.close_environment(&mut command);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::from(OwnedFd::from(listener)))
            .stderr(Stdio::from(messages.try_clone()?));
        // Signals from the terminal go to this process only, which may still have to write.
        command.process_group(0);
        let writable = self.access == Access::ReadWrite;
        let Walled { mut child, parent } = match self.image.get() {
            Some(image) => {
                let walls = image.walls(writable, &self.helper.program)?;
                image.handed(|| walls::spawn(command, walls))?
            }
            None => walls::spawn(command, self.helper.walls())?,
        };
        let life = child.stdin.take();
        Ok(Running { child, _parent: parent, checked: false, life, socket, messages })
    }
}

impl Reach for Helped {
    fn reach(&self, deadline: Deadline) -> io::Result<Socket> {
        let mut running = self.running();
        let gone = running.as_mut().is_none_or(|running| !matches!(running.child.try_wait(), Ok(None)));
        if gone {
            // The image may have been changed while nobody had it open. The caller has checked it before the first start.
            if running.is_some() {
                self.check(deadline).map_err(io::Error::other)?;
            }
            *running = Some(self.start()?);
        }
        let running = running.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let path = format!("/proc/self/fd/{}", running.socket.as_raw_fd());
        Ok(Socket::new(deadline.connect_unix(path.as_ref())?))
    }

    fn service(&self) -> Option<String> {
        self.helper.service(&self.rest)
    }

    /// Adds the helper's messages, if it has ended.
    fn explain(&self, error: io::Error) -> io::Error {
        let mut running = self.running();
        let Some(running) = &mut *running else { return error };
        // A helper closes its socket before it ends.
        let _ = walls::ended_within(&mut running.child, Deadline::within(Duration::from_secs(1), None));
        let status = running.child.try_wait().ok().flatten();
        let Helper { program, package, .. } = &self.helper;
        if status.and_then(|status| status.code()) == Some(127) {
            let what = format!("{program} is not installed: install the package {package}");
            return io::Error::new(io::ErrorKind::NotFound, what);
        }
        if listened(status) {
            let what = format!(
                "{program} was killed because it tried to listen on its own socket. A helper must serve on the \
                 socket it is given (LISTEN_FDS)"
            );
            return io::Error::new(io::ErrorKind::PermissionDenied, what);
        }
        let mut text = String::new();
        let _ = running.messages.rewind().and_then(|()| running.messages.by_ref().take(4096).read_to_string(&mut text));
        let its = |line: &str| {
            line.strip_prefix(program.as_str()).map_or(line.to_owned(), |line| line.trim_start_matches(": ").into())
        };
        let text = self.image.get().map_or(text.clone(), |image| image.with_the_users_name(&text));
        let last: Vec<_> = text.lines().map(|line| its(line.trim())).filter(|line| !line.is_empty()).collect();
        let what = match (&last[last.len().saturating_sub(3)..], status) {
            ([], None) => return error,
            ([], Some(status)) => format!("{program} exited: {status}"),
            (last, _) => format!("{program}: {}", last.join("; ")),
        };
        let what = self.service().map_or(what.clone(), |service| format!("{service}: {what}"));
        io::Error::new(error.kind(), what)
    }

    /// Each helper is a writer of its own, so each is checked once.
    fn check_only_writer(&self, deadline: Deadline) -> Result<()> {
        if self.helper.writers != Writers::Listed || self.running().as_ref().is_some_and(|running| running.checked) {
            return Ok(());
        }
        let rbd = self.helper.command("rbd");
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        let now = ceph::writers(rbd, &self.rest, deadline)?;
        ceph::one_writer(&now, &own)?;
        own.extend(now);
        self.running().iter_mut().for_each(|running| running.checked = true);
        Ok(())
    }

    fn anew(&self) -> io::Result<Option<Box<dyn Reach>>> {
        if self.helper.image.is_some() {
            let why = "a disk image keeps its size while it is in use";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let anew = Self::new(&self.helper, &self.rest, Access::ReadOnly).map_err(io::Error::other)?;
        Ok(Some(Box::new(anew)))
    }

    fn renew(&self) {
        *self.running() = None;
    }

    fn give_up(&self) {
        self.running().iter_mut().for_each(Running::kill);
    }
}

impl Running {
    /// Kills the helper and everything it has started, whatever they wait for.
    fn kill(&mut self) {
        if let (Ok(None), Some(pid)) = (self.child.try_wait(), Pid::from_raw(self.child.id().cast_signed())) {
            let _ = kill_process_group(pid, Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // All flushed writes are already stored. A helper that waits for a lost cluster would wait forever.
        drop(self.life.take());
        if walls::ended_within(&mut self.child, Deadline::within(LAST, None)).is_err() {
            self.kill();
        }
    }
}

/// Whether a sandbox rule ended the program: the signal itself, or the status of a shell whose child got it.
fn listened(status: Option<ExitStatus>) -> bool {
    status.is_some_and(|status| status.signal() == Some(libc::SIGSYS) || status.code() == Some(128 + libc::SIGSYS))
}

/// A listening Unix socket without a name, so nobody else can reach it. The second descriptor is for connecting.
fn nameless() -> io::Result<(UnixListener, OwnedFd)> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path)?;
    Ok((listener, walls::place(&path)?.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_take_places_to_pieces() {
        let values = |form, text| matched(form, text).map(|v| v.into_values().collect::<Vec<_>>().join("|"));
        assert_eq!(values("{host}/{path}", "h/a/b"), Some("h|a/b".into()));
        assert_eq!(values("{rest}", "//h/x?y"), Some("//h/x?y".into()));
        assert_eq!(values("x{a}-{b}", "xone-two"), Some("one|two".into()));
        for (form, text) in
            [("{host}/{path}", "h"), ("{host}/{path}", "/p"), ("{a}", ""), ("x{a}", "ya"), ("{a}", "-v")]
        {
            assert_eq!(values(form, text), None, "{form} {text}");
        }
    }

    #[test]
    fn the_service_is_host_and_port_without_passwords() {
        let of = |scheme: &str, rest: &str| {
            helpers().into_iter().find(|helper| helper.scheme == scheme).expect("a row").service(rest)
        };
        for (scheme, rest, service) in [
            ("s3", "b/k?endpoint-url=http://127.0.0.1:9000/&size=1M", Some("http://127.0.0.1:9000")),
            ("s3", "b/k", Some("https://s3.amazonaws.com")),
            ("ssh", "host/disk?port=2222", Some("host:2222")),
            ("ssh", "host/disk", Some("host:22")),
            ("https", "//me:secret@host:8443/disk?x=y", Some("https://host:8443")),
            ("rbd", "pool/disk", Some("the Ceph cluster")),
            ("qcow2", "disk", None),
        ] {
            assert_eq!(of(scheme, rest).as_deref(), service, "{scheme}:{rest}");
        }
    }

    #[test]
    fn every_row_fills_its_arguments_and_takes_only_its_options() {
        for helper in helpers() {
            let arguments = helper.arguments("a/b/c", Access::ReadOnly).expect(&helper.scheme);
            let left = |word: &String| word.replace("{plugins}", "").contains('{');
            assert!(!arguments.iter().any(left), "{arguments:?}");
            assert_eq!(arguments[..helper.read_only.len()], helper.read_only[..]);
        }
        let s3 = helpers().into_iter().find(|helper| helper.scheme == "s3").expect("a row");
        let arguments = s3.arguments("b/k/l?size=1M&object-size=64K", Access::ReadWrite).expect("a place");
        assert_eq!(arguments[4..], ["bucket=b", "key=k/l", "size=1M", "object-size=64K"]);
        let http = helpers().into_iter().find(|helper| helper.scheme == "https").expect("a row");
        assert_eq!(http.arguments("//h/x", Access::ReadWrite).expect("a place")[0], "--readonly");
        for wrong in ["b", "b/k?secret-key=x", "b/k?size"] {
            assert!(s3.arguments(wrong, Access::ReadWrite).is_err(), "{wrong}");
        }
    }
}
