"""RedirectListener: gets the response to a login from the browser, at a port of this machine.

It takes one answer on one path. Requests that do not answer the login, as any web page can send
them here, are refused, and do not end the wait.
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
WITHIN_S = 300.0
HEAD_WITHIN_S = 10.0
MAX_HEAD_BYTES = 16 * 1024
MAX_CONNECTIONS = 16
DONE = "Logged in. You can close this page and return to the terminal."
REFUSED = "This is not the answer to the login that is under way."


class RedirectListener:
    """Listens at a port of this machine. Use it with `async with`.

    port: the port to use if it is free, so that a registration with it stays valid; 0 for any.
    """

    def __init__(self, port: int = 0) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._expects: Callable[[str], bool] | None = None
        self._address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._connections = 0

    @property
    def redirect_uri(self) -> str:
        """Return the redirect URI, which leads the browser to this listener."""
        return f"http://127.0.0.1:{self._port}{PATH}"

    async def __aenter__(self) -> RedirectListener:
        try:
            self._server = await self._listen(self._port)
        except OSError:
            # The port that was free at the first login is used by another program.
            self._server = await self._listen(0)
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
        self._address.cancel()

    async def wait(self, expects: Callable[[str], bool], within_s: float = WITHIN_S) -> str:
        """Return the URL that the browser requests after the login.

        expects: returns whether the query of a URL is the response to this login.
        Raises AuthorizationError after within_s.
        """
        self._expects = expects
        try:
            async with asyncio.timeout(within_s):
                return await self._address
        except TimeoutError:
            raise AuthorizationError(f"nobody has logged in within {within_s:.0f} s") from None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._connections >= MAX_CONNECTIONS:
                return
            self._connections += 1
            try:
                await self._answer(reader, writer)
            finally:
                self._connections -= 1
        except (OSError, ValueError, EOFError, asyncio.LimitOverrunError, TimeoutError):
            # A browser that leaves, or another program that sends anything.
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HEAD_WITHIN_S):
            head = await reader.readuntil(b"\r\n\r\n")
        method, target, _ = head.partition(b"\r\n")[0].decode("ascii").split(" ")
        parts = urlsplit(target)
        is_answer = (
            method == "GET"
            and parts.path == PATH
            and self._expects is not None
            and self._expects(parts.query)
            and not self._address.done()
        )
        status = "200 OK" if is_answer else "400 Bad Request"
        body = (DONE if is_answer else REFUSED).encode()
        lines = (
            f"HTTP/1.1 {status}",
            "Content-Type: text/plain; charset=utf-8",
            f"Content-Length: {len(body)}",
            "Cache-Control: no-store",
            # The code stands in the address of this page.
            "Referrer-Policy: no-referrer",
            "Connection: close",
        )
        writer.write("\r\n".join((*lines, "", "")).encode() + body)
        await writer.drain()
        if is_answer:
            self._address.set_result(target)
