"""Files in volumes, beside mtools and fsck.vfat."""

import concurrent.futures
import io
import multiprocessing
import os
import pathlib
import pickle
import re

import pytest
from conftest import ROOT, run

import claviger

fsspec = pytest.importorskip("fsspec") if os.environ.get("CI") != "true" else __import__("fsspec")


@pytest.fixture
def volume(tmp_path, fat):
    path = tmp_path / "volume"
    claviger.create(path, 8 << 20, "p", format="TrueCrypt")
    with claviger.open(path, "p", writable=True) as volume:
        volume.write(fat)
    return path


def image(volume, tmp_path):
    """The file system as others see it, which fsck.vfat finds nothing wrong with."""
    plain = tmp_path / "plain"
    with claviger.open(volume, "p") as opened:
        plain.write_bytes(opened.read(4 << 20))
    run("fsck.vfat", "-n", plain)
    return plain


def test_files_are_those_of_mtools(volume, tmp_path):
    with claviger.open(volume, "p") as opened:
        files = opened.files()
    with files, files.open("letters/1998.txt") as file:
        assert files.kind.startswith("FAT") and not files.writable
        assert file.read(9) == b"Dear all\n" and file.seek(-9, 2) == 8991 and file.readall() == b"Dear all\n"
        assert [(entry.name, entry.kind) for entry in files.list()] == [("letters", "directory")]
        assert [path for path, _ in files.walk()] == ["/", "/letters"] and files.stat("letters/1998.txt").size == 9000
        for wrong, error in (("none", FileNotFoundError), ("letters", IsADirectoryError), ("letters/1998.txt/x", NotADirectoryError)):
            with pytest.raises(error):
                files.open(wrong)
        with pytest.raises(OSError):
            files.open("new", "wb")


def test_files_are_written(volume, tmp_path):
    with claviger.open_files(volume, "p", writable=True) as files:
        files.mkdir("new")
        with files.open("new/a", "xb") as file:
            assert file.write(b"0123456789") == 10 and file.truncate(4) == 4
        with files.open("new/a", "ab") as file:
            file.write(b"x")
        with files.open("/new/a", "r+b") as file:
            file.write(b"9")
        with pytest.raises(FileExistsError):
            files.open("new/a", "xb")
        with pytest.raises(FileNotFoundError):
            files.open("new/b", "r+b")
        files.rename("new/a", "letters/b")
        files.remove("new")
        with pytest.raises(OSError):
            files.remove("letters")
        with pytest.raises(claviger.Misuse):
            files.remove("/")
        assert files.read("letters/b") == b"9123x"
    with pytest.raises(ValueError):
        files.list()
    assert run("mtype", "-i", image(volume, tmp_path), "::letters/b") == b"9123x"


def test_fsspec_knows_them(volume, tmp_path):
    system = fsspec.filesystem("claviger", volume=volume, password="p", writable=True)
    assert system.ls("", detail=False) == ["letters"] and system.find("/") == ["letters/1998.txt"]
    assert system.cat("letters/1998.txt") == b"Dear all\n" * 1000 and system.size("letters/1998.txt") == 9000
    assert system.cat_file("letters/1998.txt", 5, 8) == b"all" and system.isdir("letters") and not system.exists("none")
    with system.open("letters/1998.txt", "rt") as text:
        assert text.readline() == "Dear all\n"
    system.makedirs("a/b")
    system.pipe("a/b/c", b"piped")
    system.cp("a/b/c", "a/d")
    system.mv("a/d", "a/e")
    with system.open("a/e", "ab") as file:
        file.write(b" and more")
    system.rm("letters", recursive=True)
    (tmp_path / "local").write_bytes(b"local")
    system.put(str(tmp_path / "local"), "a/local")
    assert system.glob("a/*") == ["a/b", "a/e", "a/local"] and system.modified("a/e").year >= 2026
    assert "p" not in map(str, (system.storage_options | {"volume": None}).values())
    with pytest.raises(FileNotFoundError):
        system.cat("letters/1998.txt")
    system.close()
    plain = image(volume, tmp_path)
    assert run("mtype", "-i", plain, "::a/e") == b"piped and more" and run("mtype", "-i", plain, "::a/local") == b"local"
    with fsspec.open("claviger://a/b/c", volume=volume, password="p") as file:
        assert file.read() == b"piped"


def password():
    """What each process asks."""
    return bytearray(b"p")


def length(system, path):
    return os.getpid(), len(system.cat(path))


def test_other_processes_open_what_is_pickled_anew(volume, tmp_path):
    system = fsspec.filesystem("claviger", volume=volume, password=password)
    again = pickle.loads(pickle.dumps(system))
    assert again is not system and again.cat("letters/1998.txt") == system.cat("letters/1998.txt")
    # As Dask's workers are started, which have nothing of this process.
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as others:
        process, size = others.submit(length, system, "letters/1998.txt").result(120)
    assert process != os.getpid() and size == 9000
    opened = fsspec.open("claviger://letters/1998.txt", volume=volume, password=password)
    with pickle.loads(pickle.dumps(opened)) as file:
        assert file.read(4) == b"Dear"
    assert "password" not in str(system.storage_options) and "password" not in system.to_json()


def test_a_password_is_never_pickled(volume, tmp_path):
    for secret in ("p", b"p", bytearray(b"p")):
        system = fsspec.filesystem("claviger", volume=volume, password=secret)
        with pytest.raises(TypeError, match="password.*a function"):
            pickle.dumps(system)
        with pytest.raises(TypeError, match="password"):
            pickle.dumps(fsspec.open("claviger://letters/1998.txt", volume=volume, password=secret))
    (tmp_path / "key").write_bytes(os.urandom(64))
    claviger.create(tmp_path / "keyed", 8 << 20, format="TrueCrypt", keyfiles=[tmp_path / "key"])
    with claviger.open(tmp_path / "keyed", writable=True, keyfiles=[tmp_path / "key"]) as keyed, claviger.open(volume, "p") as plain:
        keyed.write(plain.read(4 << 20))
    system = fsspec.filesystem("claviger", volume=tmp_path / "keyed", keyfiles=[tmp_path / "key"])
    assert pickle.loads(pickle.dumps(system)).ls("", detail=False) == ["letters"]


def test_paths_are_bytes_or_text(volume, tmp_path):
    named = os.fsencode(tmp_path) + b"/not \xff text"
    os.rename(volume, named)
    key = os.fsencode(tmp_path) + b"/key \xfe"
    pathlib.Path(os.fsdecode(key)).write_bytes(b"k" * 64)
    keyed = os.fsencode(tmp_path) + b"/keyed \xfd"
    for make in (bytes, os.fsdecode, lambda path: pathlib.Path(os.fsdecode(path))):
        path = make(named)
        assert claviger.identify(path)["verdict"] == "possible" and claviger.explain(path, "p")["opens"]
        with claviger.open(path, "p") as opened:
            assert opened.size > 0 and isinstance(opened.name, str)
        claviger.create(make(keyed), 1 << 20, format="TrueCrypt", keyfiles=[make(key)])
        with claviger.open(make(keyed), keyfiles=[make(key)]) as opened:
            assert opened.size > 0
        os.remove(keyed)
        with claviger.open_files(path, "p", writable=True) as files:
            inside = make(b"letters/1998.txt")
            assert files.read(inside)[:4] == b"Dear" and files.stat(inside).size == 9000
            with files.open(inside) as file:
                assert file.read(4) == b"Dear"
            files.mkdir(make(b"a"))
            files.rename(make(b"a"), make(b"b"))
            assert [entry.name for entry in files.list(make(b"/"))] == ["letters", "b"] and len(list(files.walk(make(b"/")))) == 3
            files.remove(make(b"b"))


def test_modes_without_b_are_text(volume):
    with claviger.open_files(volume, "p", writable=True) as files:
        for mode in ("r", "rt", "tr"):
            with files.open("letters/1998.txt", mode) as file:
                assert isinstance(file, io.TextIOBase) and file.readline() == "Dear all\n" and len(file.read()) == 8991
        with files.open("new", "x", encoding="utf-8", newline="\r\n") as file:
            assert file.write("S\u00fc\u00df\n") == 4
        with files.open("new", "a", encoding="utf-8") as file:
            file.write("more")
        assert files.read("new") == "S\u00fc\u00df\r\nmore".encode()
        with files.open("new", "r", encoding="utf-8") as file:
            assert list(file) == ["S\u00fc\u00df\n", "more"]
        with files.open("new", "w", encoding="latin-1") as file:
            file.write("\u00fc")
        with files.open("new", "rb") as file:
            assert isinstance(file, claviger.File) and file.readall() == b"\xfc"
        for mode in ("", "b", "rw", "r+", "rbt", "U", "rr", "z"):
            with pytest.raises(claviger.Misuse):
                files.open("new", mode)
        with pytest.raises(ValueError):
            files.open("new", "rb", encoding="utf-8")


def test_sizes_without_end_are_errors(volume, tmp_path):
    with claviger.open_files(volume, "p", writable=True) as files, files.open("letters/1998.txt", "r+b") as file:
        for size in (1 << 32, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64):
            with pytest.raises((OSError, OverflowError, claviger.Error)):
                file.truncate(size)
            with pytest.raises((OSError, OverflowError, claviger.Error)):
                file.write_at(size, b"x")
            try:
                assert file.readinto_at(size, bytearray(4)) == 0
            except OverflowError:
                assert size == 1 << 64
        assert file.size == 9000
    for size in (1 << 63, (1 << 64) - 1, 1 << 64):
        with pytest.raises((OSError, OverflowError, claviger.Error)):
            claviger.create(tmp_path / "none", size, "p", format="LUKS2")
        assert not (tmp_path / "none").exists()
    with pytest.raises(TypeError, match="at most 1048576"):
        claviger.open(volume, bytes(2 << 20))


def test_the_guide_runs(tmp_path, fat, monkeypatch, capsys):
    claviger.create(tmp_path / "old.tc", 8 << 20, "correct horse", format="TrueCrypt")
    with claviger.open(tmp_path / "old.tc", "correct horse", writable=True) as volume:
        volume.write(fat)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("getpass.getpass", lambda: "correct horse")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guide/python.md").read_text(), re.DOTALL)
    names = {}
    for block in blocks:
        exec(block, names)
    assert len(blocks) == 7 and names["text"].readline
    told = capsys.readouterr().out
    assert all(word in told for word in ("TrueCrypt AES", "1998.txt", "Dear all", "['LUKS2']", "lower case")), told
