"""ForwardingMethods: the methods of Client with which a proxy forwards calls of other clients.

A proxy is a server for its own clients and a Client of another server. It forwards the params of a
call, and returns the result, without decoding either.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Raw

from concertino.client.client_connection import FOREVER
from concertino.client.connection_facts import ConnectionFacts
from concertino.client.pending_request import ForwardedReply, Progress
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

        This client does not answer the questions of a 2026-07-28 server. It returns the
        `input_required` result, with `inputRequests` and `requestState`. The proxy lets the other
        client answer, and forwards the call again: call.answers has the client's answers, and
        call.state has the JSON of `requestState`.

        call: the request of the other client.
        caller: the other client. A 2026-07-28 server gets its name and its capabilities.
        level: the lowest level of the log messages that the other client requests; None for no log
            messages. Servers before 2026-07-28 do not get it.
        timeout_s: how many seconds to wait for the response. Each progress notification restarts
            this time. By default there is no limit: the proxy cancels the task that awaits the
            result, if the other client cancels its call.
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

        This saves the time that a task takes. There is no time limit.

        call: the request of the other client.
        caller: the other client. A 2026-07-28 server gets its name and its capabilities.
        level: the lowest level of the log messages that the other client requests; None for no log
            messages.
        callback: called once, with the ForwardedReply (client/pending_request.py) that this method
            returns, when the response has arrived or the connection has ended; must not raise. It
            may be called before this method returns.
        Returns None, and sends nothing, if the call cannot be sent at once, for example because the
        server is being restarted. Then await forward() instead.
        """
        return self._connection.begin_forward(call, caller, level, callback)
