"""Encrypted volumes without root and without the kernel.

`open` opens the bytes of a volume as a file object, `open_files` the files in it. `identify` says what something is without a password,
`explain` why it does not open, and `create` makes a new volume. `claviger.lab` reads what the lab has measured, and fsspec knows the files
as `claviger`.
"""

from claviger._errors import (
    Cancelled,
    Damaged,
    Error,
    InUse,
    Misuse,
    NotThisFormat,
    OutOfMemory,
    Unsupported,
    WrongCredential,
)
from claviger._native import VERSION as __version__
from claviger._volumes import File, Files, Volume, create, explain, identify, open, open_files

__all__ = [
    "Cancelled", "Damaged", "Error", "File", "Files", "InUse", "Misuse", "NotThisFormat", "OutOfMemory", "Unsupported", "Volume",
    "WrongCredential", "__version__", "create", "explain", "identify", "open", "open_files",
]  # fmt: skip
