"""Manifests: what a proxy's server offered when it last ran, so that lists need no running server.

A manifest contains the server's capabilities and its lists, such as the result of tools/list, as
one principal sees them. A principal identifies a verified user; it is b"" for all unverified users.
A manifest is read from the running server in the background. A ManifestCache stores it for the next
run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec import Raw
from msgspec.json import decode, encode

from concertino.backend.interface import ChangeKind
from concertino.backend.methods import LIST_METHODS, ListMethod
from concertino.client.client import Client
from concertino.client.negotiation import Era
from concertino.client.server_parameters import ServerParameters
from concertino.client.targets import Target
from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import METHOD_NOT_FOUND, ConcertinoError, RpcError
from concertino.protocol.pagination import MAX_PAGES
from concertino.protocol.revisions import REVISION_BY_NAME
from concertino.proxy.manifest_cache import MAX_BYTES, Manifest, ManifestCache, ManifestFile

__all__ = ["Manifests", "changed_lists", "describe_differences", "make_manifests"]

log = logging.getLogger("concertino.proxy")

# The lists whose changes since the last run are reported.
LIST_KINDS: tuple[ChangeKind, ...] = ("tools", "prompts", "resources")
# How long reading all lists of the server may take, in seconds.
LISTS_S = 60.0
# How long close() waits for lists that are still being read, in seconds. This way the lists are
# stored even if the session was short, and the end of the proxy is hardly delayed.
END_S = 0.2

# Returns the file for a principal's manifest; None if it must not be stored.
FindFile = Callable[[bytes], ManifestFile | None]
# Called with the old manifest (None if there was none) and the new manifest.
OnLearned = Callable[[Manifest | None, Manifest], object]


class Manifests:
    """Keeps the features and lists (the manifest) of one server from its last run.

    There is a manifest for each principal (verified user), because each may see different lists.
    name: the name of the server, for the log.
    find_file: called with a principal; returns the file for its manifest, or None to keep the
        manifest in memory only.
    is_lazy: whether a server with a manifest is started only when a call needs it.
    """

    def __init__(self, name: str, find_file: FindFile, is_lazy: bool) -> None:
        self.is_lazy = is_lazy
        self._name = name
        self._find_file = find_file
        # Principal whose manifest get() has read -> its file; None if it must not be stored.
        self._files: dict[bytes, ManifestFile | None] = {}
        # Principal -> the manifest; None if there is none.
        self._known: dict[bytes, Manifest | None] = {}
        # Principal -> the task that reads the lists from the server.
        self._learning: dict[bytes, asyncio.Task[None]] = {}

    def get(self, principal: bytes) -> Manifest | None:
        """Return the manifest for a principal; None if there is none.

        principal: the identity of the user for whom the server works; b"" for an unverified user.
        """
        if principal not in self._files:
            file = self._files[principal] = self._find_file(principal)
            self._known[principal] = None if file is None else file.read()
        return self._known[principal]

    def find_list(self, principal: bytes, method: str) -> tuple[str, Raw] | None:
        """Return (revision, result) for a list method; None if the list is not stored.

        `result` is the stored result, undecoded, in the form of the MCP revision `revision`.
        principal: the identity of the user who requests the list.
        method: for example "tools/list".
        Raises RpcError if the server has not declared the capability for the method.
        """
        manifest = self.get(principal)
        if manifest is None:
            return None
        # Most hosts request all lists when they open a session. This error tells them that a list
        # does not exist, before the server has started.
        if _capability_of(method) not in manifest.capabilities:
            raise RpcError(METHOD_NOT_FOUND, f"method not found: {method}")
        result = manifest.lists.get(method)
        return None if result is None else (manifest.revision, result)

    def learn(
        self,
        client: Client,
        principal: bytes,
        on_learned: OnLearned | None = None,
    ) -> None:
        """Begin to read the lists of a running server in the background, to store them.

        Returns at once. Cancels the reading that an earlier call for the same principal has begun.
        client: the Client that is connected to the server.
        principal: as for get().
        on_learned: called with the old manifest (or None) and the new one if they differ.
        """
        previous = self._learning.get(principal)
        if previous is not None:
            previous.cancel()
        self._learning[principal] = asyncio.get_running_loop().create_task(
            self._learn(client, principal, on_learned), name=f"read the lists of {self._name}"
        )

    async def _learn(
        self,
        client: Client,
        principal: bytes,
        on_learned: OnLearned | None,
    ) -> None:
        """Read the features and lists of a running server, and store them if they are new."""
        known = self.get(principal)
        try:
            async with asyncio.timeout(LISTS_S):
                manifest = await read_manifest(client)
        except (ConcertinoError, TimeoutError, *DECODE_ERRORS) as exc:
            log.info("%s: its lists could not be read: %s", self._name, exc)
            return
        if known is not None and encode(known) == encode(manifest):
            return
        self._known[principal] = manifest
        if (file := self._files[principal]) is not None:
            file.write(manifest)
        if on_learned is not None:
            on_learned(known, manifest)

    async def close(self) -> None:
        """Wait at most 0.2 s for the lists that are being read, then stop reading.

        Call this before the server ends.
        """
        # The values show tasks too that learn() starts while this method waits.
        tasks = self._learning.values()
        if tasks:
            await asyncio.wait(tasks, timeout=END_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def read_manifest(client: Client) -> Manifest:
    """Read the manifest of a server: its features, and those of its lists that may be stored.

    client: the Client that is connected to the server.
    Raises DecodeError for a malformed list. A list that the server refuses is left out.
    """
    # Read the features together, before the first `await`: during an `await` the Client may restart
    # the server, which may then have a newer version.
    revision, info, instructions = client.protocol_version, client.server_info, client.instructions
    capabilities = dict(client.capabilities)
    lists: dict[str, Raw] = {}
    for method, listing in LIST_METHODS.items():
        if _capability_of(method) not in capabilities:
            continue
        try:
            result = await _read_list(client, method, listing)
        except ConcertinoError as exc:
            # An expected case: a server with resources may lack resources/templates/list.
            log.debug("%s: %s", method, exc)
            continue
        if result is not None:
            lists[method] = result
    return Manifest(revision, info, capabilities, instructions, lists)


def _capability_of(method: str) -> str:
    """Return the capability of a list method, such as "tools" for "tools/list"."""
    return method.partition("/")[0]


async def _read_list(
    client: Client,
    method: str,
    listing: ListMethod,
) -> Raw | None:
    """Return the result of a list method with the items of all pages; None if it is not stored.

    A list is not stored if its cache scope does not allow a cache for all users, if it is too
    large, or if it has more than MAX_PAGES pages.
    """
    is_modern = REVISION_BY_NAME[client.protocol_version].modern
    # All members of the first page. The result has these members, but the items of all pages.
    first: dict[str, Raw] = {}
    items: list[Raw] = []
    cursor: str | None = None
    size = 0
    for _ in range(MAX_PAGES):
        params = {} if cursor is None else {"cursor": cursor}
        raw: Raw = await client.request(method, params, into=Raw)
        size += len(bytes(raw))
        # Any, because the results of the four list methods have no common base class.
        page: Any = decode(raw, type=listing.result_type)
        # Since 2026-07-28 a list is for one user only, unless its cache scope is "public". Older
        # revisions have no cache scope, but a server may send one.
        is_private = page.cache_scope == "private" or (is_modern and page.cache_scope != "public")
        if is_private or size > MAX_BYTES:
            return None
        members = decode(raw, type=dict[str, Raw])
        first = first or members
        items += decode(members[listing.json_member], type=list[Raw])
        cursor = page.next_cursor
        if cursor is None:
            first.pop("nextCursor", None)
            if "ttlMs" in first:
                # A client must ask again before it reuses the list, because the list is stored
                # until the server runs the next time, and may be outdated then.
                first["ttlMs"] = Raw(b"0")
            return Raw(encode({**first, listing.json_member: items}))
    return None


def describe_differences(known: Manifest, manifest: Manifest) -> list[str]:
    """Return what has changed in the features of a server since its last run, for the log.

    Each item is a phrase such as `version 1.0 -> 1.1` or `instructions`. Returns [] if nothing has
    changed. changed_lists() compares the lists.
    known: the manifest of the last run.
    manifest: the present manifest.
    """
    parts = [
        (f"version {known.info.version} -> {manifest.info.version}", known.info != manifest.info),
        ("revision", known.revision != manifest.revision),
        ("instructions", known.instructions != manifest.instructions),
        ("capabilities", known.capabilities != manifest.capabilities),
    ]
    return [text for text, differs in parts if differs]


def changed_lists(known: Manifest, manifest: Manifest) -> list[ChangeKind]:
    """Return which lists of a server have changed: "tools", "prompts" and "resources".

    The list of resource templates counts as a part of "resources".
    known: the manifest of the last run.
    manifest: the present manifest.
    """
    return [
        kind
        for kind in LIST_KINDS
        if any(
            known.lists.get(method) != manifest.lists.get(method)
            for method in LIST_METHODS
            if method.startswith(kind)
        )
    ]


def make_manifests(
    name: str,
    target: Target,
    era: Era,
    cache: ManifestCache | None,
    lazy: bool,
) -> Manifests | None:
    """Return the Manifests of a server; None if `cache` is None, or if the target is no command.

    name: the name of the server, for the log.
    target: the server, as for Client. Only a command has manifests: it runs a program on this
        machine, and a changed file of the program shows that the server has changed.
    era: which MCP revisions the proxy speaks with the server: "legacy" (up to 2025-11-25), "modern"
        (2026-07-28), or "auto". Each era has its own manifests.
    cache: stores the manifests in files.
    lazy: whether a server with a manifest is started only when a call needs it.
    """
    if cache is None or isinstance(target, str):
        return None
    if not isinstance(target, ServerParameters):
        # A command may be a sequence of words.
        if not isinstance(target, Sequence):
            return None
        target = ServerParameters(target[0], target[1:])
    return Manifests(name, partial(cache.file_of, target, era), lazy)
