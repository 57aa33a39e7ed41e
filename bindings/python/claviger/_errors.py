"""What can go wrong. What a file or device does not let one do is an `OSError` of Python's own."""

from __future__ import annotations

import os


class Error(Exception):
    """What this package can say of a failure. `code` is the exit status that the program has for it."""

    code = 1
    #: What to try, in whole sentences.
    hint: str | None = None
    #: What it is about.
    path: str | None = None

    def __str__(self) -> str:
        about = f"{os.fspath(self.path)}: " if self.path else ""
        return f"{about}{super().__str__()}" + (f"\n{self.hint}" if self.hint else "")


class Misuse(Error, ValueError):
    """The call makes no sense."""


class WrongCredential(Error):
    """Nothing that was given opens the volume."""

    code = 2


class NotThisFormat(Error):
    """It is no volume of that format, or of any known one."""

    code = 3


class Damaged(Error):
    """It is damaged, or was cut short."""

    code = 4


class Unsupported(Error):
    """It is known what it is, and that cannot be done."""

    code = 5


class OutOfMemory(Error, MemoryError):
    """Deriving the key takes more memory than there is."""

    code = 7


class Cancelled(Error):
    """Somebody ended it."""

    code = 8


class InUse(Error):
    """Another process has it open."""

    code = 9


_CODES = {kind.code: kind for kind in (Misuse, WrongCredential, NotThisFormat, Damaged, Unsupported, OutOfMemory, Cancelled, InUse)}


def failure(code: int, message: str, hint: str | None, path: str | None, errno: int | None) -> Exception:
    """The exception for an error of the engine."""
    if errno is not None:
        # Python makes a FileNotFoundError and the like of it.
        return OSError(errno, message, path) if path is not None else OSError(errno, message)
    error = _CODES.get(code, Error)(message)
    error.hint, error.path = hint, path
    return error
