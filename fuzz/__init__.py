"""Fuzz targets: what any bytes at all must not break, said so exactly that a machine can search for
bytes that do.

A target is a module here with `one(data)`, which raises AssertionError when something is wrong with
what the code made of the bytes (and whatever else escapes is a finding too); `MAX_BYTES`, beyond
which inputs are not worth their time; and `TOKENS`, pieces that a search would be long in finding
by itself. `corpus/TARGET.txt` keeps inputs that reach different code, and each that once broke
something: one JSON string a line, whose UTF-8 is the input (a byte that is no UTF-8 is an escape
\\udc80 to \\udcff), and comments that start with `#`.

    python -m fuzz TARGET FILE|LINE...   give files, or lines of its corpus, to a target
    scripts/soak fuzz                    search, guided by coverage (soak/fuzz.py)

The search is not here, and neither is anything that needs more than the package itself to run, but
for `http_requests`, which needs httptools and h11. tests/fuzz replays the corpus.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, Protocol, cast

__all__ = ["TARGETS", "Input", "Target", "corpus", "corpus_file", "format_line", "target"]

FOLDER = Path(__file__).parent
TARGETS = (
    "framing",
    "messages",
    "session",
    "arguments",
    "results",
    "docstrings",
    "frames",
    "bridge",
    "http_requests",
)


class Target(Protocol):
    """What a module in this folder has."""

    MAX_BYTES: int
    TOKENS: Sequence[bytes]

    def one(self, data: bytes) -> None:
        """Raise AssertionError if something is wrong with what the code makes of these bytes."""
        ...


def target(name: str) -> Target:
    """One of TARGETS."""
    return cast(Target, import_module(f"fuzz.{name}"))


class Input(NamedTuple):
    """One kept input. line: its number in the file of the corpus, from 1 on."""

    line: int
    data: bytes


def corpus_file(name: str) -> Path:
    """Return the file that keeps the inputs of a target."""
    return FOLDER / "corpus" / f"{name}.txt"


def corpus(name: str) -> list[Input]:
    """Return the kept inputs of a target."""
    lines = corpus_file(name).read_text(encoding="ascii").splitlines()
    return [
        Input(number, json.loads(line).encode("utf-8", "surrogateescape"))
        for number, line in enumerate(lines, 1)
        if not line.startswith("#")
    ]


def format_line(data: bytes) -> str:
    """Return an input as a line of a corpus file, without the newline."""
    return json.dumps(data.decode("utf-8", "surrogateescape"))
