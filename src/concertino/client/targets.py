"""Parses targets, which say where the server of a Client is, and opens connections to the servers.

parse_target() returns a TargetLocation. TargetLocation.open() starts the server or connects to it,
and returns an OpenTarget: the Connection, and the process if one was started. A target is one of
these:

    ["python", "server.py"]   a program, started for this client alone
    ServerParameters(...)     the same, with an environment, a working directory and time limits
    "unix:/run/my.sock"       a server that listens at a Unix socket
    "tcp:127.0.0.1:8000"      a server that listens at a port
    "https://example.com/mcp" a server that is reached by a URL
    HttpParameters(...)       the same, with headers for each request
    Server(...)               any Backend (an object that answers requests), in this process
    connection                any Connection that is not open yet
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from concertino.backend.interface import Backend
from concertino.client.pending_request import request_ids
from concertino.client.server_parameters import WORD_TYPES, HttpParameters, ServerParameters
from concertino.client.supervision import Restart
from concertino.errors import Disconnected
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import Id
from concertino.logs.formats import escape_controls
from concertino.logs.redact import learn_named_secrets, redactor
from concertino.transports.addresses import parse_address
from concertino.transports.connection import Connection
from concertino.transports.process import ChildProcess, spawn

if TYPE_CHECKING:
    from concertino.http_client.credentials import Credentials
    from concertino.runtime.host import Host

__all__ = [
    "OpenTarget",
    "Target",
    "TargetLocation",
    "default_restart",
    "is_address",
    "is_tls_error",
    "is_url",
    "parse_target",
]

# How a client replaces an HTTP session that the server has ended. The client gives up when two
# sessions in a row have ended before a response. A request at least 1 s after that tries again.
NEW_SESSION = Restart(first_s=0.05, tries=2, retry_s=1.0)
# Words of a command that start another program, and so do not name the server.
LAUNCHERS = frozenset(
    ("run", "tool", "exec", "dlx", "x", "uv", "uvx", "npx", "python", "python3", "node")
)


class OpenTarget:
    """A connection to a server, and the process of the server if there is one.

    connection: the Connection, which is not open yet.
    child: the server's process; None if this client has started no process.
    parameters: the ServerParameters with which `child` was started; None without a process.
    refused: for a server without a process, a function that returns the ids of the requests that
        the server has certainly not executed; None if that is not known.
    """

    def __init__(
        self,
        connection: Connection,
        child: ChildProcess | None = None,
        parameters: ServerParameters | None = None,
        refused: Callable[[], frozenset[Id]] | None = None,
    ) -> None:
        self.connection = connection
        self.child = child
        self.parameters = parameters
        self._refused = refused
        self._release: asyncio.Task[None] | None = None

    @property
    def start_failure(self) -> Exception | None:
        """Return the exception with which a Backend in this process has failed to start.

        Returns None if the start has not failed, and if the server is not a Backend in this
        process.
        """
        return None

    @property
    def exit_status(self) -> int | None:
        """Return the exit code of the process, or minus the signal that has ended it.

        Returns None while the process runs, and if there is none.
        """
        return None if self.child is None else self.child.exit_status

    def tail(self) -> str:
        """Return the last 8 KiB of the process's stderr, with secrets redacted.

        Control characters are escaped. Returns "" if there is no process.
        """
        if self.child is None:
            return ""
        text = redactor().text(bytes(self.child.tail).decode("utf-8", "backslashreplace"))
        return "\n".join(map(escape_controls, text.strip("\n").split("\n")))

    def describe_process(self, is_ended: bool) -> str:
        """Return a text for errors that says whether the process runs or how it has ended.

        is_ended: whether the connection has ended. If the process still runs, the text then says
            which stream the process has closed.
        """
        assert self.child is not None
        name = f"the server (process {self.child.pid})"
        status = self.child.exit_status
        if status is None and not is_ended:
            return f"{name} is running"
        if status is None:
            return f"{name} closed its {'output' if self.child.stdout_ended else 'input'}"
        if status >= 0:
            return f"{name} exited with code {status}"
        try:
            return f"{name} was ended by {signal.Signals(-status).name}"
        except ValueError:
            return f"{name} was ended by signal {-status}"

    def describe_withheld(self) -> str:
        """Return a sentence that names environment variables which the server may need.

        These are variables of the client's process that configure the network, and that the server
        did not get. Returns "" if there are no such variables, or if the server's stderr shows no
        failure of the network.
        """
        parameters, tail = self.parameters, self.tail()
        if parameters is None or not tail:
            return ""
        from concertino.client.withheld_variables import describe_withheld

        return describe_withheld(tail, os.environ, {*parameters.inherit, *(parameters.env or {})})

    def take_unread(self) -> frozenset[Id]:
        """Return the ids of the requests that the server has certainly not executed.

        A program has not read these requests. An HTTP server has refused them, because their
        session has ended. For other servers, the set is empty. Call this once, after the end of the
        connection: it removes the requests from the program's input.
        """
        if self.child is not None:
            return request_ids(self.child.take_unread())
        return frozenset() if self._refused is None else self._refused()

    async def close(self, within_s: float) -> None:
        """Close the connection, and end the process if there is one.

        within_s: how long to wait until the server has read the buffered output, in seconds.
        """
        await self.connection.close(within_s)

    def release(self, within_s: float) -> asyncio.Task[None]:
        """Return a task that calls close(). The first call starts the task.

        Several callers may wait for the task. Each should await asyncio.shield(task), which does
        not cancel the task if the caller is cancelled.
        within_s: how long to wait until the server has read the buffered output, in seconds.
        """
        if self._release is None:
            loop = asyncio.get_running_loop()
            self._release = loop.create_task(self.close(within_s), name="close a connection")
            self._release.add_done_callback(self._on_released)
        return self._release

    def _on_released(self, release: asyncio.Task[None]) -> None:
        """Kill the process if the task of release() was cancelled."""
        # asyncio.run() cancels all tasks at its end, even those that have not begun. Then close()
        # has not ended the process.
        if release.cancelled():
            self.abandon()

    def abandon(self) -> None:
        """Kill the process at once, if there is one, because close() was cancelled."""
        if self.child is not None:
            self.child.abandon()


@runtime_checkable
class TargetLocation(Protocol):
    """A parsed target, which opens the connection to the server.

    Users of Client may pass an object of their own with these attributes as the target.

    name: a name for logs and errors.
    can_reopen: whether open() may be called again, to restart the server.
    """

    name: str
    can_reopen: bool

    async def open(self, limits: Limits, stderr: Callable[[bytes], object] | None) -> OpenTarget:
        """Start the server or connect to it.

        limits: the limits for the size of a message, and for buffered output.
        stderr: a function that is called with each chunk of the process's stderr; None to ignore
            stderr. Not used if no process is started.
        Raises SpawnError if the program cannot be started, and Disconnected if no server listens at
        the address.
        """
        ...


Target = (
    Sequence[str | os.PathLike[str]]
    | ServerParameters
    | HttpParameters
    | str
    | Backend
    | Connection
    | TargetLocation
)


def parse_target(target: Target) -> TargetLocation:
    """Return the TargetLocation for a target of Client.

    Raises TypeError for a target of the wrong type, and ValueError for an invalid text or URL.
    """
    if isinstance(target, ServerParameters):
        return _Program(target)
    if isinstance(target, HttpParameters):
        return _Remote(target)
    if isinstance(target, str):
        return _Remote(HttpParameters(target)) if is_url(target) else _parse_address(target)
    if isinstance(target, Sequence):
        words = cast("Sequence[Any]", target)
        if not words or not all(isinstance(word, WORD_TYPES) for word in words):
            raise TypeError(f"expected a command such as ['python', 'server.py'], got {target!r}")
        return _Program(ServerParameters(words[0], words[1:]))
    other: Any = target
    if isinstance(other, TargetLocation):
        return other
    if isinstance(other, _LooksLikeBackend):
        return _InMemory(cast("Backend", other))
    if isinstance(other, _LooksLikeConnection):
        return _OwnConnection(cast("Connection", other))
    raise TypeError(
        "expected a command (a list), ServerParameters, a URL, 'unix:PATH', 'tcp:HOST:PORT', a "
        f"Server or other Backend, or a Connection, got {type(target).__name__}"
    )


def default_restart(location: TargetLocation) -> Restart | None:
    """Return the default of the argument `restart` of Client; None to never restart.

    An HTTP server may end a session at any time, for example because it was started again. Then the
    client has to open another session (2025-11-25 basic/transports "Session Management").
    """
    if isinstance(location, _Remote) and location.has_sessions:
        return NEW_SESSION
    return None


def is_address(text: str) -> bool:
    """Return whether a string is the address or URL of a server, and not the name of a program."""
    return text.startswith(("unix:", "tcp:")) or is_url(text)


def is_url(text: str) -> bool:
    """Return whether a string begins as the URL of a server does, such as `https://`."""
    # `https://`, the longest beginning, has 8 characters.
    return text[:8].casefold().startswith(("http://", "https://", "ws://", "wss://"))


@runtime_checkable
class _LooksLikeBackend(Protocol):
    """The methods by which parse_target() recognizes a Backend."""

    def handle(self, call: Any, context: Any, /) -> Any: ...
    def features(self) -> Any: ...


@runtime_checkable
class _LooksLikeConnection(Protocol):
    """The methods by which parse_target() recognizes a Connection."""

    def open(self, receiver: Any, /) -> None: ...
    def write(self, frame: bytes, request_id: Any, /) -> int: ...


def _parse_address(text: str) -> TargetLocation:
    """Parse `unix:PATH` or `tcp:HOST:PORT`.

    Raises ValueError for any other text, with the command or URL that the user has probably meant.
    """
    try:
        address = parse_address(text)
    except ValueError:
        words = text.split()
        command = ["python", *words] if text.endswith(".py") and len(words) == 1 else words
        hint = f"; did you mean {command}?" if len(command) > 1 else ""
        if re.fullmatch(r"[A-Za-z0-9.-]+:[0-9]+(/\S*)?", text):
            hint = f"; did you mean 'http://{text}'?"
        raise ValueError(
            "expected unix:PATH, tcp:HOST:PORT or a URL, or a command as a list of words, "
            f"got {text!r}{hint}"
        ) from None
    if isinstance(address, str):
        return _Socket(text, address, None)
    host, port = address
    return _Socket(text, host, port)


class _Program:
    """A program to start."""

    can_reopen = True

    def __init__(self, parameters: ServerParameters) -> None:
        self._parameters = parameters
        self._command = [os.fspath(word) for word in (parameters.command, *parameters.args)]
        self.name = _server_name(self._command)

    async def open(self, limits: Limits, stderr: Callable[[bytes], object] | None) -> OpenTarget:
        parameters = self._parameters
        # Redact values of `env` that look like secrets, in all logs and errors from now on.
        learn_named_secrets(parameters.env or {})
        child = spawn(
            self._command,
            env=parameters.env,
            inherit=parameters.inherit,
            cwd=parameters.cwd,
            stderr=stderr,
            limits=limits,
            ladder=parameters.ladder,
        )
        return OpenTarget(connection=child, child=child, parameters=parameters)


def _server_name(command: list[str]) -> str:
    """Return a name for the server that a command starts.

    Examples are "server" for `python server.py`, "thing" for `npx -y @scope/thing`, and "x" for
    `uv run x`.
    """
    # Leave out options, values such as `NAME=value`, and words with blanks. The latter are code, as
    # in `python -c CODE` and `sh -c CODE`.
    names = [
        word
        for word in command
        if not word.startswith("-") and "=" not in word and not any(map(str.isspace, word))
    ]
    bases = [os.path.basename(word.rstrip("/")) for word in names or command]
    # The first argument that is not a launcher names the server; if there is none, the program.
    base = next((base for base in bases[1:] if base not in LAUNCHERS), bases[0])
    return base.partition(".")[0] or base or "server"


class _Socket:
    """A server that listens at a Unix socket or at a TCP port.

    name: the target as the user has written it.
    host_or_path: the path of the Unix socket, or the host.
    port: the TCP port; None for a Unix socket.
    """

    can_reopen = True

    def __init__(
        self,
        name: str,
        host_or_path: str,
        port: int | None,
    ) -> None:
        self.name = name
        self._host_or_path = host_or_path
        self._port = port

    async def open(self, limits: Limits, stderr: Callable[[bytes], object] | None) -> OpenTarget:
        from concertino.transports.sockets import connect_tcp, connect_unix

        try:
            if self._port is None:
                return OpenTarget(await connect_unix(self._host_or_path, limits))
            return OpenTarget(await connect_tcp(self._host_or_path, self._port, limits))
        except OSError as exc:
            raise _unreachable(self.name, exc) from exc
        except UnicodeError as exc:
            # The host's name is invalid, for example too long.
            raise Disconnected(f"{self.name}: {exc}") from exc


def _unreachable(name: str, exc: OSError) -> Disconnected:
    """Return the error for a server that cannot be reached.

    name: the address, for the text.
    exc: the error of the socket or of TLS.
    """
    reason = exc.strerror or exc
    # The number of a TLS error is not one of the system's error numbers.
    if is_tls_error(exc):
        # Of a text such as `[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)`, use
        # only the middle.
        text = str(exc)
        middle = text.partition("] ")[2].rpartition(" (_ssl")[0]
        reason = f"TLS: {middle or text}"
    elif exc.errno is not None and exc.errno in errno.errorcode:
        # The texts of asyncio's errors do not say the reason, so use the text of the system.
        reason = os.strerror(exc.errno)
    return Disconnected(f"{name}: {reason}")


def is_tls_error(exc: BaseException | None) -> bool:
    """Return whether an exception is an error of TLS."""
    # If the module was not imported, TLS was not used. Importing it here would take 10 ms.
    ssl = sys.modules.get("ssl")
    return ssl is not None and isinstance(exc, ssl.SSLError)


class _Remote:
    """A server that is reached by a URL.

    Attribute:
    has_sessions: whether the server may have sessions, which it can end. True for HTTP, False for a
        WebSocket.
    """

    can_reopen = True

    def __init__(self, parameters: HttpParameters) -> None:
        # Imported here, because most clients start a program and need no HTTP.
        from concertino.http_client.request_encoder import check_headers
        from concertino.http_client.server_url import parse_url

        self._url = parse_url(parameters.url)
        check_headers(parameters.headers)
        self._parameters = parameters
        self.name = self._url.text
        self.has_sessions = not self._url.is_websocket

    async def open(self, limits: Limits, stderr: Callable[[bytes], object] | None) -> OpenTarget:
        from concertino.authorization.lazy_credentials import LazyCredentials
        from concertino.http_client.connection import StreamableHttpConnection

        headers = self._parameters.headers
        learn_named_secrets(headers)
        credentials = None
        if "authorization" not in map(str.lower, headers):
            credentials = LazyCredentials(self._url.over_http, self._parameters.auth)
        if self._url.is_websocket:
            return await self._open_websocket(limits, credentials)
        connection = StreamableHttpConnection(self._url, limits, headers, credentials)
        try:
            await connection.reach()
        except OSError as exc:
            await connection.close(0)
            raise _unreachable(self.name, exc) from exc
        except ValueError as exc:
            await connection.close(0)
            raise Disconnected(f"{self.name}: {exc}") from exc
        return OpenTarget(connection, refused=connection.refused)

    async def _open_websocket(self, limits: Limits, credentials: Credentials | None) -> OpenTarget:
        from concertino.http_client.websocket import open_websocket

        headers = self._parameters.headers
        try:
            return OpenTarget(await open_websocket(self._url, limits, headers, credentials))
        except OSError as exc:
            raise _unreachable(self.name, exc) from exc
        except ValueError as exc:
            raise Disconnected(f"{self.name}: {exc}") from exc


class _InMemory:
    """A Backend in this process."""

    can_reopen = False

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        name = backend.name if isinstance(backend, _HasName) else None
        self.name = str(name or type(backend).__name__)

    async def open(self, limits: Limits, stderr: Callable[[bytes], object] | None) -> OpenTarget:
        from concertino.runtime.host import Host
        from concertino.transports.memory import memory_pair

        ours, theirs = memory_pair()
        host = Host(self._backend, limits)
        await host.__aenter__()
        host.attach(theirs)
        return _OpenInMemory(ours, host)


@runtime_checkable
class _HasName(Protocol):
    """A Backend with a name, such as Server."""

    @property
    def name(self) -> object: ...


class _OpenInMemory(OpenTarget):
    """The connection to a Backend in this process, and the Host that passes requests to it."""

    def __init__(self, connection: Connection, host: Host) -> None:
        super().__init__(connection)
        self._host = host

    @property
    def start_failure(self) -> Exception | None:
        failure = self._host.start_failure if self._host.started.done() else None
        # Do not return a CancelledError or a SystemExit: raised by Client.open(), it would cancel
        # or end the client's program.
        return failure if isinstance(failure, Exception) else None

    async def close(self, within_s: float) -> None:
        await self.connection.close(within_s)
        await self._host.__aexit__(None, None, None)


class _OwnConnection:
    """A Connection that the user has passed as the target."""

    can_reopen = False

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        facts = connection.facts
        self.name = str(facts.get("address") or facts.get("transport") or "connection")

    async def open(self, limits: Limits, stderr: Callable[[bytes], object] | None) -> OpenTarget:
        return OpenTarget(self._connection)
