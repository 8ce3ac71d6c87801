"""ForwardingMethods: the methods of Client with which a proxy forwards calls of other clients.

A proxy is a server for its own clients and a Client of another server. It forwards the params of a
call, and returns the result, without decoding either.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Raw

from concertino.client.connection_facts import ConnectionFacts
from concertino.client.pending_request import FOREVER, ForwardedReply, Progress
from concertino.protocol.call import Call, ClientFacts
from concertino.types.results import Level


class ForwardingMethods(ConnectionFacts):
    """The methods of Client that only proxies call."""

    def forward(
        self,
        call: Call,
        caller: ClientFacts,
        *,
        level: Level | None = None,
        timeout_s: float = FOREVER,
        progress: Progress | None = None,
    ) -> Awaitable[Raw]:
        """Forward the call of another client to the server, and return its result, undecoded.

        The params stay as they are, apart from what the server's revision requires in `_meta`.

        If a 2026-07-28 server asks for input, this method returns the `input_required` result, with
        `inputRequests` and `requestState`. The proxy lets the other client answer, and forwards the
        call again: call.answers then has the client's answers, and call.state has the JSON of
        `requestState`.

        call: the request of the other client.
        caller: the other client, whose name and capabilities a 2026-07-28 server gets.
        level: the lowest level of the log messages that the other client requests; None for no log
            messages. Servers before 2026-07-28 do not get the level.
        timeout_s: how many seconds to wait for the response. Each progress notification restarts
            this time. By default there is no limit.
        progress(done, total, message): a function called for each progress notification of the
            server; None if the other client has not requested progress.
        Raises RpcError for an error response, TimedOut, Disconnected if the server ends, and
        ProtocolError if the response is malformed.
        """
        return self._connection.forward(call, caller, level, timeout_s, progress)

    def begin_forward(
        self,
        call: Call,
        caller: ClientFacts,
        level: Level | None,
        callback: Callable[[Any], object],
    ) -> ForwardedReply | None:
        """Forward the call of another client without a task: pass its outcome to a function.

        There is no time limit.

        call: the request of the other client.
        caller: the other client, whose name and capabilities a 2026-07-28 server gets.
        level: the lowest level of the log messages that the other client requests; None for no log
            messages.
        callback: called once with the returned ForwardedReply (client/pending_request.py), when the
            response has arrived or the connection has ended. It must not raise, and may be called
            before this method returns.
        Returns None, and sends nothing, if the call cannot be sent at once, for example because the
        server is being restarted. Then await forward() instead.
        """
        return self._connection.begin_forward(call, caller, level, callback)
