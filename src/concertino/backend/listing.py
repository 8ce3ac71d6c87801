"""Reads lists of a backend, such as the names of its resources, when no client has asked for them.

Three packages use this: composition to find the resources and tools of the composed servers, guards
to find patterns that match no tool, and proxy to find tools that have changed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, cast

from msgspec import Raw, Struct
from msgspec.json import decode, encode

from concertino.backend.caller import DetachedCaller
from concertino.backend.interface import DONE, Backend, Call, ClientFacts, Context
from concertino.backend.methods import LIST_METHODS, ListMethod
from concertino.protocol.pagination import read_all_pages
from concertino.protocol.revisions import MODERN
from concertino.types.results import Level

__all__ = ["decode_page", "list_items", "list_names"]


async def list_names(label: str, backend: Backend, method: str) -> list[str]:
    """Read all pages of a list of a backend, and return the names of its items.

    Resources have their URI in place of a name, and resource templates their URI template.
    label: the name of the backend for errors.
    method: the method that returns the list, such as "resources/list"; a key of LIST_METHODS.
    Raises the exceptions of the backend, and ProtocolError for a list of more than MAX_PAGES pages
    (protocol/pagination.py).
    """
    name_member = LIST_METHODS[method].name_member
    return [getattr(item, name_member) for item in await list_items(label, backend, method)]


async def list_items(label: str, backend: Backend, method: str) -> list[Any]:
    """Read all pages of a list of a backend, and return its items, such as Tools or Resources.

    label: the name of the backend for errors.
    method: the method that returns the list, such as "resources/list"; a key of LIST_METHODS.
    Raises the exceptions of the backend, and ProtocolError for a list of more than MAX_PAGES pages
    (protocol/pagination.py).
    """
    listing = LIST_METHODS[method]

    async def fetch(cursor: str | None) -> Any:
        params = {} if cursor is None else {"cursor": Raw(encode(cursor))}
        # The type checker would ask for the methods that no list may use, such as elicit().
        context = cast("Context", _ListingContext())
        return decode_page(await backend.handle(Call(method, params), context), listing)

    return await read_all_pages(
        f"{label}: {method}", fetch, lambda page: getattr(page, listing.member)
    )


def decode_page(result: Struct | Raw, listing: ListMethod) -> Any:
    """Return the result of a list method as a Struct of `listing.result_type`.

    result: the result of a backend, as such a Struct or as JSON.
    """
    return decode(result, type=listing.result_type) if isinstance(result, Raw) else result


class _ListingContext:
    """The Context of a list call that no client has made. It sends nothing.

    The client is named concertino and speaks the newest revision of MCP. The caller has no
    `principal`, like a client on stdin, so the option `scopes` hides nothing from it. The methods
    that ask a client something are missing, because no list uses them.
    """

    client = ClientFacts("concertino", "", MODERN.name, {})
    principal = None
    caller = DetachedCaller()
    cancelled = False
    meta: Mapping[str, Any] = {}

    def progress(
        self,
        done: float,
        total: float | None = None,
        message: str | None = None,
    ) -> Awaitable[None]:
        return DONE

    def log(
        self,
        level: Level,
        data: object,
        logger: str | None = None,
    ) -> Awaitable[None]:
        return DONE

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        into: Any = None,
    ) -> Any:
        raise RuntimeError("a list must not call tools")
