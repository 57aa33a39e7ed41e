"""What the tests share. A tool that is missing skips a test and says so; with CI=true it fails."""

import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CLAVIGER_TARGET", ROOT / "target"))
SECTOR = 512


def tool(name):
    """Where a program is."""
    found = shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    if found is None:
        assert os.environ.get("CI") != "true", f"{name} is missing: tools/install-deps.sh bindings"
        pytest.skip(f"SKIPPED: {name} is not installed")
    return found


def run(name, *args, **options):
    done = subprocess.run([tool(name), *map(str, args)], capture_output=True, **options)
    assert done.returncode == 0, (name, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


class Luks:
    """A volume that cryptsetup has made, of a cipher that OpenSSL has, too."""

    password = b"correct horse"
    data_offset = 4096 * SECTOR
    size = 12 << 20

    def __init__(self, folder, kind="luks2"):
        self.path, self.key = folder / kind, os.urandom(32)
        (folder / "key").write_bytes(self.key)
        with open(self.path, "wb") as file:
            file.truncate(self.data_offset + self.size)
        cost = ["--hash", "sha512", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"]
        size = ["--luks2-keyslots-size", "1M", "--luks2-metadata-size", "16k", "--sector-size", "512"] if kind == "luks2" else []
        run(
            "cryptsetup", "luksFormat", "-q", "--type", kind, "--cipher", "aes-cbc-plain64", "--key-size", "256", *cost, *size,
            "--offset", "4096", "--volume-key-file", folder / "key", "--key-file", "-", self.path, input=self.password,
        )  # fmt: skip

    def stored(self, plain, sector):
        """What OpenSSL makes of the plaintext of a sector."""
        iv = sector.to_bytes(8, "little").ljust(16, b"\0")
        return run("openssl", "enc", "-aes-256-cbc", "-K", self.key.hex(), "-iv", iv.hex(), "-nopad", input=plain)

    def sector(self, number):
        """A sector as it is stored."""
        with open(self.path, "rb") as file:
            file.seek(self.data_offset + number * SECTOR)
            return file.read(SECTOR)


@pytest.fixture
def luks(tmp_path):
    return Luks(tmp_path)


@pytest.fixture
def fat(tmp_path):
    """A file system that mkfs.vfat has made and mtools have written to."""
    image = tmp_path / "fat"
    with open(image, "wb") as file:
        file.truncate(4 << 20)
    run("mkfs.vfat", image)
    (tmp_path / "letter").write_bytes(b"Dear all\n" * 1000)
    run("mmd", "-i", image, "::letters")
    run("mcopy", "-i", image, tmp_path / "letter", "::letters/1998.txt")
    return image.read_bytes()
