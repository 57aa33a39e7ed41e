//! Sessions of servers and mounts. Each server has a folder with a record of what must be cleaned up if the server
//! cannot do so, and a socket that reports its traffic.
//!
//! ```text
//! /run/claviger/            mode 0700, root's; users have theirs in $XDG_RUNTIME_DIR
//!   PID-TICKS-REALM/        the server: its PID, its start time, and the kernel and namespace of both
//!     record.json           mode 0600, replaced atomically
//!     control               a socket: sends the status to each client
//!     loans                 a socket: lends the store to commands that change the header
//!     keys                  a socket: forgets the keys or takes new ones, if there is a key process
//!     image/                where the plaintext is mounted as a file, if a file system lies on top of it
//! ```

mod control;
mod loans;
mod owner;
mod process;
mod socket;
mod text;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Weak;

use claviger_engine::internal::files;
use claviger_engine::store::Traffic;
use claviger_engine::volume::{ConversionProgress, VolumeEncryption};
use claviger_engine::{Error, Result, Store};
use rustix::fs::OFlags;
use rustix::process::getuid;
use serde::{Deserialize, Serialize};

use crate::key_process::locking::Lockable;

pub(crate) use loans::fuzz;
pub use loans::{AfterGrowth, borrow, borrow_remote, is_busy};
pub use owner::FolderOwner;
pub use process::Process;
pub(crate) use process::Stat;
pub use socket::SessionSocket;
pub use text::{escape, unescape};

/// The environment variable that overrides the runtime folder: the absolute path of a private folder.
pub const VARIABLE: &str = "CLAVIGER_RUNTIME_DIR";

/// Name of the record's file.
const RECORD: &str = "record.json";

/// The maximum size of a record, in bytes.
const RECORD_MAX: u64 = 64 << 10;

/// The record of a served volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionRecord {
    /// The file or device that holds the volume.
    #[serde(with = "text::path")]
    pub volume: PathBuf,
    /// A digest of the [identity](crate::remote::RemoteAddress::identity) of a remote store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<String>,
    /// The mount point.
    #[serde(with = "text::optional_path", default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
    /// The URI at which it is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// The mounted file system, or `none` if only the plaintext is shown as a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filesystem: Option<String>,
    /// Name of the format.
    pub format: String,
    /// Cipher or cascade.
    pub cipher: String,
    /// Mode of operation.
    pub mode: String,
    /// Size of the plaintext, in bytes.
    pub size: u64,
    /// Whether it is read-only.
    pub read_only: bool,
    /// When it was started, in seconds since 1970.
    pub since: u64,
    /// The process that decrypts.
    pub server: Process,
    /// The process of the file system, if that is another program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<Process>,
    /// The loop device below the kernel's file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loop_device: Option<PathBuf>,
    /// A failure at the end: the last writes may be lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// The status of a running server.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// Bytes of plaintext transferred.
    #[serde(flatten)]
    pub traffic: Traffic,
    /// Whether a write that would have damaged the hidden volume was refused.
    pub damage_prevented: bool,
    /// Whether its keys are forgotten at present.
    #[serde(default)]
    pub locked: bool,
    /// Size of the plaintext now, in bytes: a volume can grow while it is served. `None` for a folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// How it is encrypted now, if it was converted since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<VolumeEncryption>,
    /// How far a reencryption has come that is going on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reencryption: Option<ConversionProgress>,
}

/// This user's runtime folder, which nobody else can enter.
pub struct Runtime(PathBuf);

impl Runtime {
    /// `$CLAVIGER_RUNTIME_DIR`; otherwise root's /run/claviger, or a user's $XDG_RUNTIME_DIR/claviger or
    /// /run/user/UID/claviger; or /tmp/claviger-UID. Created if it does not exist.
    ///
    /// # Errors
    /// `Misuse` if it exists but is not private to this user; `Io`.
    pub fn of_this_user() -> Result<Self> {
        let uid = getuid().as_raw();
        let own = |path: &PathBuf| fs::metadata(path).is_ok_and(|m| m.is_dir() && m.uid() == uid);
        let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let folder = match variable(VARIABLE) {
            Some(folder) => folder,
            None => {
                // Ignores root's XDG_RUNTIME_DIR, which is only set by some ways to become root.
                let base = match uid {
                    0 => Some(PathBuf::from("/run")),
                    _ => variable("XDG_RUNTIME_DIR").filter(own).or(Some(format!("/run/user/{uid}").into())),
                };
                match base.filter(own) {
                    Some(base) => base.join("claviger"),
                    None => std::env::temp_dir().join(format!("claviger-{uid}")),
                }
            }
        };
        private_folder(&folder).map_err(|e| e.at(&folder))?;
        Ok(Self(folder))
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Creates a folder for what this process serves.
    ///
    /// # Errors
    /// `Io`.
    pub fn begin(&self, record: SessionRecord) -> Result<Live> {
        let folder = self.0.join(FolderOwner::of(record.server).to_string());
        let begin = || {
            DirBuilder::new().mode(0o700).create(&folder)?;
            let live = Live { session: Session { folder: folder.clone(), record } };
            live.session.write()?;
            Ok(live)
        };
        begin().map_err(|e: io::Error| Error::from(e).at(&folder))
    }

    /// The sessions, oldest first: running servers, and remains of dead ones. Leaves out those of another kernel or PID
    /// namespace that shares the folder: their mounts are not visible here, or not ours to unmount.
    ///
    /// # Errors
    /// `Io`.
    pub fn sessions(&self) -> Result<Vec<Session>> {
        let mut sessions: Vec<_> = self
            .folders()?
            .filter(|(_, server)| server.is_here())
            .filter_map(|(folder, _)| Session::read(&folder))
            .collect();
        sessions.sort_by(|a, b| {
            let order = |s: &Session| (s.record.since, s.record.server.started);
            order(a).cmp(&order(b)).then_with(|| a.record.volume.cmp(&b.record.volume))
        });
        Ok(sessions)
    }

    /// Folders of servers that ended without removing them, with or without a record.
    ///
    /// # Errors
    /// `Io`.
    pub fn left_over(&self) -> Result<Vec<PathBuf>> {
        Ok(self.folders()?.filter(|(_, server)| server.has_ended()).map(|(folder, _)| folder).collect())
    }

    fn folders(&self) -> Result<impl Iterator<Item = (PathBuf, FolderOwner)>> {
        let entries = fs::read_dir(&self.0).map_err(|e| Error::from(e).at(&self.0))?;
        Ok(entries.flatten().filter_map(|entry| Some((entry.path(), entry.file_name().to_str()?.parse().ok()?))))
    }
}

/// A server's folder and its record.
#[derive(Clone, Debug)]
pub struct Session {
    /// The server's folder.
    pub folder: PathBuf,
    /// The record in it.
    pub record: SessionRecord,
}

impl Session {
    /// The folder where the plaintext is mounted as a file, if it is.
    pub fn image_dir(&self) -> PathBuf {
        self.folder.join("image")
    }

    /// A private folder on which the server can mount files for itself. The mounting code creates it.
    pub fn files_dir(&self) -> PathBuf {
        self.folder.join("files")
    }

    /// Whether its server is running.
    pub fn alive(&self) -> bool {
        self.record.server.alive()
    }

    /// The server's own status; `None` if it has ended or does not answer.
    pub fn status(&self) -> Option<Status> {
        control::ask(&self.folder).ok()
    }

    /// Reads a folder's record, if it exists, is complete and belongs to this folder's server.
    pub fn read(folder: &Path) -> Option<Self> {
        let no_link = OFlags::NOFOLLOW.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(no_link).open(folder.join(RECORD)).ok()?;
        let metadata = file.metadata().ok()?;
        if !metadata.is_file() || metadata.uid() != getuid().as_raw() || metadata.mode() & 0o022 != 0 {
            return None;
        }
        let text = files::read_at_most(file, RECORD_MAX).ok()??;
        let record = serde_json::from_slice(&text).ok()?;
        Some(Self { folder: folder.to_owned(), record })
    }

    /// Replaces the record atomically: a reader sees either the old or the new one.
    fn write(&self) -> io::Result<()> {
        files::replace(&self.folder.join(RECORD), &serde_json::to_vec_pretty(&self.record)?, 0o600)
    }
}

/// This process's session. Dropping it removes its folder, unless the record has a failure to report.
pub struct Live {
    session: Session,
}

impl Live {
    /// The session as recorded.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Changes the record.
    ///
    /// # Errors
    /// `Io`.
    pub fn update(&mut self, change: impl FnOnce(&mut SessionRecord)) -> Result<()> {
        change(&mut self.session.record);
        self.session.write().map_err(|e| Error::from(e).at(&self.session.folder))
    }

    /// Answers status requests for the lifetime of the value returned.
    ///
    /// # Errors
    /// `Io`.
    pub fn answer(&self, status: impl Fn() -> Status + Send + Sync + 'static) -> Result<SessionSocket> {
        control::answer(&self.session.folder, status).map_err(|e| Error::from(e).at(&self.session.folder))
    }

    /// Lends these stores to other processes of this user, for changes of the header, for the lifetime of the value returned: see
    /// [`borrow`] and [`borrow_remote`]. The session's volume lies in the first one.
    ///
    /// # Errors
    /// `Io`.
    pub fn lend(
        &self,
        stores: Vec<Weak<dyn Store>>,
        key_process: Option<Weak<Lockable>>,
        after_growth: AfterGrowth,
    ) -> Result<SessionSocket> {
        loans::lend(&self.session.folder, stores, key_process, after_growth)
            .map_err(|e| Error::from(e).at(&self.session.folder))
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if self.session.record.failure.is_none() {
            remove(&self.session.folder);
        }
    }
}

/// Removes a session's folder: the files that belong there and the empty folders for mounts, never anything below a
/// mount.
pub fn remove(folder: &Path) {
    let record = folder.join(RECORD);
    let sockets = [control::SOCKET, loans::SOCKET, KEYS_SOCKET].map(|name| Some(folder.join(name)));
    for path in [files::beside(&record).ok(), Some(record)].into_iter().chain(sockets).flatten() {
        let _ = fs::remove_file(path);
    }
    for path in [folder.join("files"), folder.join("image"), folder.to_owned()] {
        let _ = fs::remove_dir(path);
    }
}

/// Creates the folder, or checks that it is private to this user.
fn private_folder(folder: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e.into()),
        _ => {}
    }
    // In /tmp, another user could have created it first.
    let metadata = fs::symlink_metadata(folder)?;
    if !metadata.is_dir() || metadata.uid() != getuid().as_raw() || metadata.mode() & 0o077 != 0 {
        return Err(Error::misuse("not a private folder of your own (mode 0700)").hint(format!(
            "Correct its owner and mode, remove it, or set the environment variable {VARIABLE} to another folder."
        )));
    }
    Ok(())
}

/// The socket's name in the session's folder.
pub(crate) const KEYS_SOCKET: &str = "keys";

/// The folder, held open so that a socket in it has a short path whatever the folder's own path is (unix(7): 108
/// bytes).
pub(crate) fn short_name(folder: &Path, name: &str) -> io::Result<(File, PathBuf)> {
    use std::os::fd::AsRawFd;
    let held = File::open(folder)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}/{name}", held.as_raw_fd()));
    Ok((held, path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn record() -> SessionRecord {
        SessionRecord {
            volume: "/a b/c\n.tc".into(),
            remote: None,
            dir: Some("/mnt".into()),
            uri: None,
            filesystem: Some("ext4".into()),
            format: "TrueCrypt".into(),
            cipher: "AES".into(),
            mode: "XTS".into(),
            size: 1,
            read_only: false,
            since: 7,
            server: Process::this().expect("procfs"),
            driver: None,
            loop_device: None,
            failure: None,
        }
    }

    fn runtime() -> (tempfile::TempDir, Runtime) {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("runtime");
        private_folder(&path).expect("made");
        (dir, Runtime(path))
    }

    #[test]
    fn a_session_is_there_as_long_as_it_lives() {
        let (_dir, runtime) = runtime();
        let mut live = runtime.begin(record()).expect("begun");
        live.update(|r| r.loop_device = Some("/dev/loop9".into())).expect("written");
        let control = live
            .answer(|| Status {
                traffic: Traffic { read: 5, written: 6, failed_writes: 0 },
                damage_prevented: true,
                locked: true,
                size: None,
                encryption: None,
                reencryption: None,
            })
            .expect("a socket");
        let sessions = runtime.sessions().expect("read");
        assert_eq!(sessions.len(), 1);
        let session = &sessions[0];
        assert_eq!(session.record.volume, record().volume);
        assert_eq!(session.record.loop_device, Some("/dev/loop9".into()));
        let status = session.status().expect("it answers");
        assert_eq!(
            (status.traffic, status.damage_prevented),
            (Traffic { read: 5, written: 6, failed_writes: 0 }, true)
        );
        assert!(session.alive() && runtime.left_over().expect("read").is_empty());
        drop(control);
        assert!(session.status().is_none());
        drop(live);
        assert!(runtime.sessions().expect("read").is_empty() && !session.folder.exists());
    }

    #[test]
    fn what_a_dead_server_left_and_what_failed_stays() {
        let (_dir, runtime) = runtime();
        let mut dead = record();
        dead.server.started += 1;
        let mut live = runtime.begin(dead).expect("begun");
        live.update(|r| r.failure = Some("full".into())).expect("written");
        drop(live);
        let left = runtime.left_over().expect("read");
        assert_eq!(left.len(), 1);
        assert_eq!(Session::read(&left[0]).expect("a record").record.failure.as_deref(), Some("full"));
        remove(&left[0]);
        assert!(!left[0].exists());
    }

    #[test]
    fn what_another_kernel_or_namespace_serves_is_left_alone() {
        let (_dir, runtime) = runtime();
        let mut dead = record();
        dead.server.started += 1;
        std::mem::forget(runtime.begin(dead).expect("begun"));
        let left = runtime.left_over().expect("read").pop().expect("one");
        let (process, _realm) = left.to_str().and_then(|path| path.rsplit_once('-')).expect("a name");
        for elsewhere in [format!("{process}-000000000007"), process.to_owned()] {
            fs::rename(&left, &elsewhere).expect("renamed");
            assert!(runtime.left_over().expect("read").is_empty() && runtime.sessions().expect("read").is_empty());
            fs::rename(&elsewhere, &left).expect("renamed");
        }
    }

    #[test]
    fn records_that_others_could_have_written_do_not_count() {
        let (_dir, runtime) = runtime();
        let live = runtime.begin(record()).expect("begun");
        let path = live.session().folder.join("record.json");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o622)).expect("changed");
        assert!(runtime.sessions().expect("read").is_empty());
        let elsewhere = runtime.path().join("elsewhere");
        fs::rename(&path, &elsewhere).expect("moved");
        fs::set_permissions(&elsewhere, fs::Permissions::from_mode(0o600)).expect("changed");
        std::os::unix::fs::symlink(&elsewhere, &path).expect("a link");
        assert!(runtime.sessions().expect("read").is_empty());
    }

    #[test]
    fn a_folder_that_others_can_enter_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("changed");
        let error = private_folder(dir.path()).expect_err("open to others");
        assert!(error.to_string().contains("not a private folder"), "{error}");
    }
}
