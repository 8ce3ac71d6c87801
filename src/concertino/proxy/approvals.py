"""Stores which servers of a server file the user has approved.

A server file names programs to run, and other people can write one: they send a pull request, or
publish a repository that others clone. So a server runs only after the user has approved its
definition; see docs/decisions/0021-servers-run-when-approved.md. The approvals are kept in the
user's state directory, one file for each server file, with a digest of each value.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from msgspec import Struct
from msgspec.json import Decoder, encode, format
from msgspec.structs import replace

from concertino.decode_errors import DECODE_ERRORS
from concertino.proxy.definitions import Definition, is_same_definition
from concertino.proxy.state_files import (
    UnusableState,
    lock_state,
    read_private,
    read_state_key,
    state_folder,
    write_private,
)

__all__ = ["ApprovalStore", "ApprovedFile", "ToolPins"]

# The version of the format in which the approvals are stored.
FORMAT = 1


class ToolPins(Struct, frozen=True):
    """The approved tools and the present tools of one server with the option `pin`.

    Tools in `seen` that are not in `approved`, or differ there, are withheld until the user
    approves them. Both fields map the name of a tool to the JSON of its definition.

    approved: the approved tools, at first all tools of the server's first list; None before it.
    seen: all tools of the server's latest list if some of them are withheld; otherwise None.
    """

    approved: Mapping[str, str] | None = None
    seen: Mapping[str, str] | None = None


class ApprovedFile(Struct, frozen=True):
    """Which servers in one server file, such as mcp.json, the user has approved.

    path: the path of the server file.
    servers: name of a server -> its approved definition, which says what program it runs.
    pins: name of a server -> its approved tools, for servers with the option `pin`.
    format: the version of the format in which the approvals are stored.
    """

    path: str
    servers: Mapping[str, Definition] = {}
    pins: Mapping[str, ToolPins] = {}
    format: int = FORMAT


_decode = Decoder(ApprovedFile).decode


class ApprovalStore:
    """Stores which servers in server files, such as mcp.json, this user has approved.

    state: the directory for this program's state; None for `$XDG_STATE_HOME/concertino`. It
        contains the user's key and the directory `approvals`.

    Attributes:
    folder: the directory `approvals`, which has one file for each server file.
    """

    def __init__(self, state: Path | None = None) -> None:
        self._state = state or state_folder()
        self.folder = self._state / "approvals"

    def key(self) -> bytes:
        """Return the user's secret key, which is made at the first use.

        Approvals contain digests of secret values. Without the key, nobody can guess a secret from
        its digest. Raises UnusableState if the file of the key cannot be read or written.
        """
        return read_state_key(self._state)

    def read(self, path: Path) -> ApprovedFile:
        """Return which servers of a server file this user has approved; perhaps none.

        path: the path of the server file without symbolic links (ServerFile.approval_path), as in
            all methods.
        Raises UnusableState if the stored approvals cannot be read.
        """
        stored = self.stored_at(path)
        data = read_private(stored)
        if data is None:
            return ApprovedFile(str(path))
        try:
            approved = _decode(data)
        except DECODE_ERRORS as exc:
            raise UnusableState(f"{stored}: {exc}; remove it, and approve again") from None
        if approved.format != FORMAT or approved.path != str(path):
            raise UnusableState(
                f"{stored}: expected format {FORMAT} for {path}; remove it, and approve again"
            )
        return approved

    def approve(
        self,
        path: Path,
        definitions: Mapping[str, Definition],
        shown: ApprovedFile | None = None,
    ) -> None:
        """Approve these servers of a file, and withdraw the approvals of its other servers.

        For a server with the option `pin`, this also approves its `seen` tools (ToolPins).
        path: the server file.
        definitions: name of a server -> its present definition.
        shown: what read() returned when the user was asked. Tools that a server has listed since
            then are not approved, because the user has not seen them. None to approve the tools
            that record_tools() has stored last.
        Raises UnusableState if the approvals cannot be read or written.
        """
        with lock_state(self.folder):
            before = self.read(path) if shown is None else shown
            pins: dict[str, ToolPins] = {}
            for name, definition in definitions.items():
                # A changed definition may run another program, whose tools have not been approved:
                # then the next list counts as the first.
                if name in before.pins and is_same_definition(before.servers.get(name), definition):
                    # The tools in the server's last list become the approved ones.
                    before_pins = before.pins[name]
                    listed = before_pins.seen
                    pins[name] = ToolPins(before_pins.approved if listed is None else listed)
            self._write(path, ApprovedFile(str(path), definitions, pins))

    def record_tools(
        self,
        path: Path,
        name: str,
        tools: Mapping[str, str],
    ) -> Mapping[str, str]:
        """Store the tools that a server lists now, and return the approved tools: name -> JSON.

        The tools in the server's first list count as approved. Tools that are new or changed in
        later lists are only in the result after the user has approved them with `concertino
        approve`.
        path: the server file.
        name: the name of the server in this file.
        tools: name of a tool -> the JSON of its definition.
        Raises UnusableState if the approvals cannot be read or written.
        """
        with lock_state(self.folder):
            stored = self.read(path)
            before = stored.pins.get(name, ToolPins())
            approved = tools if before.approved is None else before.approved
            is_approved = all(approved.get(tool) == json for tool, json in tools.items())
            pins = ToolPins(approved, None if is_approved else tools)
            if pins != before:
                self._write(path, replace(stored, pins={**stored.pins, name: pins}))
            return approved

    def _write(self, path: Path, approved: ApprovedFile) -> None:
        write_private(self.stored_at(path), format(encode(approved), indent=1))

    def stored_at(self, path: Path) -> Path:
        """Return the path of the file with the approvals for a server file."""
        name = sha256(str(path).encode("utf-8", "surrogateescape")).hexdigest()[:32]
        return self.folder / f"{name}.json"
