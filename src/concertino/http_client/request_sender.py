"""RequestSender: sends the HTTP requests of a StreamableHttpConnection.

A RequestSender adds the headers that MCP and the authorization require to each request, and sends
it on an idle connection of its ConnectionPool, or on a new one. If the server refuses the access
token, it obtains another token from the Credentials, and sends the request again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from concertino.errors import AuthorizationError, LoginRequired
from concertino.http_client.credentials import Credentials, Refusal
from concertino.http_client.exchange import ClientExchange, HttpFailure, describe_status
from concertino.http_client.pool import ConnectionPool
from concertino.http_client.pooled_connection import ResponseHead
from concertino.http_client.refusals import describe_refusal
from concertino.http_client.request_encoder import RequestEncoder
from concertino.http_client.server_url import ServerUrl

__all__ = ["RequestSender"]

_log = logging.getLogger("concertino.http_client")


class RequestSender:
    """Sends the requests to one server.

    url: the URL of the server.
    encoder: makes the HTTP requests.
    credentials: the source of the header Authorization; None for requests without it.
    on_failure: called with an exchange and the reason for its failure, if the request cannot be
        sent, and if the server has refused the token and there is no other token.
    """

    def __init__(
        self,
        url: ServerUrl,
        encoder: RequestEncoder,
        credentials: Credentials | None,
        on_failure: Callable[[ClientExchange, HttpFailure], object],
    ) -> None:
        self._url = url
        self._encoder = encoder
        self._credentials = credentials
        self._on_failure = on_failure
        self._pool = ConnectionPool(url)
        # The requests that wait for a connection, a token or the end of a pause.
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def has_credentials(self) -> bool:
        """Whether there are credentials, which may have another token for a refused request."""
        return self._credentials is not None

    async def reach(self) -> None:
        """Open a connection, which the first request will use.

        Raises OSError if the server cannot be reached.
        """
        self._pool.put_back(await self._pool.connect())

    def send(self, exchange: ClientExchange) -> None:
        """Send the request of a new exchange: at once on an idle connection, or else in a task."""
        authorization = "" if self._credentials is None else self._credentials.header()
        if authorization is not None:
            # A request that must not be sent twice needs a connection that was used a moment ago,
            # which the server has very probably not closed.
            connection = self._pool.take(sure=not exchange.is_repeatable)
            if connection is not None:
                exchange.send(connection, self._encode(exchange, authorization), authorization)
                return
        self.send_in_task(exchange)

    def send_in_task(self, exchange: ClientExchange, *, fresh: bool = False) -> None:
        """Start a task that sends the request of an exchange when it has a token and a connection.

        fresh: whether to open a new connection instead of using an idle one.
        """
        self._run(self.connect_and_send(exchange, fresh=fresh))

    def send_later(self, exchange: ClientExchange, delay_s: float) -> None:
        """Send the request of an exchange again after delay_s seconds. Returns at once."""

        async def send() -> None:
            await asyncio.sleep(delay_s)
            if not exchange.is_over:
                await self.connect_and_send(exchange)

        self._run(send())

    def authorize(self, exchange: ClientExchange, head: ResponseHead, body: bytes) -> None:
        """Start a task that obtains another token, and then sends the request again.

        If there is no other token, the task calls on_failure with the refusal as the reason.

        head, body: the head and the body of the response that refuses the request.
        """
        self._run(self._authorize(exchange, head, body))

    async def _authorize(self, exchange: ClientExchange, head: ResponseHead, body: bytes) -> None:
        """Do the work of authorize(), in its task."""
        credentials = self._credentials
        assert credentials is not None
        # The method and the name of the tool, prompt or resource. For each operation, the
        # credentials count the attempts to get more scopes.
        operation = exchange.method
        if exchange.posted is not None:
            params = exchange.posted.envelope.params
            operation += f" {params.name or params.uri or ''}"[:200]
        challenge = head.headers.get("www-authenticate", "")
        text, login = describe_refusal(head, body), ""
        try:
            authorization = await credentials.on_refusal(
                Refusal(head.status, challenge, exchange.authorization, operation)
            )
        except (OSError, AuthorizationError) as exc:
            authorization, text = None, f"{describe_status(head.status)}: {exc}"
            login = exc.command if isinstance(exc, LoginRequired) else ""
        except Exception as exc:
            # The credentials may call a function of the user, which shows the page of a login.
            _log.exception("the login has failed")
            authorization, text = None, f"{describe_status(head.status)}: {exc!r}"
        if exchange.is_over:
            return
        if authorization:
            await self.connect_and_send(exchange, authorization)
        else:
            self._on_failure(exchange, HttpFailure(text, head, login=login))

    async def connect_and_send(
        self, exchange: ClientExchange, authorization: str | None = None, *, fresh: bool = False
    ) -> None:
        """Send the request of an exchange on an idle or a new connection.

        Returns when the request is written, without waiting for the response. Raises nothing: if
        the request cannot be sent, it calls the `on_failure` that was passed to RequestSender.

        authorization: the value of the header Authorization; None to get it from the credentials.
        fresh: whether to open a new connection instead of using an idle one.
        """
        try:
            if authorization is None and self._credentials is not None:
                authorization = self._credentials.header()
                if authorization is None:
                    authorization = await self._credentials.prepare()
            # Take no idle connection that the server may have closed: if that has happened to this
            # request before, it is not sent a third time.
            connection = None if fresh else self._pool.take(sure=True)
            connection = connection or await self._pool.connect()
        except (OSError, ValueError, AuthorizationError) as exc:
            exchange.tries += 1
            self._on_failure(exchange, HttpFailure(f"{self._url.text}: {exc}"))
            return
        if exchange.is_over:
            self._pool.put_back(connection)
        else:
            value = authorization or ""
            exchange.send(connection, self._encode(exchange, value), value)

    def _encode(self, exchange: ClientExchange, authorization: str) -> bytes:
        """Return the HTTP request of an exchange."""
        posted = exchange.posted
        if posted is not None and exchange.kind in ("post", "message"):
            return self._encoder.post(exchange.path, posted.frame, posted.envelope, authorization)
        if exchange.kind == "delete":
            return self._encoder.delete(exchange.path, authorization)
        last_id = "" if exchange.events is None else exchange.events.last_id
        return self._encoder.get(exchange.path, last_id, authorization)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in a task, until stop_waiting() cancels it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def pause(self, paused: bool) -> None:
        """Stop reading responses, or continue. paused: whether to stop."""
        self._pool.pause(paused)

    def stop_waiting(self) -> None:
        """Give up the requests that were not sent yet. on_failure is not called for them."""
        for task in list(self._tasks):
            task.cancel()

    def close(self) -> None:
        """Close all connections, without waiting for responses."""
        self._pool.close()
