"""RedirectListener: receives the response to a login from the user's browser.

It is a small HTTP server at a port of this machine, to which the authorization server redirects the
browser. Any web page can make the browser send requests to this port. So a request that does not
belong to the login is answered with status 400, and the listener goes on waiting.
Source: RFC 8252, sections 7.3 and 8.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from urllib.parse import urlsplit

from concertino.errors import AuthorizationError

__all__ = ["RedirectListener"]

PATH = "/callback"
# How long the user may take to log in, in seconds.
WITHIN_S = 300.0
# How long a browser may take to send the head of its request, in seconds.
HEAD_WITHIN_S = 10.0
# The limits for requests, which any program on this machine may send.
MAX_HEAD_BYTES = 16 * 1024
MAX_CONNECTIONS = 16
DONE = "Logged in. You can close this page and return to the terminal."
REFUSED = "This is not the answer to the login that is under way."


class RedirectListener:
    """Listens at a port of this machine, and receives the redirect at the end of a login.

        async with RedirectListener() as listener:
            request = CodeRequest(..., listener.redirect_uri, ...)
            address = await listener.wait(request.expects)

    port: the port to use; 0 for any free port. If another program uses the port, any free port is
        used. If the client is registered with a redirect URI, pass the port in that URI, so that
        the registration stays valid.
    """

    def __init__(self, port: int = 0) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        # Returns whether the query of a URL belongs to the login; None before wait() is called.
        self._expects: Callable[[str], bool] | None = None
        # A future for the path and query of the response to the login.
        self._answer_url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        # The number of open connections.
        self._connections = 0

    @property
    def redirect_uri(self) -> str:
        """Return the URL of this listener, to which the authorization server redirects the browser.

        Before `async with`, the URL has the wrong port.
        """
        return f"http://127.0.0.1:{self._port}{PATH}"

    async def __aenter__(self) -> RedirectListener:
        try:
            self._server = await self._listen(self._port)
        except OSError:
            # Another program uses the port now.
            self._server = await self._listen(port=0)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def _listen(self, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", port, limit=MAX_HEAD_BYTES)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        self._answer_url.cancel()

    async def wait(self, expects: Callable[[str], bool], within_s: float = WITHIN_S) -> str:
        """Wait for the response to the login, and return the path and query of its URL.

        expects: called with the query of each request; returns whether it belongs to this login.
            All other requests are answered with status 400.
        within_s: how long to wait, in seconds.
        Raises AuthorizationError if no request of this login has come in this time.
        """
        self._expects = expects
        try:
            async with asyncio.timeout(within_s):
                return await self._answer_url
        except TimeoutError:
            raise AuthorizationError(f"nobody has logged in within {within_s:.0f} s") from None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the one request of a connection, and close the connection."""
        try:
            if self._connections >= MAX_CONNECTIONS:
                return
            self._connections += 1
            try:
                await self._answer(reader, writer)
            finally:
                self._connections -= 1
        except (OSError, ValueError, EOFError, asyncio.LimitOverrunError, TimeoutError):
            # The browser has closed the connection, or another program has sent something else than
            # an HTTP request.
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read a request, answer it, and end the wait if it is the response to the login."""
        async with asyncio.timeout(HEAD_WITHIN_S):
            head = await reader.readuntil(b"\r\n\r\n")
        method, target, _ = head.partition(b"\r\n")[0].decode("ascii").split(" ")
        parts = urlsplit(target)
        is_answer = (
            method == "GET"
            and parts.path == PATH
            and self._expects is not None
            and self._expects(parts.query)
            and not self._answer_url.done()
        )
        status = "200 OK" if is_answer else "400 Bad Request"
        body = (DONE if is_answer else REFUSED).encode()
        lines = (
            f"HTTP/1.1 {status}",
            "Content-Type: text/plain; charset=utf-8",
            f"Content-Length: {len(body)}",
            "Cache-Control: no-store",
            # The URL of this page contains the authorization code, which no other page may get.
            "Referrer-Policy: no-referrer",
            "Connection: close",
        )
        writer.write("\r\n".join((*lines, "", "")).encode() + body)
        if is_answer:
            # Not after drain(): meanwhile the wait could end, or another response arrive.
            self._answer_url.set_result(target)
        await writer.drain()
