//! The kernel's own NBD driver uses the server: a file system is made, written, checked and found again. In user-mode
//! Linux, where the server runs too: this program itself, called again with the test that serves.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use claviger_engine::store::{Access, FileStore};
use claviger_serve::nbd::{Export, NbdAddress, Server, ServerOptions};
use claviger_testkit::tools::{program, run};
use claviger_testkit::uml;

/// Serves two files, one of them encrypted, until somebody opens a pipe. For the test below.
#[test]
#[ignore = "run in the guest by a_kernel_makes_a_file_system"]
fn serve_in_the_guest() {
    let word = |name: &str| std::env::var(name).expect("the script says it");
    let plain = FileStore::open(Path::new(&word("PLAIN")), Access::ReadWrite).expect("it opens");
    let exports = vec![
        Export::new("plain", Arc::new(plain)),
        Export::new("volume", crate::common::volume(Path::new(&word("VOLUME")))),
    ];
    let address = match word("ADDRESS").strip_prefix("unix:") {
        Some(path) => NbdAddress::Unix(path.into()),
        None => NbdAddress::Tcp(word("ADDRESS").parse().expect("an address")),
    };
    let server = Server::bind(&address, exports, ServerOptions::default()).expect("it listens");
    fs::write(word("READY"), b"ready\n").expect("somebody waits");
    let handle = server.handle();
    std::thread::spawn(move || {
        let _ = fs::read(word("STOP"));
        handle.stop();
    });
    server.run().expect("all is durable");
}

#[test]
fn a_kernel_makes_a_file_system() {
    let Some(_) = program("nbd-client") else { return };
    let Some(_) = program("mkfs.ext4") else { return };
    let Some(e2fsck) = program("e2fsck") else { return };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (plain, volume) = (dir.path().join("plain"), dir.path().join("volume"));
    for path in [&plain, &volume] {
        fs::File::create(path).and_then(|f| f.set_len(48 << 20)).expect("a file");
    }
    let script = format!(
        r#"set -eu
export PLAIN={plain} VOLUME={volume} READY=/run/ready STOP=/run/stop
mkfifo $READY $STOP
ip link set lo up
modprobe nbd nbds_max=2
serve() {{
    ADDRESS=$1 {exe} --ignored --exact nbd::kernel::serve_in_the_guest --nocapture &
    server=$!
    cat $READY
}}
stop() {{
    echo stop >$STOP
    wait $server
}}
# The partition table is read in the background; a device that is busy with that cannot be let go.
detach() {{
    nbd-client -d $1
    while [ -e /sys/block/${{1#/dev/}}/pid ]; do :; done
}}

serve unix:/run/socket
nbd-client -unix /run/socket -N plain /dev/nbd0
nbd-client -unix /run/socket -N volume /dev/nbd1
mkdir /mnt/0 /mnt/1
for n in 0 1; do
    mkfs.ext4 -q /dev/nbd$n
    mount -o discard /dev/nbd$n /mnt/$n
    dd if=/dev/urandom of=/mnt/$n/large bs=1M count=9 conv=fsync
    cp /usr/bin/env /mnt/$n/env
    mkdir /mnt/$n/folder
    for i in 1 2 3 4 5 6 7 8; do echo $i >/mnt/$n/folder/$i; done
    dd if=/dev/zero of=/mnt/$n/gone bs=1M count=5 conv=fsync
    rm /mnt/$n/gone
    fstrim /mnt/$n
    (cd /mnt/$n; find . -type f | sort | xargs sha256sum) >/run/sums$n
    umount /mnt/$n
    fsck.ext4 -fn /dev/nbd$n
    detach /dev/nbd$n
done
stop
[ ! -e /run/socket ]

serve 127.0.0.1:10809
nbd-client 127.0.0.1 10809 -N volume /dev/nbd0
nbd-client 127.0.0.1 10809 -N plain /dev/nbd1
for n in 0 1; do
    mount -o ro /dev/nbd$n /mnt/$n
    (cd /mnt/$n; sha256sum -c /run/sums$((1 - n)))
    umount /mnt/$n
    detach /dev/nbd$n
done
stop
echo all is well
"#,
        plain = plain.display(),
        volume = volume.display(),
        exe = std::env::current_exe().expect("this program").display(),
    );
    let Some(done) = uml::run(&script, &[], 120) else { return };
    assert!(done.status == 0 && done.output.ends_with("all is well\n"), "{}: {}", done.status, done.output);
    run(Command::new(e2fsck).arg("-fn").arg(&plain));
    assert_ne!(fs::read(&plain).expect("a file")[1080..1082], fs::read(&volume).expect("a file")[1080..1082]);
}
