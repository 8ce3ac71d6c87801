"""Fuzz targets: what any bytes at all must not break, said so exactly that a machine can search for bytes that do.

A target is a module here with `one(data)`, which raises AssertionError when something is wrong with what the code made of the
bytes (and whatever else escapes is a finding too); `MAX_BYTES`, beyond which inputs are not worth their time; and `TOKENS`,
pieces that a search would be long in finding by itself. `corpus/TARGET/` keeps inputs that reach different code, and each
that once broke something.

    python -m fuzz TARGET FILE...        give these files to a target
    scripts/soak fuzz                    search, guided by coverage (soak/fuzz.py)

The search is not here, and neither is anything that needs more than the package itself to run: tests/fuzz replays the corpus.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

__all__ = ["TARGETS", "Target", "corpus", "target"]

FOLDER = Path(__file__).parent
TARGETS = ("framing", "messages", "session", "arguments", "results", "docstrings", "frames")


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


def corpus(name: str) -> list[Path]:
    """The kept inputs of a target."""
    return sorted(
        path for path in (FOLDER / "corpus" / name).iterdir() if not path.name.startswith(".")
    )
