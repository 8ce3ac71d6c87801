"""The keys that hosts write for one server in a server file, and the functions that read them.

    field, read = FIELDS["args"]
    value = read(reader, member.value, "mcpServers.notes.args")

server_file.py reads the files. Each function takes the reader of the file, the value of one key,
and the label of the value, which is its path within the file, for errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from concertino.proxy.file_values import FileValue
from concertino.proxy.value_reader import Template, ValueReader

__all__ = ["DEFAULTS", "FIELDS", "IGNORED_KEYS", "SERVER_KEYS", "TRANSPORT_KEYS"]

# Under the same key, some hosts write a time limit in milliseconds and some in seconds. A number
# below this is taken as seconds, because no host has limits below one second.
LEAST_TIMEOUT_MS = 1000


def _read_args(
    reader: ValueReader,
    value: FileValue,
    label: str,
) -> tuple[Template, ...]:
    return tuple(
        reader.argument(item, f"{label}[{index}]")
        for index, item in enumerate(reader.items(value, label))
    )


def _read_variables(
    reader: ValueReader,
    value: FileValue,
    label: str,
) -> dict[str, Template]:
    """Return environment variables. A variable whose value is null (VS Code) is left out."""
    variables: dict[str, Template] = {}
    for name, member in reader.members(value, label).items():
        if not name or "=" in name or "\0" in name:
            raise reader.error(member, label, f"expected the name of a variable, got {name!r}")
        if member.value.content is not None:
            variables[name] = reader.argument(member.value, f"{label}.{name}")
    return variables


def _read_passed_variables(
    reader: ValueReader,
    value: FileValue,
    label: str,
) -> tuple[str, ...]:
    """Return the names of environment variables that are passed on to the server (Codex).

    Each item is a name, or an object with a `name`.
    """
    names: list[str] = []
    for index, item in enumerate(reader.items(value, label)):
        if isinstance(item.content, Mapping) and "name" in item.content:
            item = item.content["name"].value
        names.append(reader.text(item, f"{label}[{index}]"))
    return tuple(names)


def _read_headers(
    reader: ValueReader,
    value: FileValue,
    label: str,
) -> dict[str, Template]:
    headers = reader.mapping(value, label, reader.template)
    for name, template in headers.items():
        if not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
            raise reader.error(template, label, f"expected the name of a header, got {name!r}")
    return headers


def _read_headers_from_variables(
    reader: ValueReader,
    value: FileValue,
    label: str,
) -> dict[str, Template]:
    """Return headers whose values are the values of environment variables."""
    return {
        name: Template(f"${{{template.text}}}", template.line, template.column)
        for name, template in _read_headers(reader, value, label).items()
    }


def _read_bearer(
    reader: ValueReader,
    value: FileValue,
    label: str,
) -> dict[str, Template]:
    """Return the `Authorization` header with the token in an environment variable."""
    name = reader.text(value, label)
    return {"Authorization": Template(f"Bearer ${{{name}}}", value.line, value.column)}


def _read_inverted_flag(
    reader: ValueReader,
    value: FileValue,
    label: str,
) -> bool:
    """Return the opposite of a flag, for `disabled`."""
    return not reader.flag(value, label)


def _read_timeout(
    reader: ValueReader,
    value: FileValue,
    label: str,
) -> float:
    """Return a time limit in seconds. The file has it in milliseconds or in seconds."""
    number = reader.positive_number(value, label)
    return number / 1000 if number >= LEAST_TIMEOUT_MS else number


def _read_milliseconds(
    reader: ValueReader,
    value: FileValue,
    label: str,
) -> float:
    return reader.positive_number(value, label) / 1000


_Read = Callable[[ValueReader, FileValue, str], Any]
# Key of a server -> the field of ServerEntry, and the function that reads its value.
FIELDS: Mapping[str, tuple[str, _Read]] = {
    "command": ("command", ValueReader.template),
    "args": ("args", _read_args),
    "env": ("env", _read_variables),
    "envFile": ("env_file", ValueReader.template),
    "cwd": ("cwd", ValueReader.template),
    "url": ("url", ValueReader.template),
    "serverUrl": ("url", ValueReader.template),
    "httpUrl": ("url", ValueReader.template),
    "headers": ("headers", _read_headers),
    "http_headers": ("headers", _read_headers),
    "env_http_headers": ("headers", _read_headers_from_variables),
    "bearer_token_env_var": ("headers", _read_bearer),
    "enabled": ("is_enabled", ValueReader.flag),
    "disabled": ("is_enabled", _read_inverted_flag),
    "startup_timeout_sec": ("start_timeout_s", ValueReader.positive_number),
    "startup_timeout_ms": ("start_timeout_s", _read_milliseconds),
    "connectionTimeout": ("start_timeout_s", _read_milliseconds),
}
# Key of a server -> the field of ServerOptions with the same meaning, and the function that reads
# its value. A key under `x-concertino` has precedence.
DEFAULTS: Mapping[str, tuple[str, _Read]] = {
    "timeout": ("timeout_s", _read_timeout),
    "requestTimeout": ("timeout_s", _read_milliseconds),
    "tool_timeout_sec": ("timeout_s", ValueReader.positive_number),
    "includeTools": ("allow", ValueReader.texts),
    "enabled_tools": ("allow", ValueReader.texts),
    "excludeTools": ("deny", ValueReader.texts),
    "disabled_tools": ("deny", ValueReader.texts),
    "env_vars": ("inherit", _read_passed_variables),
}
# The keys that name the transport.
TRANSPORT_KEYS = ("type", "transport", "transportType")
SERVER_KEYS = (*TRANSPORT_KEYS, *FIELDS, *DEFAULTS)
# Keys that only hosts use.
IGNORED_KEYS = frozenset(
    ("alwaysAllow", "autoApprove", "description", "dev", "gallery", "name", "note", "oauth",
     "required", "sandbox", "sandboxEnabled", "scopes", "trust", "version", "$comment")
)  # fmt: skip
