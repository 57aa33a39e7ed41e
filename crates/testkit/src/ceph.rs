//! A Ceph cluster of a monitor and three OSDs in a folder: only on 127.0.0.1, without root and without authentication.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::tools;

/// A cluster, which ends on drop. Every object has three copies, and can be written while two of its OSDs answer.
pub struct Cluster {
    folder: tempfile::TempDir,
    monitor: Option<Child>,
    osds: Vec<Option<Child>>,
}

impl Cluster {
    /// Starts a cluster with a pool `vol`, in about 15 s. A reported skip if Ceph or qemu's driver for it is missing.
    ///
    /// # Panics
    /// If it does not start within a minute.
    pub fn start() -> Option<Self> {
        for program in ["ceph", "rbd", "ceph-mon", "ceph-osd", "monmaptool", "qemu-nbd", "qemu-io"] {
            tools::program(program)?;
        }
        let help = Command::new("qemu-img").arg("--help").output().expect("it starts");
        if !String::from_utf8_lossy(&help.stdout).contains(" rbd") {
            return tools::skip("qemu has no driver for rbd (qemu-block-extra)");
        }
        let folder = tempfile::Builder::new().prefix("ceph").tempdir_in("/var/tmp").expect("a folder");
        let mut cluster = Self { folder, monitor: None, osds: Vec::new() };
        cluster.make_monitor();
        (0..3).for_each(|n| cluster.make_osd(n));
        cluster.is_up();
        cluster.ceph(&["osd", "pool", "create", "vol", "8", "8"]);
        cluster.rbd(&["pool", "init", "vol"]);
        Some(cluster)
    }

    fn make_monitor(&mut self) {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port();
        let id = fs::read_to_string("/proc/sys/kernel/random/uuid").expect("procfs");
        let at = format!("[v2:127.0.0.1:{port}]");
        fs::write(self.conf(), conf(self.folder.path(), id.trim(), &at)).expect("written");
        let map = self.folder.path().join("monmap");
        fs::create_dir(self.folder.path().join("mon")).expect("a folder");
        let make = ["--create", "--fsid", id.trim(), "--addv", "a", &at];
        tools::run(Command::new("monmaptool").args(make).arg(&map));
        tools::run(self.command("ceph-mon").args(["-i", "a", "--mkfs", "--monmap"]).arg(&map));
        self.start_monitor();
    }

    fn make_osd(&mut self, n: usize) {
        let id = fs::read_to_string("/proc/sys/kernel/random/uuid").expect("procfs");
        let (id, number) = (id.trim(), n.to_string());
        fs::create_dir(self.folder.path().join(format!("osd{n}"))).expect("a folder");
        self.ceph(&["osd", "new", id, &number]);
        let make = ["-i", &number, "--mkfs", "--osd-uuid", id, "--no-mon-config"];
        tools::run(self.command("ceph-osd").args(make));
        self.osds.push(None);
        self.start_osd(n);
    }

    fn is_up(&self) {
        let end = Instant::now() + Duration::from_secs(60);
        while !self.ceph(&["osd", "stat"]).contains("3 up") {
            assert!(Instant::now() < end, "the OSDs are not up after a minute");
            sleep(Duration::from_millis(300));
        }
    }

    /// The configuration file, for clients.
    pub fn conf(&self) -> PathBuf {
        self.folder.path().join("ceph.conf")
    }

    /// A Ceph program with administrator rights, killed after a minute.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args(["60", program]).env("CEPH_CONF", self.conf()).stdin(Stdio::null());
        command
    }

    fn ceph(&self, args: &[&str]) -> String {
        String::from_utf8_lossy(&tools::run(self.command("ceph").args(args)).stdout).into_owned()
    }

    /// Runs `rbd`.
    ///
    /// # Panics
    /// If it fails.
    pub fn rbd(&self, args: &[&str]) {
        tools::run(self.command("rbd").args(args));
    }

    fn daemon(&self, program: &str, id: &str) -> Child {
        let log = fs::File::create(self.folder.path().join(format!("{program}.{id}.out"))).expect("a file");
        let mut command = Command::new(program);
        command.args(["-f", "-i", id]).env("CEPH_CONF", self.conf()).stdin(Stdio::null());
        command.stdout(log.try_clone().expect("a descriptor")).stderr(log).spawn().expect("it starts")
    }

    /// Starts the monitor, or restarts it.
    pub fn start_monitor(&mut self) {
        self.monitor = Some(self.daemon("ceph-mon", "a"));
    }

    /// Kills the monitor.
    pub fn kill_monitor(&mut self) {
        self.monitor.take().into_iter().for_each(end);
    }

    /// Starts an OSD, or restarts it.
    pub fn start_osd(&mut self, n: usize) {
        self.osds[n] = Some(self.daemon("ceph-osd", &n.to_string()));
    }

    /// Kills an OSD.
    pub fn kill_osd(&mut self, n: usize) {
        self.osds[n].take().into_iter().for_each(end);
    }

    /// Sends a signal to an OSD: STOP freezes it, CONT resumes it.
    pub fn signal_osd(&self, n: usize, signal: &str) {
        let pid = self.osds[n].as_ref().expect("it runs").id().to_string();
        tools::run(Command::new("kill").args([&format!("-{signal}"), &pid]));
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.osds.drain(..).flatten().chain(self.monitor.take()).for_each(end);
    }
}

fn end(mut child: Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// For a single host: copies are spread over OSDs, and one OSD's report is enough to mark another as down.
fn conf(folder: &Path, id: &str, monitor: &str) -> String {
    let folder = folder.display();
    format!(
        "[global]
fsid = {id}
mon host = {monitor}
public addr = 127.0.0.1
ms bind msgr1 = false
auth cluster required = none
auth service required = none
auth client required = none
run dir = {folder}
crash dir = {folder}
admin socket =
pid file =
log file = {folder}/$name.log
osd crush chooseleaf type = 0
osd pool default size = 3
osd pool default min size = 2
osd pool default pg autoscale mode = off
mon osd reporter subtree level = osd
mon osd min down reporters = 1
mon data = {folder}/mon
mon data avail crit = 1
osd data = {folder}/osd$id
osd objectstore = bluestore
osd max object name len = 256
osd max object namespace len = 64
bluestore block size = 2147483648
bluestore cache autotune = false
bluestore cache size = 33554432
[client]
log file =
client mount timeout = 15
"
    )
}
