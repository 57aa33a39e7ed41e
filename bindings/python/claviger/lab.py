"""What the lab has measured, as tables: lists of rows, each a dict. `pandas.DataFrame(rows)` takes them as they are."""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections.abc import Iterable
from typing import Any

Row = dict[str, Any]


class Run:
    """One run of the lab."""

    def __init__(self, contents: dict[str, Any]) -> None:
        #: All of it, as it was written.
        self.contents = contents

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Run:
        """Reads a run's folder, its `run.json`, or that compressed by gzip."""
        path = os.fspath(path)
        if os.path.isdir(path):
            path = os.path.join(path, "run.json")
        opened = gzip.open(path, "rt") if path.endswith(".gz") else open(path)
        with opened as file:
            return cls(json.load(file))

    @property
    def machine(self) -> dict[str, Any]:
        """What it ran on."""
        return dict(self.contents["run"]["machine"])

    def samples(self) -> list[Row]:
        """Every single measurement."""
        passes = self.contents["run"]["passes"]
        about = ("facility", "workload", "round", "position", "at")
        return [
            {**{name: each[name] for name in about}, **measure.pop("case"), **measure}
            for each in passes
            for measure in map(dict, each["measures"])
        ]

    def figures(self) -> list[Row]:
        """What they come to: medians with 95 % intervals from `low` to `high`, and what is lost of the baseline's performance."""
        return [_flat(cell) for cell in self.contents["summary"]["cells"]]

    def ciphers(self) -> list[Row]:
        """The ciphers in memory, in bytes per second."""
        return [dict(cipher) for cipher in self.contents["run"]["ciphers"]]


def _flat(cell: dict[str, Any]) -> Row:
    row = {name: value for name, value in cell.items() if not isinstance(value, (dict, list))}
    loss = cell["loss"] or {}
    named = {"loss": "loss", "low": "loss_low", "high": "loss_high", "verdict": "verdict"}
    return {**row, **cell["case"], **{column: loss.get(name) for name, column in named.items()}}


def published(path: str | os.PathLike[str]) -> list[Row]:
    """Published figures: a file of `crates/lab/data/published`, or what `claviger lab published --csv` prints."""
    with open(path, newline="") as file:
        return [{**row, "value": float(row["value"])} for row in csv.DictReader(file)]


def where(rows: Iterable[Row], **columns: Any) -> list[Row]:
    """The rows that have these values."""
    return [row for row in rows if all(row.get(name) == value for name, value in columns.items())]


def columns(rows: Iterable[Row]) -> dict[str, list[Any]]:
    """The same by column, with None where a row has none."""
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}
