"""Volumes as file objects, beside cryptsetup and OpenSSL."""

import array
import io
import os
import random
import signal
import threading

import pytest
from conftest import SECTOR, TARGET, Luks, run

import claviger


def test_reads_and_writes_are_those_of_openssl(luks):
    data = random.Random(1).randbytes(luks.size)
    with claviger.open(luks.path, luks.password, writable=True) as volume:
        assert (volume.size, volume.facts["format"], volume.writable()) == (luks.size, "LUKS2", True)
        # More than is written in one piece, at no beginning of a sector.
        assert volume.seek(700) == 700 and volume.write(data[700:]) == luks.size - 700
        assert volume.write_at(0, bytearray(data[:700])) == 700 and volume.tell() == luks.size
    for sector in (0, 1, 2, 8191, luks.size // SECTOR - 1):
        plain = data[sector * SECTOR :][:SECTOR]
        assert luks.sector(sector) == luks.stored(plain, sector)
    with claviger.open(luks.path, bytearray(luks.password)) as volume:
        assert volume.read(700) == data[:700] and volume.readall() == data[700:] and volume.read(1) == b""
        room = bytearray(luks.size + 5)
        assert volume.readinto_at(3, room) == luks.size - 3 and room[: luks.size - 3] == data[3:]


def test_what_of_python_takes_a_file_takes_a_volume(luks):
    with claviger.open(luks.path, "correct horse", writable=True) as volume:
        with io.BufferedRandom(volume, 4096) as buffered:
            buffered.write(b"one\ntwo\n")
            buffered.seek(-5, io.SEEK_END)
            buffered.write(b"three")
        assert volume.closed
    volume = claviger.open(luks.path, memoryview(luks.password))
    numbers = array.array("I", bytes(8))
    assert volume.readinto(numbers) == 8 and numbers.tobytes() == b"one\ntwo\n"
    volume.seek(0)
    assert io.BufferedReader(volume).readline() == b"one\n"
    with pytest.raises(ValueError, match="closed|detached"):
        with volume:
            volume.close()
            volume.read(1)


def test_what_a_volume_is_not_made_for_is_refused(luks):
    with claviger.open(luks.path, luks.password) as volume:
        with pytest.raises(io.UnsupportedOperation):
            volume.write(b"x")
        for buffer in (b"constant", memoryview(bytearray(8))[::2]):
            with pytest.raises((BufferError, TypeError)):
                volume.readinto(buffer)
        with pytest.raises(OSError):
            volume.seek(-1)
        assert volume.seek(100, io.SEEK_END) == volume.size + 100 and volume.read(1) == volume.readall() == b""
    with claviger.open(luks.path, luks.password, writable=True) as volume:
        with pytest.raises(io.UnsupportedOperation):
            volume.truncate(0)
        volume.seek(-2, io.SEEK_END)
        assert volume.write(b"abc") == 2
        for _ in range(2):
            with pytest.raises(OSError, match="ends here"):
                volume.write(b"c")
            volume.seek(10, io.SEEK_CUR)
        with pytest.raises(claviger.InUse):
            claviger.open(luks.path, luks.password)


def test_errors_say_whose_they_are(luks, tmp_path):
    with pytest.raises(claviger.WrongCredential) as wrong:
        claviger.open(luks.path, "wrong")
    assert wrong.value.code == 2 and wrong.value.path == str(luks.path) and str(luks.path) in str(wrong.value)
    with pytest.raises(FileNotFoundError):
        claviger.open(tmp_path / "none", "x")
    with pytest.raises(claviger.Misuse) as misuse:
        claviger.open(luks.path, "x", format="nonsense")
    assert isinstance(misuse.value, ValueError)
    with pytest.raises(TypeError, match="pim: "):
        claviger.open(luks.path, "x", pim="many")
    with pytest.raises(TypeError, match="no option"):
        claviger.open(luks.path, "x", nonsense=1)
    (tmp_path / "text").write_text("no volume" * 10000)
    with pytest.raises(claviger.NotThisFormat):
        claviger.open(tmp_path / "text", "x")
    damaged = bytearray(luks.path.read_bytes())
    # The JSON of both copies of the header.
    damaged[4096:5000] = damaged[16384 + 4096 : 16384 + 5000] = bytes(904)
    luks.path.write_bytes(damaged)
    with pytest.raises(claviger.Damaged) as error:
        claviger.open(luks.path, luks.password)
    assert error.value.hint


def test_a_password_is_asked_for_when_it_is_needed(luks, tmp_path):
    asked = []

    def ask():
        asked.append(bytearray(luks.password))
        return asked[-1]

    with pytest.raises(FileNotFoundError):
        claviger.open(tmp_path / "none", ask)
    assert not asked
    claviger.open(luks.path, ask).close()
    assert asked == [bytes(len(luks.password))], "it is wiped"
    with claviger.open(luks.path, volume_key=luks.key) as volume:
        assert volume.size == luks.size


def test_ctrl_c_ends_a_derivation_that_lets_other_threads_run(tmp_path):
    luks = Luks(tmp_path, "luks1")
    header = bytearray(luks.path.read_bytes())
    # Eight keyslots in use, each with as many iterations as there can be (LUKS1 On-Disk Format 1.2.3, 2.3 and 2.4).
    for keyslot in range(208, 592, 48):
        header[keyslot : keyslot + 8] = bytes.fromhex("00ac71f3 ffffffff")
    luks.path.write_bytes(header)
    with pytest.raises(claviger.Misuse, match="seconds of processor time"):
        claviger.open(luks.path, luks.password)
    begun = threading.Event()

    def press():
        begun.wait()
        assert sum(range(100_000)) > 0
        signal.raise_signal(signal.SIGINT)

    # Who starts this in the background may have it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        claviger.open(luks.path, luks.password, allow_slow=True, progress=lambda done, all: begun.set())
    thread.join()


def test_a_forked_child_is_refused(luks):
    with claviger.open(luks.path, luks.password, writable=True) as volume:
        child = os.fork()
        if child == 0:
            refused = 0
            for forbidden in (lambda: volume.read(1), lambda: volume.write(b"noise")):
                try:
                    forbidden()
                except claviger.Misuse:
                    refused += 1
            # Closing it ends no thread that is not there.
            try:
                volume.close()
            except claviger.Misuse:
                refused += 1
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        volume.write(b"whole")
    assert luks.sector(0) == luks.stored(b"whole" + plain_rest(luks, 5), 0)


def plain_rest(luks, offset):
    with claviger.open(luks.path, luks.password) as volume:
        return volume.read(SECTOR)[offset:]


def test_several_threads_read_at_once(luks):
    data = random.Random(2).randbytes(luks.size)
    with claviger.open(luks.path, luks.password, writable=True) as volume:
        volume.write(data)
        wrong = []

        def read(seed):
            numbers = random.Random(seed)
            for _ in range(20):
                offset, room = numbers.randrange(luks.size), bytearray(numbers.choice((10, 5000, 3 << 20)))
                read = volume.readinto_at(offset, room)
                if room[:read] != data[offset : offset + len(room)]:
                    wrong.append(offset)

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


def test_new_volumes_open_and_nothing_is_overwritten(tmp_path):
    (tmp_path / "keyfile").write_bytes(b"key")
    told = []
    path = tmp_path / "new"
    options = {"keyfiles": [tmp_path / "keyfile"], "format": "TrueCrypt"}
    claviger.create(path, 8 << 20, "p", cipher="AES-Twofish-Serpent", progress=lambda *done: told.append(done), **options)
    assert path.stat().st_mode & 0o777 == 0o600
    with claviger.open(path, "p", **options) as volume:
        assert volume.facts["cipher"] == "AES-Twofish-Serpent"
    with pytest.raises(FileExistsError):
        claviger.create(path, 8 << 20, "p", **options)
    with pytest.raises(claviger.WrongCredential):
        claviger.open(path, "p", format="TrueCrypt")
    with pytest.raises(claviger.Misuse):
        claviger.create(tmp_path / "open to all", 8 << 20, "")
    with pytest.raises(claviger.Misuse):
        claviger.create(tmp_path / "small", 4096, "p", format="LUKS2")
    assert sorted(os.listdir(tmp_path)) == ["keyfile", "new"]
    # Another program reads what was made.
    new = tmp_path / "luks"
    claviger.create(new, 20 << 20, b"p", format="LUKS2", kdf="pbkdf2", kdf_iterations=1000, label="photos", quick=True)
    run("cryptsetup", "open", "--test-passphrase", new, input=b"p")
    assert b"photos" in run("cryptsetup", "luksDump", new)


def test_a_hidden_volume_is_protected(tmp_path):
    path, image = tmp_path / "outer", tmp_path / "image"
    claviger.create(path, 8 << 20, "outer", format="TrueCrypt")
    with claviger.open(path, "outer", writable=True) as outer:
        image.write_bytes(bytes(outer.size))
        run("mkfs.vfat", image)
        outer.write(image.read_bytes())
    (tmp_path / "o").write_text("outer")
    (tmp_path / "h").write_text("hidden")
    options = ["--hidden", "--format", "TrueCrypt", "--hidden-password-file", tmp_path / "h", "--password-file", tmp_path / "o"]
    run(TARGET / "debug/claviger", "create", *options, "--size", "1M", "--quick", "--force", "--yes", path)
    with claviger.open(path, "hidden", writable=True) as hidden:
        assert hidden.facts["hidden"]
        hidden.write(b"secret")
        size = hidden.size
    with pytest.raises(claviger.WrongCredential):
        claviger.open(path, "outer", writable=True, hidden_password="wrong")
    with claviger.open(path, "outer", writable=True, hidden_password="hidden") as outer:
        outer.write(b"allowed")
        with pytest.raises(OSError):
            outer.write_at(outer.size - size, bytes(size))
    with claviger.open(path, "hidden") as hidden:
        assert hidden.read(6) == b"secret"


def test_identify_and_explain(luks, tmp_path):
    seen = claviger.identify(luks.path)
    assert (seen["verdict"], seen["candidates"]) == ("yes", ["LUKS2"])
    (tmp_path / "random").write_bytes(random.Random(3).randbytes(1 << 20))
    assert "VeraCrypt" in claviger.identify(tmp_path / "random")["candidates"]
    assert claviger.identify(tmp_path)["verdict"] == "no"
    # An empty home of eCryptfs is known by the files beside it.
    (tmp_path / ".Private").mkdir()
    (tmp_path / ".ecryptfs").mkdir()
    (tmp_path / ".ecryptfs/Private.sig").write_text("0123456789abcdef\n")
    assert claviger.identify(tmp_path / ".Private")["candidates"] == ["eCryptfs"]
    told = claviger.explain(luks.path, luks.password.decode().swapcase())
    assert told["opens"]["with"] == "case" and told["opens"]["facts"]["format"] == "LUKS2"
    told = claviger.explain(luks.path, "wrong")
    assert told["opens"] is None and told["error"]["code"] == 2 and told["trials"] > 1
    assert claviger.explain(luks.path)["error"] is None
    (tmp_path / "text").write_text("no volume" * 10000)
    assert claviger.explain(tmp_path / "text", "x")["error"]["code"] == 3
