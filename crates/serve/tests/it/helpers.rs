//! Helpers reach the named store and nothing else, and nobody else reaches the helpers.

use std::ffi::OsStr;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use claviger_engine::store::Access;
use claviger_engine::{ErrorKind, Store};
use claviger_serve::nbd::remote::RemoteOptions;
use claviger_serve::remote::{Helper, RemoteAddress, Writers, helpers};
use claviger_testkit::certificates::Authority;
use claviger_testkit::tools::{program, run, skip};
use claviger_testkit::web::Web;

const QUICK: RemoteOptions =
    RemoteOptions { timeout: Duration::from_secs(20), reconnect: Duration::from_secs(5), connections: 3, cancel: None };

fn row(scheme: &str) -> Helper {
    helpers().into_iter().find(|helper| helper.scheme == scheme).expect("a row")
}

fn shell(script: &str) -> Helper {
    let arguments = ["-c", script].map(str::to_owned).to_vec();
    Helper {
        program: "sh".into(),
        arguments,
        writers: Writers::Unknown,
        image: None,
        read_only: Vec::new(),
        ..row("qcow2")
    }
}

fn open(helper: Helper, rest: &str, access: Access) -> claviger_engine::Result<Arc<dyn Store>> {
    RemoteAddress::Helped(helper, rest.into()).open(access, QUICK)
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port()
}

/// A helper cannot listen in any of its processes, and the error says why. One that serves the socket it was handed
/// may connect to where it likes.
#[test]
fn no_helper_listens_on_a_socket_of_its_own() {
    let (Some(_), Some(_)) = (program("nbdkit"), program("python3")) else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let listening = dir.path().join("listening");
    let there = listening.display();
    for family in ["AF_INET", "AF_INET6", "AF_UNIX"] {
        let address = match family {
            "AF_UNIX" => format!("'{}'", dir.path().join("socket").display()),
            "AF_INET" => "('127.0.0.1', 0)".to_owned(),
            _ => "('::', 0)".to_owned(),
        };
        let listen = format!(
            "python3 -c \"import socket as s; l = s.socket(s.{family}); l.bind({address}); l.listen(); open('{there}', 'w')\""
        );
        let child = format!("rm -f '{}'; {listen}", dir.path().join("socket").display());
        for script in [format!("exec {listen}"), child] {
            let error = open(shell(&script), "x", Access::ReadOnly).err().expect("it does not serve").to_string();
            assert!(error.contains("listen on its own socket"), "{script}: {error}");
            assert!(!listening.exists(), "{script}");
        }
    }
    let port = free_port();
    let nbdkit = format!("unset LISTEN_FDS LISTEN_PID; exec nbdkit -f -i 127.0.0.1 -p {port} memory 1M");
    let error = open(shell(&nbdkit), "x", Access::ReadWrite).err().expect("it does not serve").to_string();
    assert!(error.contains("listen on its own socket"), "{error}");
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    // Connections that it is meant to make.
    let elsewhere = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let port = elsewhere.local_addr().expect("an address").port();
    let connect = format!("import socket; socket.create_connection(('127.0.0.1', {port}))");
    let serve = format!("python3 -c \"{connect}\" && exec nbdkit -f memory 1M");
    let store = open(shell(&serve), "x", Access::ReadWrite).expect("it serves");
    store.write_clobbering(4096, &mut [7; 512]).expect("a write");
}

/// The row that Debian's nbdkit would listen for, on every address.
#[test]
fn a_bucket_is_read_and_written_and_nobody_else_reaches_it() {
    let (Some(_), Some(python)) = (program("nbdkit"), program("python3")) else { return };
    let python_plugin = Command::new("nbdkit").args(["python", "--version"]).output().is_ok_and(|o| o.status.success());
    if !python_plugin || !Command::new(python).args(["-c", "import boto3"]).output().is_ok_and(|o| o.status.success()) {
        return skip("nbdkit-plugin-python or python3-boto3 is not installed").unwrap_or_default();
    }
    let dir = tempfile::tempdir().expect("a folder");
    let Some(web) = Web::start(dir.path(), None) else { return };
    let mut s3 = row("s3");
    s3.arguments.extend(["access-key=a", "secret-key=b"].map(str::to_owned));
    let endpoint = format!("endpoint-url=http://127.0.0.1:{}", web.port);
    let place = format!("b/folder/disk?{endpoint}&size=1M&object-size=64K");
    let store = open(s3.clone(), &place, Access::ReadWrite).expect("it opens");
    assert_eq!(store.len(), 1 << 20);
    store.write_clobbering(100_352, &mut vec![9; 65_536]).expect("a write");
    store.flush().expect("a flush");
    drop(store);
    assert!(web.object("b/folder/disk/0000000000000001").exists(), "{}", web.asked());
    let store = open(s3, &place, Access::ReadOnly).expect("it opens");
    let mut read = vec![0; 66_560];
    store.read_at(99_840, &mut read).expect("a read");
    assert!(read[..512] == [0; 512] && read[512..66_048] == [9; 65_536] && read[66_048..] == [0; 512]);
}

#[test]
fn what_http_serves_is_only_read() {
    let Some(_) = program("nbdkit") else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let Some(authority) = Authority::with_both(&dir.path().join("pki")) else { return };
    let ca = authority.folder().join("ca-cert.pem").display().to_string();
    for (scheme, authority) in [("http", None), ("https", Some(&authority))] {
        let folder = dir.path().join(scheme);
        let Some(web) = Web::start(&folder, authority) else { return };
        let object = web.object("disk");
        fs::write(&object, vec![3; 64 << 10]).expect("written");
        let mut helper = row(scheme);
        assert_eq!(helper.writers, Writers::Nobody);
        if authority.is_some() {
            helper.arguments.push(format!("cainfo={ca}"));
        }
        let rest = format!("//127.0.0.1:{}/disk", web.port);
        let error = open(helper.clone(), &rest, Access::ReadWrite).err().expect("it is only read");
        assert!(error.to_string().contains("is read-only"), "{error}");
        assert_eq!(web.asked(), "", "nothing was asked for");
        let store = open(helper, &rest, Access::ReadOnly).expect("it opens");
        let mut read = [0; 512];
        store.read_at(512, &mut read).expect("a read");
        assert_eq!(read, [3; 512]);
        assert!(store.write_clobbering(0, &mut [1; 512]).is_err());
        drop(store);
        assert!(
            web.asked().lines().all(|line| line.starts_with("GET ") || line.starts_with("HEAD ")),
            "{}",
            web.asked()
        );
        assert!(fs::read(&object).expect("a file") == vec![3; 64 << 10]);
    }
}

/// The programs of an image can reach that image and no other file or socket. A script in their place tries.
#[test]
fn the_program_of_an_image_has_one_file_and_no_network() {
    if program("nbdkit").is_none() || program("qemu-img").is_none() || program("python3").is_none() {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let (image, other) = (dir.path().join("image"), dir.path().join("other"));
    fs::write(&image, vec![5; 1 << 20]).expect("written");
    fs::write(&other, "of somebody").expect("written");
    let elsewhere = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let port = elsewhere.local_addr().expect("an address").port();
    let tries = format!(
        "for t in 'cat {other}' 'touch {other}' 'chmod 0 {other}' 'echo x >>{other}' 'touch {new}' 'ls {dir}' 'cat /etc/passwd' 'cat /proc/self/environ' \
         'python3 -Ic \"import socket; socket.create_connection((\\\"127.0.0.1\\\", {port}))\"'; do \
         if (eval \"$t\" >/dev/null 2>&1); then echo \"done: $t\" >&2; exit 1; fi; done; \
         eval image=\\${{$#}}; image=${{image##*filename\\\":\\\"}}; exec nbdkit -f file file=${{image%%\\\"*}}",
        other = other.display(),
        new = dir.path().join("new").display(),
        dir = dir.path().display(),
    );
    let raw = Helper { image: Some("raw".into()), ..shell(&tries) };
    let store = open(raw, &image.display().to_string(), Access::ReadWrite);
    if !landlock() {
        return skip("this kernel has no Landlock").unwrap_or_default();
    }
    let store = store.expect("all was denied, and the image is there");
    store.write_clobbering(0, &mut [6; 512]).expect("a write");
    store.flush().expect("a flush");
    drop(store);
    assert_eq!(fs::read(&image).expect("a file")[..1024], [[6; 512], [5; 512]].concat());
    assert_eq!(fs::read(&other).expect("a file"), b"of somebody");
}

/// Whether the kernel has it (landlock(7)): it says its version.
fn landlock() -> bool {
    let ask = format!("import ctypes; exit(ctypes.CDLL(None).syscall({}, None, 0, 1) < 1)", 444);
    Command::new("python3").args(["-c", &ask]).status().is_ok_and(|status| status.success())
}

/// A restarted helper gets the file that was examined, even if its name refers to another file by then.
#[test]
fn a_helper_that_is_started_anew_has_the_file_that_was_opened() {
    let (Some(qemu_img), Some(_)) = (program("qemu-img"), program("qemu-nbd")) else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let path = |name: &str| dir.path().join(name);
    for name in ["one", "other"] {
        run(Command::new(&qemu_img).args(["create", "-q", "-f", "qcow2"]).arg(path(name)).arg("1M"));
    }
    let before = fs::read(path("other")).expect("a file");
    symlink(path("one"), path("name")).expect("a link");
    let store = open(row("qcow2"), &path("name").display().to_string(), Access::ReadWrite).expect("it opens");
    store.write_clobbering(0, &mut [1; 4096]).expect("a write");
    store.flush().expect("a flush");
    fs::remove_file(path("name")).and_then(|()| symlink(path("other"), path("name"))).expect("another link");
    let killed = children_called("qemu-nbd");
    assert!(!killed.is_empty());
    for pid in killed {
        run(Command::new("kill").args(["-9", &pid]));
    }
    store.write_clobbering(4096, &mut [2; 4096]).expect("a write");
    store.flush().expect("a flush");
    drop(store);
    assert!(fs::read(path("other")).expect("a file") == before);
    let place = RemoteAddress::parse(OsStr::new(&format!("qcow2:{}", path("one").display())), &helpers());
    let store = place.expect("a place").expect("no path").open(Access::ReadOnly, QUICK).expect("it opens");
    let mut read = vec![0; 8192];
    store.read_at(0, &mut read).expect("a read");
    assert_eq!(read, [[1; 4096], [2; 4096]].concat());
}

/// Children of this process with that name.
fn children_called(name: &str) -> Vec<String> {
    let me = std::process::id().to_string();
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let is_one = |pid: &String| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after = stat.rsplit(") ").next().unwrap_or_default().to_owned();
        stat.contains(&format!("({name})")) && after.split(' ').nth(1) == Some(&me)
    };
    processes.filter_map(|entry| entry.file_name().into_string().ok()).filter(is_one).collect()
}

/// A disk that has some of its data elsewhere, or may have, does not open. The message names the other file.
#[test]
fn an_image_that_names_another_file_does_not_open() {
    let (Some(qemu_img), Some(_)) = (program("qemu-img"), program("qemu-nbd")) else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let path = |name: &str| dir.path().join(name).display().to_string();
    fs::write(path("victim"), vec![8; 1 << 20]).expect("written");
    run(Command::new(&qemu_img)
        .args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"])
        .args([path("victim"), path("i")]));
    let error = open(row("qcow2"), &path("i"), Access::ReadWrite).err().expect("it names another");
    assert!(
        matches!(error.kind, ErrorKind::Unsupported { .. }) && error.to_string().contains(&path("victim")),
        "{error}"
    );
}
