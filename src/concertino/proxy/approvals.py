"""Approvals: which servers of a file the user lets run.

A file of servers runs programs, and many people can write one: whoever sends a pull request, or
makes a repository that others clone. So a definition runs only after the user has approved it; see
docs/decisions/0020-approved-servers.md. What was approved is kept in the user's state folder, one
file for each file of servers, with digests of all values.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from msgspec import DecodeError, Struct
from msgspec.json import Decoder, encode, format
from msgspec.structs import replace

from concertino.proxy.definitions import Definition
from concertino.proxy.state_files import (
    UnusableState,
    lock_state,
    read_private,
    read_state_key,
    state_folder,
    write_private,
)

__all__ = ["ApprovalStore", "ApprovedFile", "ToolPins"]

FORMAT = 1


class ToolPins(Struct, frozen=True):
    """The tools of one server, by name, as their JSON.

    approved: None until the server has listed its tools for the first time. seen: those that it
    has listed last, if they are others.
    """

    approved: Mapping[str, str] | None = None
    seen: Mapping[str, str] | None = None


class ApprovedFile(Struct, frozen=True):
    """What is approved of one file of servers. path: of the file. servers, pins: by name."""

    path: str
    servers: Mapping[str, Definition] = {}
    pins: Mapping[str, ToolPins] = {}
    format: int = FORMAT


_decode = Decoder(ApprovedFile).decode


class ApprovalStore:
    """The approvals of this user. folder: where they are; by default the user's state folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self._state = folder or state_folder()
        self.folder = self._state / "approvals"

    def key(self) -> bytes:
        """Return the user's key for digests. Raises UnusableState."""
        return read_state_key(self._state)

    def read(self, path: Path) -> ApprovedFile:
        """Return what is approved of a file; nothing if it was never approved.

        Raises UnusableState.
        """
        stored = self.stored_at(path)
        data = read_private(stored)
        if data is None:
            return ApprovedFile(str(path))
        try:
            approved = _decode(data)
        except DecodeError as exc:
            raise UnusableState(f"{stored}: {exc}; remove it, and approve again") from None
        if approved.format != FORMAT or approved.path != str(path):
            raise UnusableState(
                f"{stored}: expected format {FORMAT} for {path}; remove it, and approve again"
            )
        return approved

    def approve(self, path: Path, definitions: Mapping[str, Definition]) -> None:
        """Let these servers of a file run, and no others, with the tools that they have shown.

        Raises UnusableState.
        """
        with lock_state(self.folder):
            before = self.read(path)
            pins: dict[str, ToolPins] = {}
            for name, definition in definitions.items():
                # Another program has other tools.
                if name in before.pins and before.servers.get(name) == definition:
                    pin = before.pins[name]
                    pins[name] = ToolPins(pin.approved if pin.seen is None else pin.seen)
            self._write(path, ApprovedFile(str(path), definitions, pins))

    def set_pins(
        self,
        path: Path,
        name: str,
        pins: ToolPins,
    ) -> None:
        """Keep the tools of one server. Raises UnusableState."""
        with lock_state(self.folder):
            approved = self.read(path)
            if approved.pins.get(name) != pins:
                self._write(path, replace(approved, pins={**approved.pins, name: pins}))

    def _write(self, path: Path, approved: ApprovedFile) -> None:
        write_private(self.stored_at(path), format(encode(approved), indent=1))

    def stored_at(self, path: Path) -> Path:
        """Return the file that holds the approvals of a file of servers."""
        name = sha256(str(path).encode("utf-8", "surrogateescape")).hexdigest()[:32]
        return self.folder / f"{name}.json"
