//! A real Linux kernel in a process: user-mode Linux, with dm-crypt, nbd and the file systems, as an oracle.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::tools;

/// A script's output and exit status.
#[derive(Debug)]
pub struct Outcome {
    /// Exit status of the script.
    pub status: i32,
    /// Standard output and standard error.
    pub output: String,
}

/// Runs a shell script as root in user-mode Linux, on the host's own files. The images are `/dev/ubda`, `/dev/ubdb` …
/// in order, at most 16. A reported skip if user-mode Linux is not installed.
///
/// # Panics
/// If the kernel does not start or the script does not end within `seconds`.
pub fn run(script: &str, images: &[&Path], seconds: u32) -> Option<Outcome> {
    start(script, images, seconds, claviger_uml::needs_shim())
}

fn start(script: &str, images: &[&Path], seconds: u32, with_shim: bool) -> Option<Outcome> {
    let kernel = tools::program(claviger_uml::KERNEL)?;
    let timeout = tools::program("timeout")?;
    // Debian's user-mode-linux has dm-crypt and the ciphers as modules, and works without the package kmod.
    tools::program("modprobe")?;
    if with_shim {
        tools::program(claviger_uml::COMPILER)?;
    }
    let _turn = turn();
    let dir = tempfile::Builder::new().prefix("uml").tempdir().expect("a temporary folder");
    let shim = with_shim.then(|| claviger_uml::build_shim(dir.path()).expect("a shim"));
    let path = |name: &str| dir.path().join(name);
    let here = dir.path().display();
    // The guest has its own /proc, /sys and /run: dmsetup would wait forever on the host's udev socket. hostfs has no
    // /dev/fd and /dev/stdin. Powering off by sysrq needs no init.
    let init = format!(
        "#!/bin/sh\n\
         export PATH=/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin HOME=/tmp DM_DISABLE_UDEV=1\n\
         mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /mnt\n\
         mkdir -p /lib/modules; mount --bind /usr/lib/uml/modules /lib/modules; modprobe -qa loop dm-mod\n\
         ln -s /proc/self/fd /dev/fd; ln -s fd/0 /dev/stdin; ln -s fd/1 /dev/stdout; ln -s fd/2 /dev/stderr\n\
         mkdir -p /dev/shm; mount -t tmpfs shm /dev/shm\n\
         cd {here}; sh {here}/script </dev/null >{here}/output 2>&1; echo $? >{here}/status.new\n\
         mv {here}/status.new {here}/status; sync; echo o >/proc/sysrq-trigger; sleep 100\n"
    );
    fs::write(path("script"), script).expect("a script");
    fs::write(path("init"), init).expect("an init");
    tools::run(Command::new("chmod").arg("+x").arg(path("init")));

    let mut command = Command::new(timeout);
    command.args(["-k", "5", &seconds.to_string()]).args(claviger_uml::words(&kernel, shim.as_deref()));
    command.args(["mem=512M", &format!("uml_dir={here}"), "umid=u"]);
    for (i, image) in images.iter().enumerate() {
        // d: plain data, never a copy-on-write file, whatever its first bytes.
        command.arg(format!("ubd{i}d={}", image.display()));
    }
    command.args(["rootfstype=hostfs", "rw", &format!("init={here}/init")]);
    command.args(["con=null", "con0=null", "quiet", "panic=-1", "noreboot"]);
    let console = command.stdin(Stdio::null()).output().expect("user-mode Linux starts");

    let output = fs::read(path("output")).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default();
    let status = fs::read_to_string(path("status")).ok().and_then(|s| s.trim().parse().ok());
    let Some(status) = status else {
        panic!("user-mode Linux did not finish:\n{output}\n{}", String::from_utf8_lossy(&console.stdout));
    };
    Some(Outcome { status, output })
}

/// Waits until fewer kernels run than there are processors: each needs one, and half a GiB. Tests are separate
/// processes, which coordinate through file locks. If another user's lock files are in the way, the test does not wait.
fn turn() -> Option<File> {
    let kernels = std::thread::available_parallelism().map_or(1, usize::from);
    let path = |number: usize| std::env::temp_dir().join(format!("claviger-kernel-{number}"));
    let file = |number| File::options().append(true).create(true).open(path(number)).ok();
    let free = (0..kernels).filter_map(file).find(|file| file.try_lock().is_ok());
    free.or_else(|| file(std::process::id() as usize % kernels).filter(|file| file.lock().is_ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_runs_and_its_status_comes_back() {
        let image = tempfile::NamedTempFile::new().expect("an image");
        image.as_file().set_len(1 << 20).expect("a size");
        let Some(done) = run("echo here; cat /sys/block/ubda/size; exit 7", &[image.path()], 60) else { return };
        assert_eq!((done.status, done.output.as_str()), (7, "here\n2048\n"));
    }

    #[test]
    fn a_kernel_with_the_shim_does_as_one_without() {
        let programs = ["cryptsetup", "python3", "gzip"].map(tools::program);
        if programs.iter().any(Option::is_none) {
            return;
        }
        let image = tempfile::NamedTempFile::new().expect("an image");
        image.as_file().set_len(1 << 20).expect("a size");
        // Processes that switch while their vector registers are in use: lost state would corrupt their results.
        let script = "modprobe -a dm-crypt aes xts
            head -c 64 /dev/zero | cryptsetup open --type plain -c aes-xts-plain64 -s 512 --key-file - /dev/ubda x || exit
            head -c 300000 /dev/zero | tee /dev/mapper/x >/dev/null; sync
            for i in 1 2 3; do python3 -c 'print(sum(i * 0.5 for i in range(300000)))' & done
            head -c 300000 /dev/ubda | sha256sum; head -c 300000 /dev/mapper/x | gzip -9 | gzip -d | sha256sum; wait";
        let Some(without) = start(script, &[image.path()], 200, claviger_uml::needs_shim()) else { return };
        let Some(with) = start(script, &[image.path()], 200, true) else { return };
        assert_eq!(sorted(&with), sorted(&without));
        let zeros = "  -\n".len() + 64;
        assert_eq!((with.status, with.output.len()), (0, 2 * zeros + 3 * "22499925000.0\n".len()), "{}", with.output);
    }

    fn sorted(outcome: &Outcome) -> Vec<&str> {
        let mut lines: Vec<_> = outcome.output.lines().collect();
        lines.sort_unstable();
        lines
    }
}
