"""Targets of a client: a command, an address, a Backend in this process, or a Connection.

["python", "server.py"]   a program, started for this client alone
ServerParameters(...)     the same, with an environment, a working directory and time limits
"unix:/run/my.sock"       a server that listens at a Unix socket
"tcp:127.0.0.1:8000"      a server that listens at a port
Server(...)               any Backend, in memory
connection                any Connection that is not open yet
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from msgspec import Struct

from concertino.backend.interface import Backend
from concertino.client.pending_request import request_ids
from concertino.errors import Disconnected
from concertino.jsonrpc.limits import Limits
from concertino.logs.formats import escape_controls
from concertino.logs.redact import learn, redactor
from concertino.near_names import HintingStructMeta
from concertino.transports.connection import Connection
from concertino.transports.process import INHERITED, ChildProcess, ShutdownTimeouts, spawn

if TYPE_CHECKING:
    from concertino.runtime.host import Host

__all__ = ["OpenTarget", "ServerParameters", "Target", "TargetLocation", "parse_target"]


class ServerParameters(Struct, frozen=True, metaclass=HintingStructMeta):
    """A program to start as a server.

    command: a name that is searched in PATH, or a path; never a line for a shell. args: its
    arguments.
    env: variables in addition to those named in inherit; the program gets no others. cwd: its
    working directory. ladder: how long each step of its shutdown may take.
    Raises TypeError if a field has a wrong type. The message shows no values, which may be secrets.
    """

    command: str | os.PathLike[str]
    args: Sequence[str | os.PathLike[str]] = ()
    env: Mapping[str, str] | None = None
    cwd: str | os.PathLike[str] | None = None
    inherit: Sequence[str] = INHERITED
    ladder: ShutdownTimeouts = ShutdownTimeouts()

    def __post_init__(self) -> None:
        command, cwd = cast("tuple[Any, Any]", (self.command, self.cwd))
        if not isinstance(command, _WORD):
            raise TypeError(
                f"command: expected a str such as 'python', got {type(command).__name__}"
            )
        _check_args(self.args)
        _check_env(self.env or {})
        if cwd is not None and not isinstance(cwd, _WORD):
            raise TypeError(f"cwd: expected a folder, got {type(cwd).__name__}")

    def __repr__(self) -> str:
        # The values of env may be secrets.
        env = None if self.env is None else sorted(self.env)
        args = list(self.args)
        return f"ServerParameters({self.command!r}, {args!r}, env={env!r}, cwd={self.cwd!r})"


def _check_args(args: Any) -> None:
    expected = "args: expected a list of str such as ['server.py'], got"
    if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
        raise TypeError(f"{expected} {type(args).__name__}")
    for arg in cast("Sequence[Any]", args):
        if not isinstance(arg, _WORD):
            raise TypeError(f"{expected} {type(arg).__name__} in it")


def _check_env(env: Any) -> None:
    expected = "env: expected a dict of str, got"
    if not isinstance(env, Mapping):
        raise TypeError(f"{expected} {type(env).__name__}")
    for name, value in cast("Mapping[Any, Any]", env).items():
        if not isinstance(name, str):
            raise TypeError(f"{expected} {type(name).__name__} as a name")
        if not isinstance(value, str):
            raise TypeError(f"{expected} {type(value).__name__} for {name}")


_WORD = (str, os.PathLike)
# Words of a command that start a program and do not name the server.
LAUNCHERS = frozenset(
    ("run", "tool", "exec", "dlx", "x", "uv", "uvx", "npx", "python", "python3", "node")
)
Target = Sequence[str | os.PathLike[str]] | ServerParameters | str | Backend | Connection


class OpenTarget:
    """A connection to a server, and what must be released with it.

    child: the server's process, if this client started one. parameters: how it was started.
    """

    def __init__(
        self,
        connection: Connection,
        child: ChildProcess | None = None,
        parameters: ServerParameters | None = None,
    ) -> None:
        self.connection = connection
        self.child = child
        self.parameters = parameters
        self._release: asyncio.Task[None] | None = None

    @property
    def start_failure(self) -> Exception | None:
        """Return why a Backend in this process has not started; None for any other target."""
        return None

    @property
    def exit_status(self) -> int | None:
        """Return the exit code of the process, or minus the signal that ended it.

        Returns None while it runs, and if there is no process.
        """
        return None if self.child is None else self.child.exit_status

    def tail(self) -> str:
        """Return the last 8 KiB of stderr, without secrets and control characters."""
        if self.child is None:
            return ""
        text = redactor().text(bytes(self.child.tail).decode("utf-8", "backslashreplace"))
        return "\n".join(map(escape_controls, text.strip("\n").split("\n")))

    def describe_process(self, is_ended: bool) -> str:
        """Return a text for users: whether the process runs, or how it ended.

        is_ended: whether the connection has.
        """
        assert self.child is not None
        name, status = f"the server (process {self.child.pid})", self.child.exit_status
        if status is None:
            stream = "output" if self.child.stdout_ended else "input"
            return f"{name} closed its {stream}" if is_ended else f"{name} is running"
        if status >= 0:
            return f"{name} exited with code {status}"
        try:
            return f"{name} was ended by {signal.Signals(-status).name}"
        except ValueError:
            return f"{name} was ended by signal {-status}"

    def describe_withheld(self) -> str:
        """Return which variables the process may lack to reach the network; "" if it needs none."""
        parameters = self.parameters
        # A failure that says nothing about the network is the rule.
        if parameters is None or not (tail := self.tail()):
            return ""
        from concertino.client.withheld_variables import describe_withheld

        return describe_withheld(tail, os.environ, {*parameters.inherit, *(parameters.env or {})})

    def take_unread(self) -> frozenset[int]:
        """Return the ids of the requests that nobody has read, after the end of the connection.

        Nobody can read them later. Without a process, nothing is known and none are returned.
        """
        return frozenset() if self.child is None else request_ids(self.child.take_unread())

    async def close(self, within_s: float) -> None:
        """Release everything. within_s: limits the waiting."""
        await self.connection.close(within_s)

    def release(self, within_s: float) -> asyncio.Task[None]:
        """Start close() as a task and return it; a second call returns the same task.

        Await it through asyncio.shield(): several callers may wait for it.
        """
        if self._release is None:
            loop = asyncio.get_running_loop()
            self._release = loop.create_task(self.close(within_s), name="close a connection")
            self._release.add_done_callback(self._on_released)
        return self._release

    def _on_released(self, release: asyncio.Task[None]) -> None:
        # A loop that ends cancels even tasks that have not begun.
        if release.cancelled():
            self.abandon()

    def abandon(self) -> None:
        """Kill the process at once, if there is one, because close() cannot run."""
        if self.child is not None:
            self.child.abandon()


class TargetLocation(Protocol):
    """A parsed target.

    name: for logs and errors. can_reopen: whether open() may be called again.
    """

    name: str
    can_reopen: bool

    async def open(self, limits: Limits, stderr: Callable[[bytes], object] | None) -> OpenTarget:
        """Start or connect. stderr: called with each chunk of a process's stderr.

        Raises SpawnError, or Disconnected if nobody listens.
        """
        ...


def parse_target(target: Target) -> TargetLocation:
    """Parse a target. Raises TypeError or ValueError that says what was expected."""
    if isinstance(target, ServerParameters):
        return _Program(target)
    if isinstance(target, str):
        return _parse_address(target)
    if isinstance(target, Sequence):
        words = cast("Sequence[Any]", target)
        if not words or not all(isinstance(word, _WORD) for word in words):
            raise TypeError(f"expected a command such as ['python', 'server.py'], got {target!r}")
        return _Program(ServerParameters(words[0], words[1:]))
    other: Any = target
    if isinstance(other, _LooksLikeBackend):
        return _InMemory(cast("Backend", other))
    if isinstance(other, _LooksLikeConnection):
        return _OwnConnection(cast("Connection", other))
    raise TypeError(
        "expected a command (a list), ServerParameters, 'unix:PATH', 'tcp:HOST:PORT', a Server or "
        f"other Backend, or a Connection, got {type(target).__name__}"
    )


@runtime_checkable
class _LooksLikeBackend(Protocol):
    """The members by which a Backend is recognized among the kinds of targets."""

    def handle(self, call: Any, context: Any, /) -> Any: ...
    def features(self) -> Any: ...


@runtime_checkable
class _LooksLikeConnection(Protocol):
    """The members by which a Connection is recognized among the kinds of targets."""

    def open(self, receiver: Any, /) -> None: ...
    def write(self, frame: bytes, request_id: Any, /) -> int: ...


def _parse_address(text: str) -> TargetLocation:
    kind, _, rest = text.partition(":")
    if kind == "unix" and rest:
        return _Socket(text, rest, None)
    host, _, port = rest.rpartition(":")
    if kind == "tcp" and host and port.isdecimal() and 0 < int(port) < 65536:
        return _Socket(text, host.removeprefix("[").removesuffix("]"), int(port))
    raise ValueError(
        f"expected unix:PATH or tcp:HOST:PORT, or a command as a list of words, got {text!r}"
    )


class _Program:
    """A program to start."""

    can_reopen = True

    def __init__(self, parameters: ServerParameters) -> None:
        self._parameters = parameters
        self._command = [os.fspath(word) for word in (parameters.command, *parameters.args)]
        self.name = _server_name(self._command)

    async def open(self, limits: Limits, stderr: Callable[[bytes], object] | None) -> OpenTarget:
        parameters = self._parameters
        # Values of env that look like secrets are redacted from now on.
        learn(parameters.env or {})
        child = spawn(
            self._command,
            env=parameters.env,
            inherit=parameters.inherit,
            cwd=parameters.cwd,
            stderr=stderr,
            limits=limits,
            ladder=parameters.ladder,
        )
        return OpenTarget(child, child, parameters)


def _server_name(command: list[str]) -> str:
    """Return a name for a server, from the first word of its command that is not a launcher.

    `python server.py` is server, `npx -y @scope/thing` is thing, `uv run x` is x.
    """
    names = [word for word in command if not word.startswith("-") and "=" not in word] or command
    bases = [PurePath(word).name for word in names]
    base = next((base for base in bases[1:] if base not in LAUNCHERS), bases[0])
    return base.partition(".")[0] or base or "server"


class _Socket:
    """A server that listens at a Unix socket, or at a TCP port if there is one."""

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
            raise Disconnected(f"{self.name}: {exc.strerror or exc}") from exc
        except UnicodeError as exc:
            # The name cannot be that of a host.
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
    def __init__(self, connection: Connection, host: Host) -> None:
        super().__init__(connection)
        self._host = host

    @property
    def start_failure(self) -> Exception | None:
        failure = self._host.start_failure if self._host.started.done() else None
        # A cancelled start is no failure, and SystemExit would end the client's process.
        return failure if isinstance(failure, Exception) else None

    async def close(self, within_s: float) -> None:
        await self.connection.close(within_s)
        await self._host.__aexit__(None, None, None)


class _OwnConnection:
    """A Connection that the user made."""

    can_reopen = False

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        facts = connection.facts
        self.name = str(facts.get("address") or facts.get("transport") or "connection")

    async def open(self, limits: Limits, stderr: Callable[[bytes], object] | None) -> OpenTarget:
        return OpenTarget(self._connection)
