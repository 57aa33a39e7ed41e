//! Starts user-mode Linux, a kernel as a program, also on processors that it does not know: for tests, and for the lab's guests.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The kernel as a program, as Debian's package user-mode-linux calls it.
pub const KERNEL: &str = "linux.uml";

/// What builds the shim.
pub const COMPILER: &str = "cc";

/// What it is built from, which says what it is for.
const SOURCE: &str = include_str!("xstate.c");

/// Whether user-mode Linux needs the shim on this machine.
pub fn needs_shim() -> bool {
    std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| too_large(&text))
}

/// Whether the processors that this text of /proc/cpuinfo describes have more state than user-mode Linux has room for.
fn too_large(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().filter_map(|line| line.split_once(':')).filter(|(name, _)| name.trim() == "flags");
    flags.flat_map(|(_, flags)| flags.split_whitespace()).any(|flag| flag == "amx_tile")
}

/// Builds the shim in a folder that nobody else builds it in: whoever starts a kernel has one of their own.
///
/// # Errors
/// If there is no C compiler or it fails; the error holds what it printed.
pub fn build_shim(folder: &Path) -> io::Result<PathBuf> {
    let (source, shim) = (folder.join("xstate.c"), folder.join("xstate.so"));
    std::fs::write(&source, SOURCE)?;
    compile(Command::new(COMPILER).args(["-shared", "-fPIC", "-O2", "-o"]).arg(&shim).arg(&source).arg("-ldl"))?;
    Ok(shim)
}

fn compile(command: &mut Command) -> io::Result<()> {
    let output = command.output().map_err(|e| io::Error::new(e.kind(), format!("the compiler {COMPILER}: {e}")))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)))),
    }
}

/// The words that start this kernel. `shim` as the dynamic linker takes it (ld.so(8), `LD_PRELOAD`): a path with a slash, and
/// without blanks and colons.
pub fn words(kernel: &Path, shim: Option<&Path>) -> Vec<OsString> {
    let preload = shim.map(|shim| {
        let mut word = OsString::from("LD_PRELOAD=");
        word.push(shim);
        [OsString::from("env"), word]
    });
    preload.into_iter().flatten().chain([kernel.into()]).collect()
}

#[cfg(test)]
mod tests {
    use claviger_testkit::tools;

    use super::*;

    #[test]
    fn a_processor_with_amx_is_recognised_by_its_flags_alone() {
        let sapphire_rapids =
            "processor\t: 0\nmodel name\t: Intel(R) Xeon(R)\nflags\t\t: fpu avx512f amx_bf16 amx_tile amx_int8\n";
        assert!(too_large(sapphire_rapids));
        for without in
            ["", "flags\t\t: fpu avx512f\n", "model name\t: amx_tile\nflags : amx_tiles\n", "vmx flags : amx_tile\n"]
        {
            assert!(!too_large(without), "{without}");
        }
    }

    #[test]
    fn only_the_kernel_gets_the_shim() {
        let kernel = Path::new("/usr/bin/linux.uml");
        assert_eq!(words(kernel, None), ["/usr/bin/linux.uml"]);
        assert_eq!(words(kernel, Some(Path::new("./x.so"))), ["env", "LD_PRELOAD=./x.so", "/usr/bin/linux.uml"]);
    }

    /// Every processor with AVX has a state that a buffer can be too small for: as one with AMX is to user-mode Linux's.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_part_of_a_state_is_taken_and_what_lies_behind_it_stays() {
        if tools::program(COMPILER).is_none() {
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let (source, test) = (folder.path().join("test.c"), folder.path().join("test"));
        std::fs::write(&source, include_str!("xstate_test.c")).expect("a source");
        let options = ["-O2", "-Wall", "-Wextra", "-Werror", "-o"];
        compile(Command::new(COMPILER).args(options).arg(&test).arg(&source)).expect("compiled");
        let shim = build_shim(folder.path()).expect("built");
        let ended = |shim| {
            let words = words(&test, shim);
            let output = Command::new(&words[0]).args(&words[1..]).output().expect("it starts");
            (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let alone = ended(None);
        if alone.0 == Some(77) {
            let _: Option<()> = tools::skip("this processor has no vector registers beyond SSE");
            return;
        }
        assert_eq!(alone, (Some(1), String::new()), "the kernel takes a part");
        assert_eq!(ended(Some(&shim)), (Some(0), String::new()));
    }

    #[test]
    fn a_failed_build_says_why() {
        if tools::program(COMPILER).is_none() {
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let error = build_shim(&folder.path().join("none")).expect_err("no folder");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let error = compile(Command::new(COMPILER).arg("/no/such/file.c")).expect_err("no source");
        assert!(error.to_string().contains("file.c"), "{error}");
    }
}
