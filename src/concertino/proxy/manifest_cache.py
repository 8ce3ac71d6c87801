"""ManifestCache: stores the features and lists of a proxy's servers in files.

The stored features and lists of one server are its manifest. With the manifest of a server's last
run, a proxy answers the first requests of a client, such as tools/list, before the server has
started. A file that is damaged, too large, of another user or about another server is ignored.
docs/decisions/0024 says how a server is identified, and what is not stored.
"""

from __future__ import annotations

import hmac
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from msgspec import Raw, Struct
from msgspec.json import decode, encode

from concertino.backend.methods import LIST_METHODS
from concertino.client.server_parameters import ServerParameters
from concertino.decode_errors import DECODE_ERRORS
from concertino.proxy.state_files import (
    UnusableState,
    read_private,
    read_state_key,
    write_private,
)
from concertino.types.results import Implementation
from concertino.user_files import AnyPath, user_folder_path

__all__ = ["MAX_BYTES", "Manifest", "ManifestCache", "ManifestFile", "manifest_folder"]

log = logging.getLogger("concertino.proxy")

# The largest manifest of a server, in bytes.
MAX_BYTES = 2**20
# The version of the file format. It is part of the identity of a server, and so of the name of its
# file: files of another version are not found.
FORMAT = 1


class Manifest(Struct, frozen=True):
    """The features and lists of a server, which a proxy keeps for the server's next run.

    revision: the revision of MCP that the server speaks, such as "2025-06-18".
    info, capabilities, instructions: the values that the server declares.
    lists: method, such as `tools/list` -> the undecoded result, with the items of all pages. A list
        that must not be stored, for example because it is too large, is missing.
    """

    revision: str
    info: Implementation
    capabilities: dict[str, Any]
    instructions: str | None = None
    lists: dict[str, Raw] = {}


class _Stored(Struct, frozen=True):
    """The content of a file.

    identity: a keyed digest of the bytes that identify() returns for the server.
    manifest: the server's features and lists.
    """

    identity: str
    manifest: Manifest


def manifest_folder(environment: Mapping[str, str] = os.environ) -> str:
    """Return `$XDG_CACHE_HOME/concertino/manifests`; by default it is below `~/.cache`."""
    folder = user_folder_path("XDG_CACHE_HOME", ".cache", environment)
    return os.path.join(folder, "concertino", "manifests")


class ManifestCache:
    """Stores the features and lists of this user's servers, one file for each server and user.

    folder: the directory of the files; by default `manifest_folder()`.
    """

    def __init__(self, folder: AnyPath | None = None) -> None:
        self.folder = manifest_folder() if folder is None else os.fspath(folder)

    def file_of(
        self,
        server: ServerParameters,
        era: str,
        principal: bytes,
    ) -> ManifestFile | None:
        """Return the ManifestFile of a server. The file itself need not exist yet.

        server: the command that starts the server.
        era: the revisions that the proxy speaks with the server: "legacy" (up to 2025-11-25),
            "modern" (2026-07-28) or "auto".
        principal: the identity of the user for whom the server works; b"" for an unverified user.
        Returns None if the program of the server is not found, or if the secret key with which the
        files are authenticated cannot be read.
        """
        identity = identify(server, era, principal)
        if identity is None:
            return None
        try:
            key = read_state_key(self.folder)
        except UnusableState as exc:
            log.warning("the features and lists of servers are not cached: %s", exc)
            return None
        digest = hmac.digest(key, identity, "sha256").hex()
        return ManifestFile(os.path.join(self.folder, f"{digest}.json"), digest)


class ManifestFile:
    """The file with the features and lists of one server, as one user sees them.

    path: the path of the file.
    identity: a keyed digest of the bytes that identify() returns for this server and user. A stored
        manifest with another identity is not used.
    """

    def __init__(self, path: str, identity: str) -> None:
        self.path = path
        self._identity = identity

    def read(self) -> Manifest | None:
        """Return the manifest; None if there is no file.

        Raises nothing: if the file cannot be used, logs the reason and returns None.
        """
        try:
            data = read_private(self.path)
            if data is None:
                return None
            if len(data) > MAX_BYTES:
                raise ValueError(f"expected at most {MAX_BYTES} bytes")
            stored = decode(data, type=_Stored)
            if stored.identity != self._identity:
                raise ValueError("it is about another server")
            for method, result in stored.manifest.lists.items():
                # Raises ValidationError if the list has another structure.
                decode(result, type=LIST_METHODS[method].result_type)
        except (UnusableState, ValueError, KeyError, *DECODE_ERRORS) as exc:
            log.info("%s is not used: %s", self.path, exc)
            return None
        return stored.manifest

    def write(self, manifest: Manifest) -> None:
        """Replace the stored manifest. Raises nothing: if the file cannot be written, logs why.

        If the manifest is larger than 1 MiB, the stored one is removed.
        """
        data = encode(_Stored(self._identity, manifest))
        try:
            if len(data) > MAX_BYTES:
                log.info(
                    "the server's features and lists are not cached: they have %d bytes", len(data)
                )
                with suppress(FileNotFoundError):
                    os.unlink(self.path)
            else:
                write_private(self.path, data, lasting=False)
        except (UnusableState, OSError) as exc:
            log.info("the server's features and lists are not cached: %s", exc)


def identify(
    server: ServerParameters,
    era: str,
    principal: bytes,
) -> bytes | None:
    """Return bytes that identify a server and its user; None if its program does not exist.

    The bytes change if the server may have other features or lists. They contain:

    - the command, its arguments and the working directory;
    - the path of the program, its size and the time when it was written;
    - the names, but not the values, of the environment variables in `server.env`, and of the
      inherited ones, unless the server inherits all variables of the proxy;
    - the era and the principal.

    server, era, principal: the same as for ManifestCache.file_of().
    """
    command = os.fspath(server.command)
    variables = server.env or {}
    folder = os.path.join(os.getcwd(), server.cwd or "").rstrip("/") or "/"
    program = _find_program(command, folder, variables.get("PATH") or os.environ.get("PATH", ""))
    if program is None:
        return None
    path, status = program
    # Leave out the values of variables, because secrets change. Leave out the names of a whole
    # environment, because each MCP client and each terminal sets other variables.
    inherits_all = all(name in server.inherit for name in os.environ)
    inherited = () if inherits_all else server.inherit
    names = sorted({*variables, *inherited})
    words = [os.fsencode(word) for word in (command, path, folder, *server.args)]
    facts = (FORMAT, words, status.st_size, status.st_mtime_ns, names, era, principal)
    return encode(facts)


def _find_program(
    command: str,
    folder: str,
    search_path: str,
) -> tuple[str, os.stat_result] | None:
    """Return the path of a program, with links resolved, and its status; None if there is none."""
    folders = [""] if os.sep in command else search_path.split(os.pathsep)
    for place in folders:
        path = os.path.join(folder, place, command)
        try:
            if os.access(path, os.X_OK) and os.path.isfile(path):
                return os.path.realpath(path), os.stat(path)
        except OSError:
            # The file has been removed in the meantime, or its links form a loop.
            continue
    return None
