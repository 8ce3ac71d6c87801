"""Explains why a command that uses a server has failed, and what the user can do.

`concertino call` and the interactive session call explain_failure() and explain_refusal() with the
error of the Client. The result is a CommandFailure, which has a text, a hint and an exit code.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from concertino.backend.user_errors import ADVICE
from concertino.cli import FAILED, UNREACHABLE, CommandFailure
from concertino.cli.address_hints import suggest_http, suggest_listening, suggest_path
from concertino.cli.call_arguments import Parameters, example_command
from concertino.cli.hanging_start import HangingStart
from concertino.cli.server_options import is_missing
from concertino.cli.suggestions import did_you_mean, suggest_program
from concertino.client.client import Client
from concertino.client.targets import is_address
from concertino.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    RESOURCE_NOT_FOUND,
    ConcertinoError,
    Disconnected,
    NotAServer,
    NotSupported,
    ProtocolError,
    RpcError,
    SpawnError,
    TimedOut,
    unknown_name,
)
from concertino.excerpts import shorten

__all__ = [
    "describe_blocked_loop",
    "describe_missing_parts",
    "describe_traceback",
    "explain_failure",
    "explain_refusal",
]

# Exit codes of the process: no response in time, and a response that is not MCP.
LATE, GARBLED = 4, 5
# (error, its code in JSON, its exit code). The first entry whose class matches is used.
CODES: tuple[tuple[type[ConcertinoError], str, int], ...] = (
    (SpawnError, "unreachable", UNREACHABLE),
    (Disconnected, "unreachable", UNREACHABLE),
    (TimedOut, "timeout", LATE),
    (ProtocolError, "protocol", GARBLED),
    (RpcError, "refused", FAILED),
    (NotSupported, "unsupported", FAILED),
)
# How many characters of a command, and of the end of its stderr, errors quote.
MAX_COMMAND, MAX_STDERR = 100, 2000
HANGING_HINT = (
    "a server answers once its run() is called; put what takes long into a tool or a function of "
    "@server.lifespan"
)
# Kind of operation -> the command that lists it.
LISTS = {"tool": "tools", "prompt": "prompts", "resource": "resources"}


def explain_failure(
    error: ConcertinoError,
    server: Sequence[str],
    path: str,
    connect_s: float,
    *,
    is_open: bool,
) -> CommandFailure:
    """Return the CommandFailure for an error of a command that uses a server, such as `call`.

    For the error response to a request that names a tool, prompt or resource, use
    explain_refusal() instead.

    error: the error that the Client has raised.
    server: the words after `--`, which start the server or are its address.
    path: the PATH in which the server's program was searched.
    connect_s: the time limit for opening the session, in seconds.
    is_open: whether the session was opened before the error.
    """
    if (response := _find_start_failure(error)) is not None:
        return CommandFailure(
            f"the server {response.message}",
            code="unreachable",
            exit_code=UNREACHABLE,
            rpc=_rpc_of(response),
        )
    code, exit_code = next(
        ((code, exit_code) for kind, code, exit_code in CODES if isinstance(error, kind)),
        ("failed", FAILED),
    )
    text, hint = str(error), ""
    if isinstance(error, SpawnError):
        text, hint = _explain_start(error, server, path)
    elif isinstance(error, Disconnected) and not is_open:
        text, hint = _explain_disconnected(error, server)
    elif isinstance(error, TimedOut) and is_open:
        hint = "--timeout-s S waits longer"
    elif isinstance(error, TimedOut):
        text, hint = _explain_late_start(error, server, connect_s)
    elif isinstance(error, NotAServer) and _is_address(server):
        hint = suggest_http(server[0], text)
    elif isinstance(error, NotAServer):
        hint = "write the command of an MCP server after --, such as -- python server.py"
    elif isinstance(error, (ProtocolError, RpcError)):
        hint = _suggest_for_refusal(error, server, is_open=is_open)
    return CommandFailure(text, hint=hint, code=code, exit_code=exit_code, rpc=_rpc_of(error))


def _find_start_failure(error: ConcertinoError) -> RpcError | None:
    """Return the response in which a server says why it cannot start; None for other errors."""
    response = error.__cause__ if isinstance(error, ProtocolError) else error
    if not isinstance(response, RpcError) or response.code != INTERNAL_ERROR:
        return None
    return response if response.message.startswith("cannot start: ") else None


def describe_traceback(stderr: str) -> str:
    """Return a note that names the file and line of the last Python traceback in a server's log.

    If the traceback contains advice that concertino gives for some mistakes, the note quotes the
    advice. Returns "" if the log has no traceback.

    stderr: the log.
    """
    _, found, traceback = stderr.rpartition("Traceback (most recent call last)")
    place = re.search(r'File "([^"]+)", line (\d+)', traceback) if found else None
    if place is None:
        return ""
    path = os.path.relpath(place[1])
    # A file outside of the current directory is named by its whole path.
    if path.startswith(os.pardir):
        path = place[1]
    advice = next((f"; {text}" for text in ADVICE if text in traceback), "")
    return f"the server's log has a traceback from {path}:{place[2]}{advice}; -v shows it"


def describe_blocked_loop(stderr: str) -> str:
    """Return a note with a server's last warning that a call has blocked its event loop.

    Returns "" if there is no such warning.
    stderr: the server's log.
    """
    warnings = re.findall(r"\[WARN\] \[host\] (.* has blocked the event loop .*)", stderr)
    return f"the server warns: {warnings[-1]}" if warnings else ""


def describe_missing_parts(stderr: str) -> list[str]:
    """Return lines that name the parts that a server does not offer now, with the reasons.

    A part is a server or plugin that the server starts, and whose tools it offers as its own.

    stderr: the log of the server, which has the reasons.
    """
    # First the servers that a composition or a server file joins.
    parts = re.findall(r"\[ERROR\] \[composition\] cannot start: (.*)", stderr)
    # A hub, which starts plugins, logs these lines, here without their times:
    #     [WARN] [hub.a] it could not boot: no port; it is started again in 1 s
    #     [ERROR] [hub.b] [main] no such file
    #     [WARN] [hub.b] exit code 1
    #     [INFO] [hub] 1 of 4 plugins run; still starting: c, d
    # The last line comes when each plugin has started or failed, or when the hub waits no longer.
    summary = re.search(
        r"of (?P<count>\d+) plugins run(?:; still starting: (?P<ids>.*))?\n", stderr
    )
    if summary is None:
        return parts
    start = stderr[: summary.start()]
    # The count is that of the enabled plugins. A user may have disabled some on purpose, but hardly
    # all of them.
    if summary["count"] == "0":
        disabled = re.findall(r"(\S+) is not started: enabled is not true\n", start)
        parts += [f"{plugin}: its entry has no `enabled: true`" for plugin in disabled]
    reasons: dict[str, str] = {}
    for plugin, reason in re.findall(r"\[WARN\] \[hub\.(\S+)\] (.*?)(?:; it is .*)?\n", start):
        # Add the last line that the plugin itself has written, which usually says more than the
        # reason. But the reason of a failed boot is complete.
        name = re.escape(plugin)
        lines = re.findall(rf"\[(?:INFO|ERROR)\] \[hub\.{name}\] (?:\[\S+\] )?(.*)\n", start)
        reasons[plugin] = f"{plugin}: {reason}"
        if lines and not reason.startswith("it could not boot:"):
            reasons[plugin] += f": {lines[-1]}"
    if summary["ids"]:
        for plugin in summary["ids"].split(", "):
            reasons.setdefault(plugin, f"{plugin}: it is still starting")
    return [*parts, *reasons.values()]


def _is_address(server: Sequence[str]) -> bool:
    return len(server) == 1 and is_address(server[0])


def _suggest_for_refusal(
    error: ProtocolError | RpcError, server: Sequence[str], *, is_open: bool
) -> str:
    """Return the hint for an error response, or for a response that is not MCP; "" for none."""
    if not is_open and len(server) == 1 and (hint := suggest_path(server[0], str(error))):
        return hint
    return "--trace shows every message" if isinstance(error, ProtocolError) else ""


def _explain_start(error: SpawnError, server: Sequence[str], path: str) -> tuple[str, str]:
    """Return the reason why a program cannot be started, and advice on what to write instead."""
    program = server[0]
    if is_missing(program, path):
        return f"there is no command {program}", suggest_program(server, path)
    if os.sep in program and not os.access(program, os.X_OK):
        return str(error), suggest_program(server, path)
    return str(error), ""


def _explain_disconnected(error: Disconnected, server: Sequence[str]) -> tuple[str, str]:
    """Return why a session could not be opened with a server that has ended, and advice."""
    if _is_address(server):
        return str(error), suggest_listening(server[0], error)
    if error.exit_status is None:
        return str(error), ""
    hint = ""
    if error.stderr.rstrip().endswith("No module named 'concertino'"):
        # Suggest this interpreter, which exists.
        command = shlex.join([sys.executable, *server[1:]])
        hint = f"{server[0]} is a Python without concertino; write -- {command}"
    elif error.exit_status == 0 and not error.stderr:
        hint = "a server runs until its stdin is closed: does it call run()?"
    return _describe_exit(error, server), hint


def _explain_late_start(
    error: TimedOut, server: Sequence[str], connect_s: float
) -> tuple[str, str]:
    """Return what is known about a server that gave no first answer in time, and advice."""
    late = f"{_quote(server)} did not answer within {connect_s:g} s"
    hint = "--connect-timeout-s S waits longer; -v shows what the server writes to stderr"
    if isinstance(error, HangingStart):
        return f"{late}; {error.place}", f"{HANGING_HINT}\n{hint}"
    # The text of TimedOut is `REQUEST; STATE OF THE SERVER`. Keep only the state.
    state = str(error).partition("; ")[2]
    return f"{late}; {state}" if state else late, hint


def _describe_exit(error: Disconnected, server: Sequence[str]) -> str:
    """Return how a server has ended before the session was open, and its last output on stderr."""
    status = error.exit_status or 0
    how = f"exited with code {status}" if status >= 0 else f"was ended by signal {-status}"
    text = f"{_quote(server)} {how} before its first answer"
    if not error.stderr:
        return f"{text}; it wrote nothing to stderr"
    return f"{text}; its stderr ends with:\n{error.stderr[-MAX_STDERR:]}"


def _quote(server: Sequence[str]) -> str:
    return f"`{shorten(shlex.join(server), MAX_COMMAND)}`"


def _rpc_of(error: ConcertinoError) -> Any:
    """Return the error response of the server, for --json; None for any other error."""
    if not isinstance(error, RpcError):
        return None
    rpc: dict[str, Any] = {"code": error.code, "message": error.message}
    return rpc if error.data is None else {**rpc, "data": error.data}


async def explain_refusal(
    client: Client,
    kind: str,
    name: str,
    error: RpcError,
    server: Sequence[str],
) -> CommandFailure:
    """Return the CommandFailure for an error response to a request for a tool, prompt or resource.

    For all other errors, use explain_failure(). This function asks the server for its list of
    tools, prompts or resources, to suggest a similar name.

    client: the open Client.
    kind: "tool", "prompt" or "resource".
    name: the name or URI in the request.
    error: the error response.
    server: the words after `--`, for hints; empty in an interactive session.
    """
    if error.code == METHOD_NOT_FOUND:
        text = f"{name}: the server offers no {LISTS[kind]}: {error}"
        return CommandFailure(text, code="unsupported", exit_code=FAILED, rpc=_rpc_of(error))
    known, accepted = await _list_known(client, kind, name)
    is_unknown = error.code in (INVALID_PARAMS, RESOURCE_NOT_FOUND) and name not in known
    if not is_unknown or not known:
        hint = f"{name} takes {accepted}" if accepted and error.code == INVALID_PARAMS else ""
        code = "not-found" if error.code == RESOURCE_NOT_FOUND else "refused"
        return CommandFailure(
            f"{name}: {error}", hint=hint, code=code, exit_code=FAILED, rpc=_rpc_of(error)
        )
    # The error of a server made with concertino says nothing more than that the name is unknown, so
    # print neither its message nor its data.
    own_error = unknown_name(kind, name)
    is_own_error = (error.message, error.data) == (own_error.message, own_error.data)
    shows_data = not is_own_error and error.data != {"uri": name}
    reason = f" ({error.code})" if is_own_error else f": {error}"
    # Do not say that there is no such resource, because a template may match the URI.
    text = f"{name}: {error}" if kind == "resource" else f"there is no {kind} {name!r}{reason}"
    if kind == "tool" and "://" in name:
        reading = example_command(f"read {shlex.quote(name)}", server)
        suggestion = f"to read a resource: {reading}"
    else:
        suggestion = did_you_mean(name, known)
    listing = f"`{example_command(LISTS[kind], server)}` lists what there is"
    hint = f"{suggestion}\n{listing}" if suggestion else listing
    return CommandFailure(
        text,
        hint=hint,
        code="not-found",
        exit_code=FAILED,
        rpc=_rpc_of(error),
        shows_data=shows_data,
    )


async def _list_known(
    client: Client, kind: str, name: str
) -> tuple[Sequence[str], Parameters | None]:
    """Return the names in one of the server's lists, and the arguments of one of its tools.

    The list of names is empty if the server refuses to list them. The arguments are None if there
    is no such tool, and for prompts and resources.
    kind: the list to read: "tool", "prompt" or "resource".
    name: the name of the tool whose arguments are returned.
    """
    try:
        if kind == "tool":
            tools = await client.list_tools()
            schema = next((tool.input_schema for tool in tools if tool.name == name), None)
            accepted = None if schema is None else Parameters.of_schema(schema)
            return [tool.name for tool in tools], accepted
        if kind == "prompt":
            return [prompt.name for prompt in await client.list_prompts()], None
        resources = [item.uri for item in await client.list_resources()]
        templates = [item.uri_template for item in await client.list_resource_templates()]
        return resources + templates, None
    except ConcertinoError:
        # The server cannot list. Report the first error only.
        return [], None
