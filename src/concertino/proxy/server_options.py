"""ServerOptions: the options of one server in a server file.

They are the keys under `x-concertino` in the server's entry, which other hosts ignore.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, cast, get_args

from msgspec import Struct

from concertino.proxy.auth_options import AuthTexts, read_auth
from concertino.proxy.file_values import FileValue
from concertino.proxy.tool_options import merge_renames, read_tool_changes
from concertino.proxy.value_reader import ValueReader
from concertino.transforms.tool_changes import ToolChange

__all__ = ["GUARD_KEYS", "ISOLATIONS", "OPTION_KEYS", "Isolation", "ServerOptions", "read_options"]

# The isolations of a Proxy (sharing.py), without "shared": for this, a file has the key `shared`.
Isolation = Literal["auto", "principal", "session"]
ISOLATIONS: tuple[str, ...] = get_args(Isolation)


class ServerOptions(Struct, frozen=True, kw_only=True):
    """The options of one server in a server file. Each field is a key under `x-concertino`.

    The defaults are those of a server without such keys.
    allow: patterns for the tools that clients see, such as `read_*`; `prompt:PATTERN` and
        `resource:PATTERN` are for prompts and resources. () to allow all.
    deny: patterns for what clients do not see, even if `allow` matches it.
    rename: the server's name of a tool -> the name that clients see.
    tools: the server's name of a tool -> its changes, such as other texts and arguments.
    prompts_as_tools, resources_as_tools: whether to offer the prompts or resources also by tools
        such as `get_prompt`, for clients that support only tools.
    rate_limit, max_in_flight, timeout_s, max_result_bytes: limits for the calls of tools, as for a
        Guard (guards/guard.py). In the file they and `redact` are in the object `guards`.
    redact: whether to remove secrets from everything that is sent to clients.
    isolation: which clients share a process of the server: "principal" for those of one user,
        "session" for none; "auto" to let the Proxy choose between these two.
    shared: True if all clients share one process, even those of different users. An entry with
        `shared` must not have `isolation`.
    idle_s: the time without calls after which a process is ended, in seconds; None for never.
    ping_s: how often to ping the server, in seconds. If the server then sends nothing for the same
        time, it is started again. None for never.
    heartbeat_s: if the server sends nothing about a call for this time, in seconds, concertino
        sends progress to the client.
    cache: whether clients get the lists of the server's last run until it has started.
    lazy: whether a server whose lists are in the cache is started only when a call needs it.
    pin: whether to withhold tools whose definition has changed since the approval.
    inherit: the names of environment variables that the server gets from this process.
    auth: how concertino obtains an OAuth access token for a server with a `url`: name of a setting
        -> its text; {} to obtain none.
    """

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    rename: Mapping[str, str] = {}
    tools: Mapping[str, ToolChange] = {}
    prompts_as_tools: bool = False
    resources_as_tools: bool = False
    rate_limit: tuple[str, ...] = ()
    max_in_flight: int | None = None
    timeout_s: float | None = None
    max_result_bytes: int | None = None
    redact: bool = False
    isolation: Isolation = "auto"
    idle_s: float | None = None
    ping_s: float | None = None
    heartbeat_s: float = 15.0
    cache: bool = True
    lazy: bool = False
    shared: bool = False
    pin: bool = False
    inherit: tuple[str, ...] = ()
    auth: AuthTexts = {}


# The keys of the object `guards`, and the keys of `x-concertino`.
GUARD_KEYS = ("rate_limit", "max_in_flight", "timeout_s", "max_result_bytes", "redact")
OPTION_KEYS = (
    "allow", "deny", "rename", "tools", "prompts_as_tools", "resources_as_tools", "guards",
    "isolation", "idle_s", "ping_s", "heartbeat_s", "cache", "lazy", "shared", "pin",
    "inherit", "auth",
)  # fmt: skip


def read_options(
    reader: ValueReader,
    value: FileValue,
    label: str,
    defaults: Mapping[str, Any],
) -> ServerOptions:
    """Return the options of a server, from the object under `x-concertino` in its entry.

    reader: checks the types of values and makes the errors, which name the file and the position.
    value: the object.
    label: the path of the object within the file, for errors.
    defaults: field of ServerOptions -> its value if the object does not have it. These values come
        from other keys of the entry, such as `disabled_tools`.
    Raises InvalidServerFile for a wrong value, and for an unknown key: a misspelt `deny` must not
    allow a tool.
    """
    members = reader.known_members(value, label, OPTION_KEYS)
    fields = dict(defaults)
    for name, member in members.items():
        if name == "guards":
            fields |= _read_guards(reader, member.value, f"{label}.guards")
        else:
            fields[name] = _READERS[name](reader, member.value, f"{label}.{name}")
    options = ServerOptions(**fields)
    try:
        merge_renames(options.tools, options.rename)
    except ValueError as exc:
        raise reader.error(value, f"{label}.tools", str(exc)) from None
    if options.shared and options.isolation != "auto":
        raise reader.error(
            members["shared"],
            f"{label}.shared",
            f"expected no isolation, got {options.isolation!r} too",
        )
    return options


def _read_guards(
    reader: ValueReader,
    value: FileValue,
    label: str,
) -> dict[str, Any]:
    return {
        name: _READERS[name](reader, member.value, f"{label}.{name}")
        for name, member in reader.known_members(value, label, GUARD_KEYS).items()
    }


def _read_rates(
    reader: ValueReader,
    value: FileValue,
    label: str,
) -> tuple[str, ...]:
    """Return rates of the form [GLOB=]CALLS/SECONDS."""
    from concertino.guards.rates import Rate

    rates = reader.texts(value, label)
    for rate in rates:
        try:
            Rate.read(rate)
        except ValueError as exc:
            # reader.error() names the option, so remove the name in this message.
            raise reader.error(value, label, str(exc).removeprefix("rate: ")) from None
    return rates


def _read_globs(
    reader: ValueReader,
    value: FileValue,
    label: str,
) -> tuple[str, ...]:
    """Return patterns of tools, or of prompts and resources after `prompt:` and `resource:`."""
    from concertino.guards.operation_names import Visibility

    globs = reader.texts(value, label)
    try:
        Visibility(globs, ())
    except ValueError as exc:
        # The message begins with `allow: `, because the globs were passed as `allow`. The option
        # may be `deny`, and reader.error() names it.
        raise reader.error(value, label, str(exc).removeprefix("allow: ")) from None
    return globs


def _read_renames(
    reader: ValueReader,
    value: FileValue,
    label: str,
) -> dict[str, str]:
    """Return the new names of tools, by the server's names. Two equal new names are an error."""
    renames = reader.mapping(value, label, reader.text)
    owners: dict[str, str] = {}
    for name, new in renames.items():
        if (other := owners.setdefault(new, name)) != name:
            raise reader.error(value, label, f"both {other!r} and {name!r} would be called {new!r}")
    return renames


def _read_isolation(
    reader: ValueReader,
    value: FileValue,
    label: str,
) -> Isolation:
    return cast("Isolation", reader.choice(value, label, ISOLATIONS))


_READERS: Mapping[str, Callable[[ValueReader, FileValue, str], Any]] = {
    "allow": _read_globs,
    "deny": _read_globs,
    "rename": _read_renames,
    "tools": read_tool_changes,
    "prompts_as_tools": ValueReader.flag,
    "resources_as_tools": ValueReader.flag,
    "rate_limit": _read_rates,
    "max_in_flight": ValueReader.positive_integer,
    "timeout_s": ValueReader.positive_number,
    "max_result_bytes": ValueReader.positive_integer,
    "redact": ValueReader.flag,
    "isolation": _read_isolation,
    "idle_s": ValueReader.positive_number,
    "ping_s": ValueReader.positive_number,
    "heartbeat_s": ValueReader.positive_number,
    "cache": ValueReader.flag,
    "lazy": ValueReader.flag,
    "shared": ValueReader.flag,
    "pin": ValueReader.flag,
    "inherit": ValueReader.texts,
    "auth": read_auth,
}
