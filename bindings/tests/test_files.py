"""Files in volumes, beside mtools and fsck.vfat."""

import os
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
    with pytest.raises(Exception):
        pickle.loads(pickle.dumps(system))


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
