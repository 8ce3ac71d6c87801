"""Subscriptions of 2026-07-28, seen from the client: requests that stay open, and what the server tells on each.

Several may be open at once. A server ends one with a result, a cancel, or both in either order; we end one with a cancel. None has
a time limit but for its acknowledgement. What came before 2026-07-28 needs none of this (client.py).
Spec: 2026-07-28 basic/patterns/subscriptions; basic/patterns/cancellation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder, encode

from concertino.client.channel import Channel
from concertino.client.pending_request import SHOWN
from concertino.errors import ConcertinoError, Disconnected, ProtocolError, TimedOut
from concertino.jsonrpc.messages import Id
from concertino.logs.formats import escape_controls

__all__ = ["ResourceSubscriptions"]

SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
METHOD = "subscriptions/listen"


class _Acknowledged(Struct):
    notifications: dict[str, Any] = {}


_acknowledged = Decoder(_Acknowledged).decode
_members = Decoder(dict[str, Raw]).decode
_id = Decoder(Id).decode


class ResourceSubscriptions:
    """Those of one conversation. params: adds to a request what every one carries."""

    def __init__(
        self, channel: Channel, params: Callable[[bytes], bytes], log: logging.Logger
    ) -> None:
        self._channel = channel
        self._params = params
        self._log = log
        self._open: dict[Id, asyncio.Future[dict[str, Any]]] = {}  # done when it was acknowledged

    async def open(
        self, wanted: Mapping[str, Any], what: str, within_s: float
    ) -> tuple[Id, list[str]]:
        """Open one, and wait until the server has acknowledged it. Returns its id, and what of it the server does not honour.

        what: its name for errors. Raises RpcError, TimedOut, Disconnected, ProtocolError; it is not open then.
        """
        channel = self._channel
        if channel.over:
            raise channel.disconnected(what)
        acknowledged: asyncio.Future[dict[str, Any]] = channel.loop.create_future()
        known: list[int] = []

        def ended(outcome: Raw | Exception) -> None:
            if not known:  # within begin(): it was not even sent
                return
            if isinstance(outcome, Disconnected):
                outcome = channel.disconnected(what)
            self._ended(known[0], outcome if isinstance(outcome, ConcertinoError) else None)

        outgoing = channel.begin(METHOD, self._params(encode({"notifications": wanted})), ended)
        known.append(outgoing.id)
        self._open[outgoing.id] = acknowledged
        try:
            await asyncio.wait(
                [acknowledged], timeout=None if within_s == float("inf") else within_s
            )
            if not acknowledged.done():
                raise channel.explained(TimedOut(f"{what}: not acknowledged within {within_s:g} s"))
            try:
                honoured = acknowledged.result()
            except ProtocolError as why:
                raise ProtocolError(f"{what}: {why}") from None
        except BaseException:
            self.close(outgoing.id)
            if acknowledged.done() and not acknowledged.cancelled():
                acknowledged.exception()  # seen: asyncio would complain of one that nobody has
            raise
        return outgoing.id, [
            name for name, value in wanted.items() if not _covers(honoured.get(name), value)
        ]

    def close(self, id: Id) -> None:
        """End one, and tell the server. What is not open is ignored."""
        if self._open.pop(id, None) is not None:
            self._channel.drop(id, "no longer wanted", tell=True)

    def close_all(self) -> None:
        """End all of them."""
        for id in list(self._open):
            self.close(id)

    def is_open(self, id: Id) -> bool:
        """Whether it is still open."""
        return id in self._open

    def is_told(self, params: Mapping[str, Raw]) -> bool:
        """Whether a notification belongs to one that is open."""
        return _subscription_of(params) in self._open

    def acknowledged(self, params: Mapping[str, Raw]) -> None:
        """The server has acknowledged one."""
        id = _subscription_of(params)
        future = None if id is None else self._open.get(id)
        if future is None or future.done():
            return
        try:
            future.set_result(_acknowledged(encode(params)).notifications)
        except (DecodeError, RecursionError) as why:
            future.set_exception(
                ProtocolError(f"the acknowledgement is not what the protocol says: {why}")
            )

    def cancelled(self, id: Id, reason: str) -> bool:
        """The server cancels one; the result may still come, or has come already. Whether there was one of this id."""
        if id not in self._open:
            return False
        self._channel.drop(id, "ended by the server", tell=False)
        self._ended(id, ProtocolError(escape_controls(reason[:SHOWN])) if reason else None)
        return True

    def _ended(self, id: Id, why: ConcertinoError | None) -> None:
        future = self._open.pop(id, None)
        if future is None:
            return
        if not future.done():
            future.set_exception(
                why or ProtocolError("the server ended the subscription before it was acknowledged")
            )
        elif not isinstance(why, Disconnected):
            self._log.warning(
                "the server ended a subscription%s", "" if why is None else f": {why}"
            )


def _subscription_of(params: Mapping[str, Raw]) -> Id | None:
    try:
        return _id(_members(params["_meta"])[SUBSCRIPTION])
    except (DecodeError, KeyError):
        return None


def _covers(honoured: Any, wanted: Any) -> bool:
    if isinstance(wanted, list):
        return isinstance(honoured, list) and set(map(str, wanted)) <= set(map(str, honoured))  # pyright: ignore[reportUnknownArgumentType]
    return honoured == wanted
