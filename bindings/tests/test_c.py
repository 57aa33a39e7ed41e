"""The library for C, installed as it is for others, under AddressSanitizer."""

import pathlib
import subprocess

import pytest
from conftest import ROOT, TARGET, run, tool

import claviger

PROGRAM = pathlib.Path(__file__).with_name("program.c")


@pytest.mark.parametrize("link", ["shared", "static"])
def test_a_program_in_c(luks, tmp_path, link):
    root = tmp_path / "root"
    install = ["-s", "-C", ROOT, "bindings-install", f"DESTDIR={root}", "PREFIX=/usr", "BINDINGS=debug", f"TARGET={TARGET.resolve()}"]
    run("make", *install)
    found = {"PKG_CONFIG_SYSROOT_DIR": str(root), "PKG_CONFIG_LIBDIR": str(root / "usr/lib/pkgconfig"), "PATH": "/usr/bin:/bin"}
    flags = run("pkg-config", "--cflags", "--libs", *(["--static"] if link == "static" else []), "claviger", env=found, text=True)
    if link == "static":
        flags = flags.replace("-lclaviger", "-l:libclaviger.a")
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1"]
    strict = ["-std=c11", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    program = tmp_path / "program"
    run("cc", *strict, *sanitizers, PROGRAM, "-o", program, *flags.split())
    where = {"LD_LIBRARY_PATH": str(root / "usr/lib"), "PATH": "/usr/bin"}
    done = subprocess.run([program, luks.path, tmp_path / "new"], env=where, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    with claviger.open(luks.path, luks.password) as volume:
        start = volume.read(512)
        volume.seek(1000)
        assert volume.read(6) == b"from C"
    run("cc", *strict, *sanitizers, ROOT / "bindings/c/example.c", "-o", tmp_path / "example", *flags.split())
    assert run(tmp_path / "example", luks.path, input=luks.password + b"\n", env=where) == start
    linked = run("objdump", "-p", program, text=True)
    assert ("libclaviger.so.0" in linked) == (link == "shared")


def test_the_header_is_one_of_cpp_as_well(tmp_path):
    source = tmp_path / "a.cpp"
    source.write_text('#include "claviger.h"\nint main() { return claviger_version() == nullptr; }\n')
    run(tool("c++"), "-fsyntax-only", "-Wall", "-Werror", "-I", ROOT / "bindings/c", source)
