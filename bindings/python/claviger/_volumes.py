"""Volumes and the files in them as file objects of Python."""

from __future__ import annotations

import builtins
import errno
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypedDict, Unpack, overload

from claviger import _native
from claviger._errors import Misuse

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
#: Modes in which a file has bytes.
Bytes = Literal["rb", "br", "r+b", "rb+", "wb", "bw", "ab", "ba", "xb", "bx"]
#: Bytes without a newline, or text, which is taken as UTF-8. It is copied to memory that is locked and wiped; only a `bytearray` can be wiped
#: where it came from.
Secret = str | bytes | bytearray | memoryview
#: A password, or what asks for it: called once it is known that the volume takes one. A bytearray that it returns is wiped.
Password = Secret | Callable[[], Secret] | None
#: Called every 20 ms with what is done and what there is, 0 of 0 before that is known.
Progress = Callable[[int, int], object] | None


class How(TypedDict, total=False):
    """What narrows an opening. What is not given is found out, or is the format's default."""

    #: The name of the format. Needed by those without a header: `plain`, `cryptoloop`, `loop-AES`.
    format: str | None
    #: The file with the header, where it is detached.
    header: Path | None
    #: The partition of the disk, counted from 1.
    partition: int | None
    #: The logical volume of LVM2 inside: `VOLUME` or `GROUP/VOLUME`.
    logical_volume: str | None
    keyfiles: Sequence[Path]
    #: The volume key itself, in the place of everything else.
    volume_key: Secret | None
    pim: int | None
    hash: str | None
    cipher: str | None
    keyslot: int | None
    #: Whether only backups of headers are tried.
    backup_header: bool
    #: Whether what was cut short is opened, for reading.
    truncated: bool
    #: Whether work is begun that takes more than five minutes for all keyslots, as a hostile header can ask for.
    allow_slow: bool
    #: Bytes of memory that deriving the key may take.
    memory: int | None
    #: What opens the hidden volume in this one: a write that would damage it is refused, and then every write is.
    hidden_password: Secret | None
    hidden_keyfiles: Sequence[Path]
    hidden_pim: int | None
    #: For formats without a header: where the data begin and how long they are, in bytes, the number of the first sector, the bits of the key and the bytes
    #: of a sector.
    data_offset: int | None
    data_size: int | None
    skip: int | None
    key_bits: int | None
    sector_size: int | None


class New(TypedDict, total=False):
    """How a new volume is made. What is not given is the format's default."""

    #: VeraCrypt, if no other is named.
    format: str
    keyfiles: Sequence[Path]
    pim: int
    hash: str
    cipher: str
    #: Whether what is not used is left as zeros. It is faster, and everybody sees how much is in use.
    quick: bool
    label: str
    sector_size: int
    key_bits: int
    integrity: str
    kdf: str
    kdf_time_ms: int
    kdf_iterations: int
    kdf_memory_kib: int


class Entry(NamedTuple):
    """What is known of a file or folder."""

    name: str
    #: `file`, `directory`, `link` or `other`.
    kind: str
    #: Bytes of a file.
    size: int
    #: Seconds since 1970.
    modified: float | None
    created: float | None
    #: Permission bits.
    mode: int | None


def _known(given: dict[str, Any], options: type) -> dict[str, Any]:
    for name in given.keys() - options.__annotations__.keys():
        raise TypeError(f"there is no option {name!r}")
    return {name: value for name, value in given.items() if value is not None}


def _secrets(given: dict[str, Any], password: object) -> dict[str, Any]:
    others = ("volume_key", "hidden_password")
    return {"password": password, **{str(name): given.pop(name) for name in others if name in given}}


def _paths(given: dict[str, Any]) -> dict[str, Any]:
    """The same with each path as text: the bytes of its name that are none are kept (PEP 383)."""
    one = {name: os.fsdecode(given[name]) for name in ("header",) if name in given}
    many = {name: [os.fsdecode(path) for path in given[name]] for name in ("keyfiles", "hidden_keyfiles") if name in given}
    return {**given, **one, **many}


def _opened(path: Path, password: Password, writable: bool, progress: Progress, how: dict[str, Any], files: bool) -> Any:
    how = _paths(_known(how, How))
    secrets = _secrets(how, password)
    found = _native.find(os.fsdecode(path), files, {**how, "writable": writable})
    if not callable(password):
        return (found.files if files else found.volume)(secrets, progress)
    typed = password() if found.asks_password() else None
    try:
        return (found.files if files else found.volume)({**secrets, "password": typed}, progress)
    finally:
        if isinstance(typed, bytearray):
            typed[:] = bytes(len(typed))


def open(path: Path, password: Password = None, *, writable: bool = False, progress: Progress = None, **how: Unpack[How]) -> Volume:
    """Opens the volume in a file or block device. It is only read unless it is `writable`. Ctrl-C ends the derivation of its key."""
    return Volume(os.fsdecode(path), _opened(path, password, writable, progress, {**how}, False))


def open_files(path: Path, password: Password = None, *, writable: bool = False, progress: Progress = None, **how: Unpack[How]) -> Files:
    """Opens the files in a volume, in an encrypted folder, or in an image that is not encrypted."""
    return Files(_opened(path, password, writable, progress, {**how}, True))


def create(path: Path, size: int, password: Secret | None = None, *, progress: Progress = None, **new: Unpack[New]) -> None:
    """Makes a volume of `size` bytes, headers included, in a new file. What exists is never overwritten."""
    _native.create(os.fsdecode(path), size, {"password": password}, progress, _paths(_known({**new}, New)))


def identify(path: Path) -> dict[str, Any]:
    """What a file, device or folder is, without a password: `verdict` (`yes`, `possible`, `no`), `candidates`, and what was seen of it."""
    seen: dict[str, Any] = json.loads(_native.identify(os.fsdecode(path)))
    return seen


def explain(path: Path, password: Secret | None = None, *, progress: Progress = None, **how: Unpack[How]) -> dict[str, Any]:
    """Why something does not open. What is given is tried, also in the forms that common mistakes give it: another keyboard layout, Caps
    Lock, a keyfile left out. `opens` then says what opens it, and `error` why nothing does."""
    options = _paths(_known({**how}, How))
    secrets = _secrets(options, password)
    told: dict[str, Any] = json.loads(_native.explain(os.fsdecode(path), secrets, progress, options))
    return told


class _Positioned(io.RawIOBase):
    """A file object over positioned reads and writes. `io.BufferedReader` and the like work over it."""

    _at = 0
    _handle: _native.Volume | _native.File

    def __init__(self, name: str, handle: _native.Volume | _native.File, writable: bool) -> None:
        self.name, self._handle, self._writable = name, handle, writable

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return self._handle.size()

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def readable(self) -> bool:
        self._check()
        return True

    def writable(self) -> bool:
        self._check()
        return self._writable

    def seekable(self) -> bool:
        self._check()
        return True

    def tell(self) -> int:
        self._check()
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._check()
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at}
        if whence != io.SEEK_END and whence not in begin:
            raise ValueError(f"invalid whence ({whence})")
        at = (self.size if whence == io.SEEK_END else begin[whence]) + offset
        if at < 0:
            raise OSError(errno.EINVAL, "there is nothing before the beginning")
        self._at = at
        return at

    def readinto_at(self, offset: int, buffer: Any) -> int:
        """Reads at `offset` and leaves the position alone, so that several threads may. Fewer bytes than asked for are those before the
        end. Large reads use all processors."""
        self._check()
        return self._handle.readinto(offset, memoryview(buffer).cast("B"))

    def write_at(self, offset: int, data: Any) -> int:
        """Writes at `offset` and leaves the position alone."""
        self._check()
        if not self._writable:
            raise io.UnsupportedOperation("it was opened read-only")
        return self._handle.write(offset, memoryview(data).cast("B"))

    def readinto(self, buffer: Any, /) -> int:
        read = self.readinto_at(self._at, buffer)
        self._at += read
        return read

    def readall(self) -> bytes:
        rest = bytearray(max(self.size - self._at, 0))
        return bytes(memoryview(rest)[: self.readinto(rest)])

    def write(self, data: Any, /) -> int:
        written = self.write_at(self._at, data)
        self._at += written
        return written

    def flush(self) -> None:
        """Makes durable what was written."""
        self._check()
        if self._writable:
            self._handle.flush()

    def close(self) -> None:
        """Makes durable what was written, and forgets the keys. It is closed also where that fails."""
        if not self.closed:
            try:
                super().close()
            finally:
                self._handle.close()


class Volume(_Positioned):
    """The bytes of an open volume. Its size does not change."""

    _handle: _native.Volume

    def __init__(self, name: str, handle: _native.Volume) -> None:
        super().__init__(name, handle, handle.writable())
        #: Its format, cipher, size and so on, as the program's `info --json` has them.
        self.facts: dict[str, Any] = json.loads(handle.facts())
        #: What a person must know: whole sentences.
        self.warnings: list[str] = handle.warnings()

    def __repr__(self) -> str:
        return f"<claviger.Volume {self.name!r}: {self.facts['format']}, {'closed' if self.closed else self.size}>"

    def truncate(self, size: int | None = None, /) -> int:
        self._check()
        raise io.UnsupportedOperation("a volume keeps its size")

    def write_at(self, offset: int, data: Any) -> int:
        written = super().write_at(offset, data)
        if written == 0 and memoryview(data).nbytes > 0:
            raise OSError(errno.ENOSPC, "the volume ends here")
        return written

    def files(self) -> Files:
        """The files of the file system in it. They stay open when this is closed."""
        self._check()
        return Files(self._handle.files())


class File(_Positioned):
    """The bytes of an open file in a volume or folder."""

    _handle: _native.File

    def __init__(self, name: str, handle: _native.File, writable: bool, append: bool) -> None:
        super().__init__(name, handle, writable)
        self._append = append
        self._at = self.size if append else 0

    def truncate(self, size: int | None = None, /) -> int:
        self._check()
        if not self._writable:
            raise io.UnsupportedOperation("it was opened read-only")
        size = self._at if size is None else size
        self._handle.set_len(size)
        return size

    def write(self, data: Any, /) -> int:
        if self._append:
            self._at = self.size
        return super().write(data)


class Files:
    """The files in a volume or folder. Paths begin at its outermost folder; a slash in front means nothing."""

    def __init__(self, handle: _native.Files) -> None:
        self._handle = handle
        #: The file system, or the format of the folder.
        self.kind: str = handle.kind()
        self.warnings: list[str] = handle.warnings()
        #: Whether anything can be changed. Of file systems, that is FAT.
        self.writable: bool = handle.writable()
        self.closed = False

    def __repr__(self) -> str:
        return f"<claviger.Files: {self.kind}>"

    def __enter__(self) -> Files:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Where nobody can be told of a failure.
        if not getattr(self, "closed", True):
            self._handle.close()

    def stat(self, path: Path) -> Entry:
        """What is known of it. A link is not followed."""
        path = os.fsdecode(path)
        return Entry(path, *self._handle.stat(path))

    def list(self, path: Path = "/") -> builtins.list[Entry]:
        """What is in a folder. Names that are no text are as `os.fsdecode` has them."""
        return [Entry(name, *stat) for name, stat in self._handle.list(os.fsdecode(path))]

    def walk(self, path: Path = "/") -> Iterator[tuple[str, builtins.list[Entry]]]:
        """Each folder and what is in it, the outermost first."""
        path = os.fsdecode(path)
        inside = self.list(path)
        yield path, inside
        for entry in inside:
            if entry.kind == "directory":
                yield from self.walk(f"{path.rstrip('/')}/{entry.name}")

    def link_target(self, path: Path) -> str:
        """Where a symbolic link leads."""
        return self._handle.link_target(os.fsdecode(path))

    @overload
    def open(self, path: Path, mode: Bytes = "rb", *, encoding: None = None, errors: None = None, newline: None = None) -> File: ...

    @overload
    def open(self, path: Path, mode: str, *, encoding: str | None = None, errors: str | None = None, newline: str | None = None) -> Any: ...

    def open(self, path: Path, mode: str = "rb", *, encoding: str | None = None, errors: str | None = None, newline: str | None = None) -> Any:
        """Opens a file in the mode `rb`, `r+b`, `wb`, `ab` or `xb`, without a buffer: `io.BufferedReader` and its like are one. In the modes
        `r`, `w`, `a` and `x` it is text, with a buffer, as Python's own `open` gives it."""
        letters = sorted(mode)
        kind = next((kind for kind in ("r", "r+", "w", "a", "x") for which in ("", "b", "t") if sorted(kind + which) == letters), None)
        text = "b" not in mode
        if kind is None or (kind == "r+" and text):
            raise Misuse(f"there is no mode {mode!r}: it is rb, r+b, wb, ab or xb, or r, w, a or x for text")
        if not text:
            if (encoding, errors, newline) != (None, None, None):
                raise ValueError("a file of bytes takes no encoding, errors or newline")
            return self._open(os.fsdecode(path), kind)
        raw = self._open(os.fsdecode(path), kind)
        buffered = io.BufferedReader(raw) if kind == "r" else io.BufferedWriter(raw)
        return io.TextIOWrapper(buffered, encoding, errors, newline)

    def _open(self, path: str, kind: str) -> File:
        write = kind != "r"
        if write and not self.writable:
            raise OSError(errno.EROFS, "it can only be read", path)
        if kind == "r+":
            self.stat(path)
        handle = self._handle.open(path, write, kind == "x")
        if kind == "w":
            handle.set_len(0)
        return File(path, handle, write, kind == "a")

    def read(self, path: Path) -> bytes:
        """All that is in a file."""
        with self.open(path) as file:
            return file.readall()

    def mkdir(self, path: Path) -> None:
        """Makes a folder."""
        self._handle.make_folder(os.fsdecode(path))

    def remove(self, path: Path) -> None:
        """Removes a file or an empty folder."""
        self._handle.remove(os.fsdecode(path))

    def rename(self, old: Path, new: Path) -> None:
        """Gives a file or folder another name. A file that has it is replaced."""
        self._handle.rename(os.fsdecode(old), os.fsdecode(new))

    def flush(self) -> None:
        """Makes all changes durable, and marks the file system as cleanly unmounted."""
        self._handle.finish()

    def close(self) -> None:
        """Makes all changes durable, and forgets the keys once no file is open any more."""
        if not self.closed:
            self.closed = True
            try:
                self._handle.finish()
            finally:
                self._handle.close()
