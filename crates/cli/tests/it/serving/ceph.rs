//! Volumes in a Ceph cluster: librbd and the program read and change each other's, and nothing is lost while parts of the cluster fail.

use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::common::mounts::MountSpace;
use crate::common::*;
use claviger_testkit::ceph::Cluster;
use claviger_testkit::tools;

/// A cluster, and passwords in files that end with the last letter: qemu takes a line's end for a part of it.
struct Ceph {
    cluster: Cluster,
    folder: Folder,
    pw: String,
    new: String,
}

impl Ceph {
    fn start() -> Option<Self> {
        let (cluster, folder) = (Cluster::start()?, Folder::new());
        let (pw, new) = (folder.str("pw"), folder.str("new"));
        fs::write(&pw, PASSWORD).expect("written");
        fs::write(&new, "another").expect("written");
        Some(Self { cluster, folder, pw, new })
    }

    /// What the program calls an image.
    fn place(&self, image: &str) -> String {
        format!("rbd:vol/{image}:conf={}", self.cluster.conf().display())
    }

    fn create(&self, image: &str, size: &str, format: &str) -> String {
        self.cluster.rbd(&["create", "--size", size, &format!("vol/{image}")]);
        let place = self.place(image);
        let cheap = ["--kdf", "pbkdf2", "--iterations", "1000", "--quick", "--force", "--yes"];
        let create = ["create", "--for", "rbd", "--format", format, "--password-file", &self.pw, &place];
        run(create.into_iter().chain(cheap.into_iter().skip(if format == "LUKS1" { 2 } else { 0 }))).succeeds();
        place
    }

    /// One command of qemu-io through librbd, which decrypts.
    fn librbd(&self, image: &str, format: &str, pw: &str, command: &str) -> (bool, String) {
        let conf = self.cluster.conf().display().to_string();
        let options = format!(
            "driver=rbd,pool=vol,image={image},conf={conf},encrypt.format={},encrypt.key-secret=s",
            if format == "LUKS1" { "luks" } else { "luks2" }
        );
        let mut qemu_io = self.cluster.command("qemu-io");
        qemu_io.args(["--object", &format!("secret,id=s,file={pw}"), "-c", command, "--image-opts", &options]);
        let output = qemu_io.output().expect("it starts");
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (output.status.success() && !text.contains("failed") && !text.contains("error"), text)
    }

    /// Each writes, and the other reads.
    fn both_ways(&self, image: &str, format: &str, pw: &str) {
        let place = self.place(image);
        let served = Served::start(["--password-file", pw, "--socket", &self.folder.str("s"), &place]);
        let written = qemu_io(&served.uri, "write -P 7 1000K 5M").expect("as before");
        // One writer, whatever wants to be the second.
        let remove = ["keyslot", "remove", "--slot", "0", "--yes", "--password-file", pw, &place];
        run(remove).fails(9, &["another", "--read-only"]);
        run(["verify", "--password-file", pw, &place]).succeeds();
        served.stop().succeeds();
        assert!(written.0, "{}", written.1);
        for command in ["read -P 7 1000K 5M", "write -P 9 7M 300K"] {
            let (good, said) = self.librbd(image, format, pw, command);
            assert!(good, "{image}: {command}: {said}");
        }
        let read = |offset, length| {
            run(["cat", "--offset", offset, "--length", length, "--password-file", pw, &place]).succeeds().out
        };
        assert!(read("7M", "300K") == [9; 300 << 10] && read("1000K", "5M") == vec![7; 5 << 20], "{image}");
    }

    fn size(&self, place: &str) -> u64 {
        let info = run(["info", "--json", "--password-file", &self.new, place]).succeeds().json();
        info["size"].as_u64().unwrap_or_else(|| panic!("{info}"))
    }
}

#[test]
#[ignore = "Ceph, two minutes: make torture"]
fn torture_ceph_both_ways() {
    let Some(ceph) = Ceph::start() else { return };
    for (image, format) in [("ours1", "LUKS1"), ("ours2", "LUKS2"), ("theirs1", "LUKS1"), ("theirs2", "LUKS2")] {
        let place = match image.starts_with("ours") {
            true => ceph.create(image, "48M", format),
            false => {
                let (spec, kind) = (format!("vol/{image}"), format.to_lowercase());
                ceph.cluster.rbd(&["create", "--size", "48M", &spec]);
                ceph.cluster.rbd(&["encryption", "format", &spec, &kind, &ceph.pw]);
                ceph.place(image)
            }
        };
        ceph.both_ways(image, format, &ceph.pw);
        let passwords = ["--password-file", &ceph.pw, "--new-password-file", &ceph.new];
        run(["keyslot", "change"].iter().chain(&passwords).chain([&&*place])).succeeds();
        let (good, said) = ceph.librbd(image, format, &ceph.pw, "read 0 512");
        assert!(!good, "{image}: the old passphrase opens it: {said}");
        if format == "LUKS2" {
            run(["reencrypt", "--yes", "--password-file", &ceph.new, &place]).succeeds();
        }
        let (good, said) = ceph.librbd(image, format, &ceph.new, "read -P 7 1000K 5M");
        assert!(good, "{image}: {said}");
        let before = ceph.size(&place);
        ceph.cluster.rbd(&["resize", "--size", "64M", &format!("vol/{image}")]);
        assert_eq!(ceph.size(&place), before + (16 << 20), "{image}");
        ceph.both_ways(image, format, &ceph.new);
    }
    println!("torture_ceph_both_ways: four volumes of librbd and of the program, each read and changed by the other");
}

/// What encryption costs in the cluster, by the two files that the guide shows.
#[test]
#[ignore = "Ceph, a minute: make torture"]
fn torture_ceph_in_the_lab() {
    if tools::root().is_none() {
        return;
    }
    let Some(ceph) = Ceph::start() else { return };
    let guide = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/facilities.md")).expect("a page");
    let (_, part) = guide.split_once("## A disk in a Ceph cluster").expect("that part of it");
    let peers = ceph.folder.path("peers");
    fs::create_dir(&peers).expect("a folder");
    for name in ["plain", "luks2"] {
        ceph.cluster.rbd(&["create", "--size", "112M", &format!("vol/lab-{name}")]);
        let from = part.find(&format!("    name = \"rbd-{name}\"")).expect("the file");
        let lines = part[from..].lines().take_while(|line| line.is_empty() || line.starts_with("    "));
        let text: String =
            lines.filter(|line| !line.contains("claviger lab run")).map(|line| format!("{line}\n")).collect();
        let image = ceph.place(&format!("lab-{name}"));
        fs::write(peers.join(format!("{name}.toml")), text.replace(&format!("rbd:volumes/lab-{name}"), &image))
            .expect("written");
    }
    let (peers, out) = (peers.display().to_string(), ceph.folder.str("run"));
    let lab = ["lab", "run", "--peers", &peers, "--facility", "rbd-luks2", "--workload", "dd", "--size", "64M"];
    let run =
        run(lab.into_iter().chain(["--scale", "0.001", "--repeats", "1", "--json", "--out", &out])).succeeds().json();
    let measured = run["summary"]["cells"].as_array().expect("cells");
    for facility in ["rbd-plain", "rbd-luks2"] {
        assert!(measured.iter().any(|cell| cell["facility"] == facility), "{facility}: {run}");
    }
    println!("torture_ceph_in_the_lab: LUKS2 in an image beside the same in clear");
}

/// Writes files for as long as it is let, and says their hashes once they are on the disk.
const WRITER: &str = r#"
n=0
while [ ! -e "$2/stop" ]; do
    n=$((n + 1))
    head -c $((n * 977 % 200000)) /dev/urandom >"$1/$n"
    sync "$1/$n" "$1"
    (cd "$1" && sha256sum "$n") >>"$2/promised"
done
"#;

/// A file system on a volume in a cluster whose parts are killed, frozen and started again under those who write.
#[test]
#[ignore = "Ceph, some minutes: make torture"]
fn torture_ceph_drill() {
    let (Some(mut ceph), Some(place), Some(_)) = (Ceph::start(), MountSpace::root(), tools::program("fio")) else {
        return;
    };
    let place = place.without_a_deadline();
    let image = ceph.create("drill", "160M", "LUKS2");
    let dir = place.dir("m");
    let mount = |more: &[&str]| {
        let mount = ["mount", "--password-file", &ceph.pw, &image, &dir];
        place.run(mount.iter().chain(more)).succeeds();
    };
    mount(&["--filesystem", "none"]);
    let made = place.command("mke2fs").args(["-q", "-t", "ext4", &format!("{dir}/volume")]).output();
    done(made.expect("it starts")).succeeds();
    place.unmount(&dir).succeeds();
    mount(&[]);
    fs::create_dir(format!("{dir}/files")).expect("a folder");
    let beside = ceph.folder.str("");
    let fio = |more: &[&str]| {
        let mut fio = Command::new("fio");
        fio.args([
            "--name=w",
            "--size=32M",
            "--rw=randwrite",
            "--bs=16k",
            "--fsync=4",
            "--verify=crc32c",
            "--directory",
        ]);
        // It leaves its state where it is.
        fio.current_dir(&beside)
            .arg(&dir)
            .args(more)
            .stdout(Stdio::null())
            .stdin(Stdio::null())
            .spawn()
            .expect("it starts")
    };
    let mut random_writes = fio(&["--rate=1M", "--do_verify=0"]);
    let mut writer = Command::new("sh");
    writer.args(["-c", WRITER, "sh", &format!("{dir}/files"), &beside]);
    let mut writer = writer.stdin(Stdio::null()).spawn().expect("it starts");
    let wait = |seconds| sleep(Duration::from_secs(seconds));
    wait(4);
    ceph.cluster.kill_osd(0);
    wait(5);
    ceph.cluster.start_osd(0);
    wait(6);
    ceph.cluster.signal_osd(1, "STOP");
    wait(8);
    ceph.cluster.signal_osd(1, "CONT");
    wait(4);
    ceph.cluster.kill_monitor();
    wait(4);
    ceph.cluster.start_monitor();
    // Two of three: nothing can be written until one is back.
    wait(4);
    (1..3).for_each(|n| ceph.cluster.kill_osd(n));
    wait(4);
    (1..3).for_each(|n| ceph.cluster.start_osd(n));
    assert!(random_writes.wait().expect("it ends").success(), "a write failed");
    fs::write(ceph.folder.path("stop"), "").expect("written");
    assert!(writer.wait().expect("it ends").success(), "a write failed");

    place.unmount(&dir).succeeds();
    mount(&[]);
    let promised = fs::read_to_string(ceph.folder.path("promised")).expect("text");
    let check = format!("cd '{dir}/files' && sha256sum --quiet -c '{beside}/promised'");
    place.shell(&check).succeeds();
    assert!(fio(&["--verify_only"]).wait().expect("it ends").success(), "something else is read");
    place.unmount(&dir).succeeds();
    run(["verify", "--password-file", &ceph.pw, &image]).succeeds();
    println!("torture_ceph_drill: {} files and 32 MiB of random writes, none lost", promised.lines().count());
}
