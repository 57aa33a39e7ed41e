//! Programs that have what is elsewhere, and serve it to this one over NBD: a table. They see what is stored, which is encrypted;
//! they get no key and no password of a volume, hardly any environment, and end when the store is closed or this process dies.

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

/// A way to a kind of places: a row of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Helper {
    /// What such a place begins with, before the colon.
    pub scheme: String,
    /// What comes behind it: text, and `{NAME}` for what the arguments take over. Behind a `?` may come `NAME=VALUE&…`.
    pub form: String,
    /// The program. It takes over a listening socket as systemd hands it over (sd_listen_fds(3)), and speaks NBD there.
    pub program: String,
    /// Its arguments. `{plugins}` stands for the folder of nbdkit's plugins.
    pub arguments: Vec<String>,
    /// Arguments for reading only, in front of the others.
    pub read_only: Vec<String>,
    /// Names behind the `?` that may be given to it, as `NAME=VALUE`, behind the other arguments.
    pub options: Vec<String>,
    /// Variables of the environment that it needs, besides PATH, HOME, LANG and the user's name.
    pub environment: Vec<String>,
    /// Debian's package that has it.
    pub package: String,
    /// What keeps a second one from writing there.
    pub writers: Writers,
    /// qemu's name of the format, where the place is an image of a virtual disk in a file. The image is looked at before it is opened;
    /// what it names besides itself is refused, and the program, which is qemu-nbd, reaches that one file.
    pub image: Option<String>,
}

/// What keeps two from writing to one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writers {
    /// The helper, which locks the file.
    Locked,
    /// Nothing; but of an image of Ceph's, `rbd` says who has it open for writing.
    Told,
    /// Nothing, and nobody says.
    Unknown,
    /// It is only read.
    Nobody,
}

/// Variables of the environment that every helper gets.
const ENVIRONMENT: [&str; 5] = ["PATH", "HOME", "LANG", "USER", "LOGNAME"];

/// How long a helper may take to end.
const LAST: Duration = Duration::from_secs(10);

/// What a shell does before it becomes the helper: the socket, which comes as standard output, gets the number 3. Who keeps the
/// other end of standard input alive is this process: when that ends, so does the helper, whose group of processes this is.
const BEGIN: &str = r#"ulimit -c 0
exec 3>&1 1>&2 4<&0 </dev/null
(exec 3>&-; read -r _ <&4; kill 0) >/dev/null 2>&1 &
exec 4<&-
LISTEN_FDS=1 LISTEN_PID=$$ exec "$@""#;

/// The rows that are always there.
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
            image: None,
        };
    // Servers that take part of a file in place of another part are rare, and others replace all of it.
    let http = |scheme: &str, environment: &[&str]| Helper {
        writers: Writers::Nobody,
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
            writers: Writers::Told,
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
        nbdkit(
            "ssh",
            "{host}/{path}",
            &["ssh", "host={host}", "path=/{path}"],
            &["user", "port", "identity", "known-hosts"],
            &["SSH_AUTH_SOCK"],
            "nbdkit",
        ),
        http("http", &["http_proxy"]),
        http("https", &["https_proxy", "SSL_CERT_FILE"]),
        nbdkit(
            "s3",
            "{bucket}/{key}",
            // By its name alone it would be a script that nbdkit becomes, and that does not get our socket.
            &["--filter=blocksize", "python", "{plugins}/nbdkit-S3-plugin", "bucket={bucket}", "key={key}"],
            &["endpoint-url", "size", "object-size"],
            &aws,
            "nbdkit-plugin-python",
        ),
    ]
}

/// A place that a helper has.
pub struct Helped {
    helper: Helper,
    /// What comes behind the scheme.
    rest: String,
    access: Access,
    arguments: Vec<String>,
    /// The file with the image, from when it is opened first: no other one ever takes its place.
    image: OnceLock<Image>,
    running: Mutex<Option<Running>>,
    /// Who had it open for writing when only this process had, by an address for each helper that was started.
    own: Mutex<Vec<String>>,
}

/// A helper at work.
struct Running {
    child: Child,
    /// It may have itself ended when the thread that started it is gone, which ends with this.
    _parent: Sender<Infallible>,
    /// Whether nobody else had the place open for writing, once it was there.
    alone: bool,
    /// It ends when this is closed.
    life: Option<ChildStdin>,
    /// Its listening socket, which has no name.
    socket: OwnedFd,
    /// What it says.
    said: File,
}

impl Helper {
    /// The arguments for what comes behind the scheme.
    ///
    /// # Errors
    /// `Misuse` where it has another form, or an option that the row has not.
    fn arguments(&self, rest: &str, access: Access) -> Result<Vec<String>> {
        let (rest, query) = match rest.split_once('?') {
            // Only where options are taken: elsewhere it is a part of the place.
            Some((rest, query)) if !self.options.is_empty() => (rest, query),
            _ => (rest, ""),
        };
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
                return Err(Error::misuse(format!("{pair:?} after the ?: {}: takes {known}", self.scheme)));
            }
            arguments.push(pair.to_owned());
        }
        Ok(arguments)
    }

    /// The walls around it, where it is not one of an image.
    fn walls(&self) -> Walls {
        if self.writers == Writers::Told { Walls::NoListenerRefused } else { Walls::NoListener }
    }

    /// Another program of the same kind.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        self.close_environment(&mut command);
        command
    }

    /// Leaves a program the variables that it needs.
    fn close_environment(&self, command: &mut Command) {
        let variables = ENVIRONMENT.into_iter().chain(self.environment.iter().map(String::as_str));
        command.env_clear().envs(variables.filter_map(|name| Some((name, std::env::var_os(name)?))));
    }
}

/// What `{NAME}`s of a form stand for in a text: each up to what comes next in the form, and never nothing.
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
    /// The place behind a scheme. Nothing is started yet.
    ///
    /// # Errors
    /// `Misuse` where the text has another form.
    pub fn new(helper: &Helper, rest: &str, access: Access) -> Result<Self> {
        let arguments = helper.arguments(rest, access)?;
        let (helper, rest) = (helper.clone(), rest.to_owned());
        let (image, running, own) = (OnceLock::new(), Mutex::default(), Mutex::default());
        Ok(Self { helper, rest, access, arguments, image, running, own })
    }

    /// Opens the image, if it is one, and looks whether it is all of the disk.
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

    /// The arguments, with what is known only when it is started.
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

    /// Where nbdkit has its plugins.
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
        let said = tempfile::tempfile()?;
        let mut command = Command::new("/bin/sh");
        command.args(["-c", BEGIN, "sh", &self.helper.program]).args(self.all_arguments());
        self.helper.close_environment(&mut command);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::from(OwnedFd::from(listener)))
            .stderr(Stdio::from(said.try_clone()?));
        // A signal from the terminal is for this program, which may have something to write yet.
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
        Ok(Running { child, _parent: parent, alone: false, life, socket, said })
    }
}

impl Reach for Helped {
    fn reach(&self, deadline: Deadline) -> io::Result<Socket> {
        let mut running = self.running();
        let gone = running.as_mut().is_none_or(|running| !matches!(running.child.try_wait(), Ok(None)));
        if gone {
            // Somebody may have changed it while nobody had it open. Before the first time the caller has looked.
            if running.is_some() {
                self.check(deadline).map_err(io::Error::other)?;
            }
            *running = Some(self.start()?);
        }
        let running = running.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let path = format!("/proc/self/fd/{}", running.socket.as_raw_fd());
        Ok(Socket::new(deadline.connect_unix(path.as_ref())?))
    }

    /// What it has said, if it has ended.
    fn explain(&self, error: io::Error) -> io::Error {
        let mut running = self.running();
        let Some(running) = &mut *running else { return error };
        // It closes its socket before it is gone.
        let _ = ended_within(&mut running.child, Deadline::within(Duration::from_secs(1), None));
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
        let mut said = String::new();
        let _ = running.said.rewind().and_then(|()| running.said.by_ref().take(4096).read_to_string(&mut said));
        let its = |line: &str| {
            line.strip_prefix(program.as_str()).map_or(line.to_owned(), |line| line.trim_start_matches(": ").into())
        };
        let said = self.image.get().map_or(said.clone(), |image| image.said(&said));
        let said: Vec<_> = said.lines().map(|line| its(line.trim())).filter(|line| !line.is_empty()).collect();
        let what = match (&said[said.len().saturating_sub(3)..], status) {
            ([], None) => return error,
            ([], Some(status)) => format!("{program} exited: {status}"),
            (last, _) => format!("{program}: {}", last.join("; ")),
        };
        io::Error::new(error.kind(), what)
    }

    /// Each helper is a writer of its own, so that it is asked about each once.
    fn alone(&self, deadline: Deadline) -> Result<()> {
        if self.helper.writers != Writers::Told || self.running().as_ref().is_some_and(|running| running.alone) {
            return Ok(());
        }
        let rbd = self.helper.command("rbd");
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        let now = ceph::writers(rbd, &self.rest, deadline)?;
        ceph::one_writer(&now, &own)?;
        own.extend(now);
        self.running().iter_mut().for_each(|running| running.alone = true);
        Ok(())
    }

    fn give_up(&self) {
        self.running().iter_mut().for_each(Running::kill);
    }
}

impl Running {
    /// Ends it and all that it has started, whatever it waits for.
    fn kill(&mut self) {
        if let (Ok(None), Some(pid)) = (self.child.try_wait(), Pid::from_raw(self.child.id().cast_signed())) {
            let _ = kill_process_group(pid, Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // What was written before a flush is where it belongs. One that waits for a cluster which is gone would wait for ever.
        drop(self.life.take());
        if ended_within(&mut self.child, Deadline::within(LAST, None)).is_err() {
            self.kill();
        }
    }
}

/// Waits for the end of a process.
///
/// # Errors
/// Those of [`Deadline::left`].
pub(super) fn ended_within(child: &mut Child, deadline: Deadline) -> io::Result<()> {
    while let Ok(None) = child.try_wait() {
        deadline.sleep(Duration::from_millis(5))?;
    }
    Ok(())
}

/// Whether a wall ended it: the signal, or what a shell makes of one that ended its child.
fn listened(status: Option<ExitStatus>) -> bool {
    status.is_some_and(|status| status.signal() == Some(libc::SIGSYS) || status.code() == Some(128 + libc::SIGSYS))
}

/// A listening Unix socket that nobody else can reach: its name is gone again. It is connected to through the other descriptor.
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
