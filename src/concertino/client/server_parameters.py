"""ServerParameters and HttpParameters: targets of a Client with more than a command or a URL.

    Client(ServerParameters("python", ["server.py"], env={"API_KEY": key}))
    Client(HttpParameters("https://example.com/mcp", {"X-Team": "blue"}))

The classes check their fields. client/targets.py starts the program, or connects to the URL.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

from msgspec import Struct

from concertino.authorization.settings import OAuth
from concertino.near_names import HintingStructMeta
from concertino.transports.process import INHERITED, ShutdownTimeouts

__all__ = ["WORD_TYPES", "HttpParameters", "ServerParameters"]

# The types of the words of a command.
WORD_TYPES = (str, os.PathLike)


class ServerParameters(Struct, frozen=True, metaclass=HintingStructMeta):
    """A program that Client starts as its server.

        Client(ServerParameters("python", ["server.py"], env={"API_KEY": key}))

    command: the path of a program, or its name, which is searched in PATH. No shell is involved.
    args: the arguments of the program.
    env: name -> value of environment variables for the program. The program gets only the variables
        in `env` and `inherit`.
    cwd: the working directory of the program; by default that of this process.
    inherit: the names of the environment variables that the program gets from this process; by
        default a few that most programs need, such as PATH and HOME.
    ladder: how many seconds to wait for the end of the program after each of the three steps of the
        shutdown: closing stdin, SIGTERM and SIGKILL.
    Raises TypeError if a field has a wrong type. The error shows no values of `args` and `env`,
    which may be secrets.
    """

    command: str | os.PathLike[str]
    args: Sequence[str | os.PathLike[str]] = ()
    env: Mapping[str, str] | None = None
    cwd: str | os.PathLike[str] | None = None
    inherit: Sequence[str] = INHERITED
    ladder: ShutdownTimeouts = ShutdownTimeouts()

    def __post_init__(self) -> None:
        command, cwd = cast("tuple[Any, Any]", (self.command, self.cwd))
        if not isinstance(command, WORD_TYPES):
            raise TypeError(
                f"command: expected a str such as 'python', got {type(command).__name__}"
            )
        _check_args(self.args)
        _check_env(self.env or {})
        if cwd is not None and not isinstance(cwd, WORD_TYPES):
            raise TypeError(f"cwd: expected a folder, got {type(cwd).__name__}")

    def __repr__(self) -> str:
        # Show the names in env only, because the values may be secrets.
        env = None if self.env is None else sorted(self.env)
        args = list(self.args)
        return f"ServerParameters({self.command!r}, {args!r}, env={env!r}, cwd={self.cwd!r})"


class HttpParameters(Struct, frozen=True, metaclass=HintingStructMeta):
    """A server that Client reaches by a URL.

        Client(HttpParameters("https://example.com/mcp", {"X-Api-Key": key}))

    url: an http, https, ws or wss URL.
    headers: HTTP headers for each request to the origin of the URL, and to no other origin. Logs do
        not show the value of Authorization.
    auth: how to obtain an access token if the server asks for authorization; None to use the token
        that `concertino login URL` has stored. Not used if `headers` has Authorization.
    """

    url: str
    headers: Mapping[str, str] = {}
    auth: OAuth | None = None

    def __repr__(self) -> str:
        return f"HttpParameters({self.url!r}, headers={sorted(self.headers)!r})"


def _check_args(args: Any) -> None:
    """Raise TypeError unless the value is a list of words. The error does not show the value."""
    expected = "args: expected a list of str such as ['server.py'], got"
    if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
        raise TypeError(f"{expected} {type(args).__name__}")
    for arg in cast("Sequence[Any]", args):
        if not isinstance(arg, WORD_TYPES):
            raise TypeError(f"{expected} {type(arg).__name__} in it")


def _check_env(env: Any) -> None:
    """Raise TypeError unless the value is a dict of strings. The error does not show the values."""
    expected = "env: expected a dict of str, got"
    if not isinstance(env, Mapping):
        raise TypeError(f"{expected} {type(env).__name__}")
    for name, value in cast("Mapping[Any, Any]", env).items():
        if not isinstance(name, str):
            raise TypeError(f"{expected} {type(name).__name__} as a name")
        if not isinstance(value, str):
            raise TypeError(f"{expected} {type(value).__name__} for {name}")
