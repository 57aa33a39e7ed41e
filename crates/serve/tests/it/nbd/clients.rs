//! Clients from other projects use the server: what they write is what they read back, and what the file then holds.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::{Faulty, Random, Serving, memory, noise, volume};
use claviger_engine::Store;
use claviger_engine::store::{Access, FileStore, MemoryStore};
use claviger_serve::nbd::{Client, Export, NbdAddress, Replies, ServerOptions};
use claviger_testkit::tools::{program, run};

const MIB: usize = 1 << 20;

/// A volume, encrypted in a file, of `len` bytes that hold `noise(len, 1)`.
fn patterned_volume(dir: &Path, len: usize) -> Arc<dyn Store> {
    let path = dir.join("volume");
    fs::write(&path, vec![0; len]).expect("a file");
    let volume = volume(&path);
    volume.write_clobbering(0, &mut noise(len, 1)).expect("it is written");
    volume
}

#[test]
fn nbdinfo_sees_what_there_is() {
    let Some(nbdinfo) = program("nbdinfo") else { return };
    let one = Export { description: "the first".into(), ..Export::new("disk", memory(&[0; 5000])) };
    let two = Export { read_only: true, block_size: 512, ..Export::new("a b/ü?", memory(&[0; 512])) };
    let serving = Serving::with(vec![one, two], ServerOptions::default());
    let output = run(Command::new(nbdinfo).args(["--json", "--list", serving.uri()]));
    let json: String = String::from_utf8_lossy(&output.stdout).split_whitespace().collect();
    let expected = [
        "\"protocol\":\"newstyle-fixed\"",
        "\"structured\":true",
        "\"export-name\":\"disk\",\"description\":\"thefirst\"",
        "\"export-size\":5000",
        "\"is_read_only\":false",
        "\"can_fua\":true",
        "\"can_trim\":true",
        "\"can_zero\":true",
        "\"can_df\":true",
        "\"can_multi_conn\":true",
        "\"block_size_minimum\":1,\"block_size_preferred\":4096,\"block_size_maximum\":33554432",
        "\"export-name\":\"ab/ü?\"",
        "\"export-size\":512",
        "\"is_read_only\":true",
        "\"block_size_preferred\":512",
    ];
    for part in expected {
        assert!(json.contains(part), "{part} is missing in {json}");
    }
}

/// Bytes in sectors of 4096.
struct Large(Arc<MemoryStore>);

impl Store for Large {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, out)
    }
    fn write_clobbering(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.0.write_clobbering(offset, data)
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
    fn sector_size(&self) -> u64 {
        4096
    }
}

#[test]
fn clients_are_told_of_large_sectors_and_those_who_ask_keep_to_them() {
    let export = Export { block_size: 512, ..Export::new("disk", Arc::new(Large(memory(&noise(MIB, 1))))) };
    let serving = Serving::with(vec![export], ServerOptions::default());
    let Some(nbdinfo) = program("nbdinfo") else { return };
    let output = run(Command::new(nbdinfo).args(["--json", serving.uri()]));
    let json: String = String::from_utf8_lossy(&output.stdout).split_whitespace().collect();
    assert!(json.contains("\"block_size_minimum\":4096,\"block_size_preferred\":4096"), "{json}");
    let who_asks = "
h.set_strict_mode(h.get_strict_mode() & ~nbd.STRICT_ALIGN)
h.pwrite(b'a' * 8192, 4096)
assert h.pread(4096, 8192) == b'a' * 4096
for wrong in (lambda: h.pread(512, 0), lambda: h.pread(4096, 512), lambda: h.pwrite(b'b' * 512, 4096),
              lambda: h.zero(512, 0), lambda: h.trim(4096, 2048)):
    try:
        wrong()
    except nbd.Error as error:
        assert error.errno == 'EINVAL', error
    else:
        raise AssertionError('not aligned')
assert h.pread(4096, 4096) == b'a' * 4096
";
    let Some(()) = nbdsh(serving.uri(), true, who_asks) else { return };
    // A client of before there were block sizes may do as ever.
    let who_does_not = format!(
        "
c = nbd.NBD()
c.set_request_block_size(False)
c.connect_uri('{}')
c.pwrite(b'b' * 700, 4000)
assert c.pread(1024, 3900)[100:800] == b'b' * 700
",
        serving.uri()
    );
    nbdsh(serving.uri(), true, &who_does_not);
    let (Some(qemu_io), Some(nbdcopy)) = (program("qemu-io"), program("nbdcopy")) else { return };
    // qemu reads, changes and writes by itself.
    for command in ["write -P 0x33 1000 100", "read -P 0x33 1000 100"] {
        let output = run(Command::new(&qemu_io).args(["-f", "raw", "-c", command, serving.uri()]));
        assert!(!String::from_utf8_lossy(&output.stdout).contains("failed"), "{output:?}");
    }
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::write(&from, noise(MIB - 4096, 2)).expect("a file");
    run(Command::new(&nbdcopy).arg(&from).arg(serving.uri()));
    run(Command::new(&nbdcopy).arg(serving.uri()).arg(&to));
    assert!(fs::read(&to).expect("a copy")[..MIB - 4096] == noise(MIB - 4096, 2));
}

#[test]
fn nbdcopy_copies_both_ways() {
    let Some(nbdcopy) = program("nbdcopy") else { return };
    // Not a multiple of either side's preferred block size.
    let len = 37 * MIB + 1024 + 512;
    let dir = tempfile::tempdir().expect("a temporary folder");
    let serving = Serving::store(patterned_volume(dir.path(), len));
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    run(Command::new(&nbdcopy).arg(serving.uri()).arg(&to));
    assert!(fs::read(&to).expect("a copy") == noise(len, 1));

    let many = vec!["--connections=16", "--requests=4", "--request-size=65536", "--flush"];
    for (seed, options) in
        [(2, vec![]), (3, vec!["--synchronous"]), (5, many), (4, vec!["--request-size=16777216", "--flush"])]
    {
        fs::write(&from, noise(len, seed)).expect("a file");
        run(Command::new(&nbdcopy).args(&options).arg(&from).arg(serving.uri()));
        run(Command::new(&nbdcopy).args(&options).arg(serving.uri()).arg(&to));
        assert!(fs::read(&to).expect("a copy") == noise(len, seed), "{options:?}");
    }
    serving.stop().expect("all is durable");
    let mut stored = vec![0; len];
    volume(&dir.path().join("volume")).read_at(0, &mut stored).expect("it opens again");
    assert!(stored == noise(len, 4));
}

/// Runs a script of Python with libnbd, connected as `h` to `uri`, with or without structured replies.
fn nbdsh(uri: &str, structured: bool, script: &str) -> Option<()> {
    let nbdsh = program("nbdsh")?;
    let structured = if structured { "True" } else { "False" };
    let connect = format!("h.set_request_structured_replies({structured})\nh.connect_uri('{uri}')\n");
    // The distribution's Python has the module, whatever else comes first on the path.
    run(Command::new(nbdsh).env("PATH", "/usr/bin:/bin").args(["-c", &connect, "-c", script]));
    Some(())
}

#[test]
fn every_command_works_from_python() {
    for structured in [true, false] {
        let store = Faulty::new(&noise(40 * MIB, 1));
        let serving = Serving::store(Arc::clone(&store) as Arc<dyn Store>);
        let script = format!(
            "
structured = {structured}
import os
assert h.get_structured_replies_negotiated() == structured
assert h.can_df() == structured
assert h.get_size() == 40 << 20
big = h.pread(32 << 20, 12345)
assert big[5000000:5000100] == h.pread(100, 5012345)
for offset, size in ((0, 1), (1, 511), (4095, 2), (511, 4096), (70001, 262144), (1 << 20, 262145), (12345, 32 << 20)):
    data = bytearray(os.urandom(size))
    h.pwrite(data, offset)
    assert h.pread(size, offset) == data
    data = bytearray(os.urandom(size))
    h.pwrite(data, offset, nbd.CMD_FLAG_FUA)
    assert h.pread(size, offset) == data
    if structured:
        parts = []
        def chunk(buf, at, status, err):
            parts.append((at, bytes(buf)))
        h.pread_structured(size, offset, chunk)
        assert b''.join(b for _, b in sorted(parts)) == data
        parts.clear()
        h.pread_structured(size, offset, chunk, nbd.CMD_FLAG_DF)
        assert parts == [(offset, bytes(data))]
h.zero(20 << 20, 7, nbd.CMD_FLAG_NO_HOLE)
assert h.pread(20 << 20, 7) == bytearray(20 << 20)
h.zero(5, 30 << 20, nbd.CMD_FLAG_FUA)
assert h.pread(6, (30 << 20) - 1)[1:] == bytearray(5)
h.trim(8192, 4096)
h.trim(1, 0, nbd.CMD_FLAG_FUA)
h.flush()
h.set_strict_mode(0)
def refused(expected, call, *args):
    try:
        call(*args)
    except nbd.Error as e:
        assert e.errnum == expected, (e, expected)
    else:
        assert False, 'not refused'
import errno
refused(errno.EINVAL, h.pread, 2, (40 << 20) - 1)
refused(errno.ENOSPC, h.pwrite, b'ab', (40 << 20) - 1)
refused(errno.ENOSPC, h.zero, 2, (40 << 20) - 1)
refused(errno.ENOSPC, h.trim, 2, (40 << 20) - 1)
refused(errno.ENOSPC, h.pwrite, b'ab', (1 << 63) - 1)
refused(errno.EINVAL, h.zero, 4096, 0, nbd.CMD_FLAG_FAST_ZERO)
refused(errno.EINVAL, h.cache, 4096, 0)
refused(errno.EINVAL, h.pread, (32 << 20) + 1, 0)
assert h.pread(1, 0)
h.shutdown()
",
            structured = if structured { "True" } else { "False" }
        );
        let Some(()) = nbdsh(serving.uri(), structured, &script) else { return };
        assert_eq!(*store.discards.lock().expect("no panic"), [(4096, 8192), (0, 1)]);
        // Seven writes, a zero and a trim with FUA, and a flush. One more at the end.
        assert_eq!(store.flushes.load(Ordering::SeqCst), 10);
        serving.stop().expect("all is durable");
        assert_eq!(store.flushes.load(Ordering::SeqCst), 11);
    }
}

#[test]
fn a_read_only_export_stays_as_it_is() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("image");
    fs::write(&path, noise(MIB, 1)).expect("a file");
    let before = fs::metadata(&path).expect("it is there").modified().expect("a time");
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let store = Arc::new(FileStore::open(&path, access).expect("it opens"));
        let export = Export { read_only: access == Access::ReadWrite, ..Export::new("disk", store) };
        let serving = Serving::with(vec![export], ServerOptions::default());
        let script = "
import errno
assert h.is_read_only()
h.set_strict_mode(0)
for call, args in ((h.pwrite, (b'x' * 100000, 0)), (h.pwrite, (b'x', 1 << 40)), (h.zero, (512, 0)), (h.trim, (512, 0))):
    try:
        call(*args)
        assert False
    except nbd.Error as e:
        assert e.errnum == errno.EPERM, e
h.flush()
assert len(h.pread(1 << 20, 0)) == 1 << 20
";
        let Some(()) = nbdsh(serving.uri(), true, script) else { return };
        serving.stop().expect("nothing to flush");
    }
    assert!(fs::read(&path).expect("a file") == noise(MIB, 1));
    assert_eq!(fs::metadata(&path).expect("it is there").modified().expect("a time"), before);
}

#[test]
fn qemu_converts_and_compares() {
    let Some(qemu_img) = program("qemu-img") else { return };
    let Some(qemu_io) = program("qemu-io") else { return };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let len = 24 * MIB;
    let serving = Serving::store(patterned_volume(dir.path(), len));
    let copy = dir.path().join("copy");
    let info = run(Command::new(&qemu_img).args(["info", "--output=json", serving.uri()]));
    assert!(String::from_utf8_lossy(&info.stdout).contains("\"virtual-size\": 25165824"));
    run(Command::new(&qemu_img).args(["convert", "-f", "raw", "-O", "raw", serving.uri()]).arg(&copy));
    assert!(fs::read(&copy).expect("a copy") == noise(len, 1));

    let raw = ["-f", "raw", serving.uri()];
    let commands = [
        "write -P 0x11 4096 65536",
        "write -P 0x22 -f 1000000 3000",
        "write -z 2097152 1048576",
        "discard 8388608 65536",
        "flush",
        "read -P 0x11 4096 65536",
        "read -P 0x22 1000000 3000",
        "read -P 0 2097152 1048576",
        "aio_write -P 0x33 5M 2M",
        "aio_write -P 0x44 7M 1M",
        "aio_flush",
        "read -P 0x33 5M 2M",
        "read -P 0x44 7M 1M",
    ];
    let output = run(Command::new(&qemu_io).args(commands.iter().flat_map(|c| ["-c", c])).args(raw));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(!said.contains("verification failed") && !said.contains("error"), "{said}");

    fs::write(&copy, noise(len, 5)).expect("a file");
    run(Command::new(&qemu_img).args(["convert", "-n", "-f", "raw", "-O", "raw"]).arg(&copy).arg(serving.uri()));
    run(Command::new(&qemu_img).args(["compare", "-f", "raw", "-F", "raw"]).arg(&copy).arg(serving.uri()));
    serving.stop().expect("all is durable");
    let mut stored = vec![0; len];
    volume(&dir.path().join("volume")).read_at(0, &mut stored).expect("it opens again");
    assert!(stored == noise(len, 5));
}

#[test]
fn fio_verifies_what_it_wrote() {
    let Some(fio) = program("fio") else { return };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let serving = Serving::store(patterned_volume(dir.path(), 16 * MIB));
    for size in ["--bs=4k", "--bsrange=512-128k"] {
        let mut command = Command::new(&fio);
        command.args(["--name=verify", "--ioengine=nbd", "--rw=randwrite", "--size=16M", "--iodepth=16"]);
        command.args(["--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--fsync=100", "--randseed=1", size]);
        let output = run(command.arg(format!("--uri={}", serving.uri())).current_dir(dir.path()));
        assert!(String::from_utf8_lossy(&output.stdout).contains("err= 0"));
    }
}

#[test]
fn tcp_on_loopback_serves_too() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let address = NbdAddress::Tcp(address.parse().expect("an address"));
        let content = noise(3 * MIB, 1);
        let export = vec![Export::new("disk", memory(&content))];
        let serving = Serving::at(&address, dir, export, ServerOptions::default());
        let mut read = vec![0; 3 * MIB];
        serving.client().read_at(0, &mut read).expect("it reads");
        assert!(read == content);
        if let Some(nbdinfo) = program("nbdinfo") {
            let output = run(Command::new(nbdinfo).args(["--size", serving.uri()]));
            assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "3145728");
        }
    }
}

#[test]
fn our_own_client_reads_writes_and_pipelines() {
    for replies in [Replies::Simple, Replies::Structured] {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let len = 8 * MIB;
        let mut mirror = noise(len, 1);
        let serving = Serving::store(patterned_volume(dir.path(), len));
        let mut client = Client::connect_with(&serving.address, "disk", replies).expect("it connects");
        assert_eq!((client.len(), client.read_only()), (len as u64, false));
        let mut random = Random::new(9);
        let mut buffer = vec![0; 2 * MIB];
        for round in 0..300 {
            let at = random.below(len);
            let most = [64, 5000, 70_000, 2 * MIB][round % 4];
            let size = random.below(most).min(len - at);
            if random.below(2) == 0 {
                let data = noise(size, random.number());
                client.write_at(at as u64, &data).expect("it writes");
                mirror[at..at + size].copy_from_slice(&data);
            } else {
                client.read_at(at as u64, &mut buffer[..size]).expect("it reads");
                assert!(buffer[..size] == mirror[at..at + size]);
            }
        }
        client.write_zeroes(100, 700_000).expect("it zeroes");
        mirror[100..700_100].fill(0);
        client.trim(0, 50).expect("it trims"); // a volume does not discard
        client.flush().expect("it flushes");

        // Many under way, small and large, reads and writes of different places.
        let mut reads = std::collections::HashMap::new();
        for i in 0..64usize {
            let (at, size) = (i * 131_072, [4096, 512, 100_000, 77][i % 4]);
            if i % 3 == 0 {
                let data = noise(size, i as u64);
                client.submit_write(at as u64, &data).expect("it is sent");
                mirror[at..at + size].copy_from_slice(&data);
            } else {
                reads.insert(client.submit_read(at as u64, size as u32), (at, size));
            }
        }
        while client.in_flight() > 0 {
            let done = client.complete(&mut buffer).expect("a reply");
            done.result.expect("success");
            if let Some((at, size)) = reads.remove(&done.cookie) {
                assert!(done.len == size && buffer[..size] == mirror[at..at + size]);
            }
        }
        assert!(reads.is_empty());

        let past = client.read_at(len as u64 - 1, &mut [0; 2]).expect_err("past the end");
        assert_eq!(past.raw_os_error(), Some(22));
        let past = client.write_at(len as u64 - 1, &[0; 2]).expect_err("past the end");
        assert_eq!(past.raw_os_error(), Some(28));
        client.read_at(0, &mut buffer).expect("the connection is still good");
        client.disconnect().expect("it ends");
    }
}
