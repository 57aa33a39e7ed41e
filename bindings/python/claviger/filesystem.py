"""The files in a volume as a file system of fsspec: `fsspec.filesystem("claviger", volume="old.tc", password=…)`."""

from __future__ import annotations

import datetime
import io
from typing import Any

from fsspec import AbstractFileSystem

from claviger._volumes import Entry, Files, Password, Path, open_files


def _anew(kind: type[ClavigerFileSystem], args: tuple[Any, ...], options: dict[str, Any]) -> ClavigerFileSystem:
    """Opens what was pickled in another process."""
    return kind(*args, **options)


#: Options that nobody keeps: neither fsspec, nor what a file system is pickled to.
SECRETS = ("password", "volume_key", "hidden_password")


class ClavigerFileSystem(AbstractFileSystem):
    """The files in the volume or folder at `volume`, opened as by `claviger.open_files`, whose options this has.

    Another process that it is pickled for, as Dask's are, opens the volume anew with the same options. A password is in none of them: give a
    function of a module that returns it, which is called there; or open it with keyfiles alone."""

    protocol = "claviger"
    root_marker = ""
    # Nobody keeps an open volume that is not used any more, or its password.
    cachable = False
    _strip_tokenize_options = SECRETS

    def __init__(self, volume: Path, *, password: Password = None, writable: bool = False, **how: Any) -> None:
        super().__init__()
        self._ask = password if callable(password) else None
        self._secrets = [name for name in SECRETS if not (name == "password" and self._ask) and {"password": password, **how}.get(name) is not None]
        self.files: Files = open_files(volume, password, writable=writable, **how)

    def __reduce__(self) -> Any:
        if self._secrets:
            raise TypeError(
                f"a file system that was opened with {' and '.join(self._secrets)} as bytes or text cannot be pickled: "
                "give a function of a module as password, which each process calls"
            )
        asks = {"password": self._ask} if self._ask else {}
        return _anew, (type(self), self.storage_args, {**self.storage_options, **asks})

    def close(self) -> None:
        """Makes all changes durable, and forgets the keys once no file is open any more."""
        self.files.close()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        stripped = super()._strip_protocol(path)
        return stripped if isinstance(stripped, list) else stripped.strip("/")

    def _info(self, name: str, entry: Entry) -> dict[str, Any]:
        known = entry._asdict()
        return {**known, "name": name, "type": known.pop("kind"), "size": entry.size if entry.kind == "file" else 0}

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        return self._info(path, self.files.stat(path))

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        itself = self.files.stat(path)
        inside = self.files.list(path) if itself.kind == "directory" else []
        found = [self._info(f"{path}/{entry.name}".lstrip("/"), entry) for entry in inside]
        if itself.kind != "directory":
            found = [self._info(path, itself)]
        return found if detail else [info["name"] for info in found]

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **_: Any) -> Any:
        raw = self.files.open(self._strip_protocol(path), mode)
        # Fewer and larger requests than Python's own buffer makes.
        size = block_size if isinstance(block_size, int) else 1 << 20
        buffer = io.BufferedRandom if "+" in mode else io.BufferedReader if "r" in mode else io.BufferedWriter
        return buffer(raw, size)

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        path = self._strip_protocol(path)
        parent = self._parent(path)
        if create_parents and parent and not self.exists(parent):
            self.mkdir(parent)
        self.files.mkdir(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        if not (exist_ok and self.isdir(path)):
            self.mkdir(path)

    def _rm(self, path: str) -> None:
        self.files.remove(self._strip_protocol(path))

    def rmdir(self, path: str) -> None:
        self._rm(path)

    def mv(self, path1: str, path2: str, recursive: bool = False, maxdepth: int | None = None, **_: Any) -> None:
        self.files.rename(self._strip_protocol(path1), self._strip_protocol(path2))

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        if self.isdir(path1):
            return self.makedirs(path2, exist_ok=True)
        with self.open(path1) as source, self.open(path2, "wb") as target:
            while piece := source.read(1 << 20):
                target.write(piece)

    def touch(self, path: str, truncate: bool = True, **_: Any) -> None:
        self.files.open(self._strip_protocol(path), "wb" if truncate else "ab").close()

    def _time(self, path: str, which: str) -> datetime.datetime:
        seconds = self.info(path)[which]
        if seconds is None:
            raise NotImplementedError(f"the file system keeps no such time: {which}")
        return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)

    def created(self, path: str) -> datetime.datetime:
        return self._time(path, "created")

    def modified(self, path: str) -> datetime.datetime:
        return self._time(path, "modified")
