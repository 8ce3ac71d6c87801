"""Where a server is: a command, an address, a Backend in this process, a Connection somebody made. Each can be opened.

["python", "server.py"]         a program, started for this client alone
ServerParameters(...)           the same, with an environment, a folder, other arguments
"unix:/run/my.sock"             a server that listens at a Unix socket
"tcp:127.0.0.1:8000"            ... or at a port
Server(...)                     any Backend, in memory
connection                      any Connection, not yet opened
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from msgspec import Struct

from concertino.backend.interface import Backend
from concertino.errors import Disconnected
from concertino.jsonrpc.limits import Limits
from concertino.logs.formats import escape_controls
from concertino.logs.redact import learn, redactor
from concertino.transports.connection import Connection
from concertino.transports.process import INHERITED, ChildProcess, ShutdownTimeouts, spawn

__all__ = ["OpenTarget", "ServerParameters", "Target", "TargetLocation", "parse_target"]


class ServerParameters(Struct, frozen=True):
    """A program to start.

    command: a name to look for in PATH, or a path; never a line for a shell. args: its arguments. env: variables on top of those
    named in inherit; no others are passed on. cwd: its working directory. ladder: how long its end may take.
    Raises TypeError for fields of other types.
    """

    command: str | os.PathLike[str]
    args: Sequence[str | os.PathLike[str]] = ()
    env: Mapping[str, str] | None = None
    cwd: str | os.PathLike[str] | None = None
    inherit: Sequence[str] = INHERITED
    ladder: ShutdownTimeouts = ShutdownTimeouts()

    def __post_init__(self) -> None:
        """No value is shown: it may be a secret."""
        command, args, cwd = cast("tuple[Any, Any, Any]", (self.command, self.args, self.cwd))
        if not isinstance(command, _WORD):
            raise TypeError(
                f"command: expected a str such as 'python', got {type(command).__name__}"
            )
        if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
            raise TypeError(
                f"args: expected a list of str such as ['server.py'], got {type(args).__name__}"
            )
        for each in cast("Sequence[Any]", args):
            if not isinstance(each, _WORD):
                raise TypeError(
                    f"args: expected a list of str such as ['server.py'], got {type(each).__name__} in it"
                )
        env = cast("Any", self.env or {})
        if not isinstance(env, Mapping):
            raise TypeError(f"env: expected a dict of str, got {type(env).__name__}")
        for name, value in cast("Mapping[Any, Any]", env).items():
            if not isinstance(name, str):
                raise TypeError(f"env: expected a dict of str, got {type(name).__name__} as a name")
            if not isinstance(value, str):
                raise TypeError(
                    f"env: expected a dict of str, got {type(value).__name__} for {name}"
                )
        if cwd is not None and not isinstance(cwd, _WORD):
            raise TypeError(f"cwd: expected a folder, got {type(cwd).__name__}")

    def __repr__(self) -> str:
        """Without the values of env: they may be secrets."""
        env = None if self.env is None else sorted(self.env)
        return f"ServerParameters({self.command!r}, {list(self.args)!r}, env={env!r}, cwd={self.cwd!r})"


_WORD = (str, os.PathLike)
LAUNCHERS = frozenset(
    ("run", "tool", "exec", "dlx", "x", "uv", "uvx", "npx", "python", "python3", "node")
)  # name no server
Target = Sequence[str | os.PathLike[str]] | ServerParameters | str | Backend | Connection


class OpenTarget:
    """A connection to a server, and what must be released with it. child: the process, if we started one."""

    child: ChildProcess | None = None

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    @property
    def exit_status(self) -> int | None:
        """The exit code of the process, or minus the signal that ended it; None while it runs, or if there is none."""
        return None if self.child is None else self.child.exit_status

    def tail(self) -> str:
        """The last 8 KiB of stderr, without secrets, and without what commands a terminal."""
        if self.child is None:
            return ""
        lines = (
            redactor()
            .text(bytes(self.child.tail).decode("utf-8", "backslashreplace"))
            .strip("\n")
            .split("\n")
        )
        return "\n".join(map(escape_controls, lines))

    def how_it_is(self, ended: bool) -> str:
        """Whether the process runs, or how it ended, in words. ended: whether the connection has."""
        assert self.child is not None
        who, status = f"the server (process {self.child.pid})", self.child.exit_status
        if status is None:
            return f"{who} closed its output" if ended else f"{who} is running"
        if status >= 0:
            return f"{who} exited with code {status}"
        import signal

        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        return f"{who} was ended by {name}"

    async def close(self, within_s: float) -> None:
        """Release everything. Bounded."""
        await self.connection.close(within_s)

    def abandon(self) -> None:
        """End the process at once, if there is one, and close() cannot run."""
        if self.child is not None:
            self.child.abandon()


class TargetLocation:
    """A target, understood. name: for logs and errors. again: whether it can be opened more than once."""

    name: str
    again = True

    async def open(self, limits: Limits, stderr: Callable[[bytes], object] | None) -> OpenTarget:
        """Start or connect. Raises SpawnError, or Disconnected when nobody is there."""
        raise NotImplementedError


def parse_target(target: Target) -> TargetLocation:
    """Understand a target. Raises TypeError or ValueError that says what was expected."""
    if isinstance(target, ServerParameters):
        return _Program(target)
    if isinstance(target, str):
        return _address(target)
    if isinstance(target, Sequence):
        words = cast("Sequence[Any]", target)
        if not words or not all(isinstance(word, _WORD) for word in words):
            raise TypeError(f"expected a command such as ['python', 'server.py'], got {target!r}")
        return _Program(ServerParameters(words[0], words[1:]))
    if hasattr(target, "handle") and hasattr(target, "features"):
        return _Backend(cast("Backend", target))
    if hasattr(target, "write") and hasattr(target, "open"):
        return _Given(cast("Connection", target))
    raise TypeError(
        "expected a command (a list), ServerParameters, 'unix:PATH', 'tcp:HOST:PORT', a Server or other Backend, or a "
        f"Connection, got {type(target).__name__}"
    )


def _address(text: str) -> TargetLocation:
    kind, _, rest = text.partition(":")
    if kind == "unix" and rest:
        return _Socket(text, rest, None)
    host, _, port = rest.rpartition(":")
    if kind == "tcp" and host and port.isdecimal() and 0 < int(port) < 65536:
        return _Socket(text, host.removeprefix("[").removesuffix("]"), int(port))
    raise ValueError(
        f"expected unix:PATH or tcp:HOST:PORT, or a command as a list of words, got {text!r}"
    )


class _Program(TargetLocation):
    def __init__(self, parameters: ServerParameters) -> None:
        self._parameters = parameters
        self._words = words = [os.fspath(word) for word in (parameters.command, *parameters.args)]
        # The first word that is a name of something: python server.py -> server, npx -y @scope/thing -> thing, uv run x -> x.
        named = [word for word in words if not word.startswith("-") and "=" not in word] or words
        after = [word for word in named[1:] if os.path.basename(word) not in LAUNCHERS]  # noqa: PTH119
        base = os.path.basename((after or named)[0])  # noqa: PTH119
        self.name = base.partition(".")[0] or base or "server"

    async def open(self, limits: Limits, stderr: Callable[[bytes], object] | None) -> OpenTarget:
        parameters = self._parameters
        learn(parameters.env or {})
        child = spawn(
            self._words,
            env=parameters.env,
            inherit=parameters.inherit,
            cwd=parameters.cwd,
            stderr=stderr,
            limits=limits,
            ladder=parameters.ladder,
        )
        opened = OpenTarget(child)
        opened.child = child
        return opened


class _Socket(TargetLocation):
    def __init__(self, name: str, place: str, port: int | None) -> None:
        self.name = name
        self._place = place
        self._port = port

    async def open(self, limits: Limits, stderr: Callable[[bytes], object] | None) -> OpenTarget:
        from concertino.transports.sockets import connect_tcp, connect_unix

        try:
            if self._port is None:
                return OpenTarget(await connect_unix(self._place, limits))
            return OpenTarget(await connect_tcp(self._place, self._port, limits))
        except (OSError, UnicodeError) as why:  # UnicodeError: a name that no host can have
            raise Disconnected(f"{self.name}: {getattr(why, 'strerror', None) or why}") from why


class _Backend(TargetLocation):
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.name = str(getattr(backend, "name", None) or type(backend).__name__)
        self.again = False

    async def open(self, limits: Limits, stderr: Callable[[bytes], object] | None) -> OpenTarget:
        from concertino.runtime.host import Host
        from concertino.transports.memory import memory_pair

        ours, theirs = memory_pair()
        host = Host(self._backend, limits)
        await host.__aenter__()
        host.attach(theirs)
        return _Hosted(ours, host)


class _Hosted(OpenTarget):
    def __init__(self, connection: Connection, host: Any) -> None:
        super().__init__(connection)
        self._host = host

    async def close(self, within_s: float) -> None:
        await self.connection.close(within_s)
        await self._host.__aexit__(None, None, None)


class _Given(TargetLocation):
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        facts = connection.facts
        self.name = str(facts.get("address") or facts.get("transport") or "connection")
        self.again = False

    async def open(self, limits: Limits, stderr: Callable[[bytes], object] | None) -> OpenTarget:
        return OpenTarget(self._connection)
