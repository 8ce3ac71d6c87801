"""docs/reference: every public name, each of its public members and parameters; and its examples
run.
"""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from docs.pages import DOCS, ROOT, environment, paste, serve, spoken_to
from msgspec.structs import fields

import concertino
from concertino import backend, client, errors, guards, proxy, server, transports, types
from concertino.backend import call_hooks
from concertino.protocol.call_hooks import CallHooks
from concertino.transports import connection

REFERENCE = DOCS / "reference"
PAGES = (
    "server",
    "content",
    "errors",
    "limits",
    "connections",
    "backends",
    "guards",
    "client",
    "plugin",
    "library",
)  # of Python; the others have tests of their own
RECEIVER = {
    name for name in vars(transports.Receiver) if not name.startswith("_")
}  # of a RawClient: not for its users


def sections() -> dict[str, str]:
    """Each heading of the second level, and what stands below it."""
    found: dict[str, str] = {}
    for page in (REFERENCE / f"{name}.md" for name in PAGES):
        for title, body in re.findall(
            r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", page.read_text(), re.MULTILINE | re.DOTALL
        ):
            assert title not in found, f"two sections are called {title}"
            found[title] = re.sub(r"^```.*?^```$", "", body, flags=re.MULTILINE | re.DOTALL)
    return found


SECTIONS = sections()

FACES = [concertino, backend, client, errors, guards, proxy, server, transports]
# Every public name: where users find it, by its name.
PUBLIC = {name: getattr(package, name) for package in FACES for name in package.__all__}
PUBLIC |= {name: getattr(types, name) for name in types.__all__ if name in SECTIONS}


def parameters(of: object) -> list[str]:
    try:
        found = inspect.signature(of).parameters  # type: ignore[arg-type]
    except ValueError:  # an exception without an __init__ of its own
        return []
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [name for name, item in found.items() if name != "self" and item.kind in named]


def is_described(name: str, body: str) -> bool:
    """Whether a name stands in code, at the start of it or as a parameter or a member."""
    return any(re.search(rf"\b{name}\b", code) for code in re.findall(r"`([^`]+)`", body))


def members(of: type) -> list[tuple[str, object]]:
    """Those of a class and of its bases that are not public, but not those of public bases."""
    ours = [item for item in of.__mro__ if item.__module__.startswith("concertino.")]
    public = [item for item in ours if item is not of and item.__name__ in PUBLIC]
    homes = [home for home in ours if not any(issubclass(item, home) for item in public)]
    return [member for home in homes for member in vars(home).items()]


def missing(name: str, of: object) -> list[str]:
    """What the section of a public name does not say."""
    body = SECTIONS[name]
    wanted: list[str] = []
    if not inspect.isclass(of):
        wanted += parameters(of)
    else:
        structs = [item.name for item in fields(of)] if hasattr(of, "__struct_fields__") else []
        wanted += structs
        if not structs and not issubclass(of, Exception) and not getattr(of, "_is_protocol", False):
            wanted += [] if of is concertino.client.RawClient else parameters(of)
        if of is concertino.RpcError:
            wanted += parameters(of)
        for member, value in members(of):
            if (
                member.startswith("_")
                or (of is concertino.client.RawClient and member in RECEIVER)
                or member in structs
                or not hasattr(of, member)
            ):
                continue
            wanted.append(member)
            if callable(value) or isinstance(value, (classmethod, staticmethod)):
                # BackendWrapper forwards what Backend says of these.
                wanted += (
                    []
                    if of is concertino.backend.BackendWrapper
                    else parameters(getattr(of, member))
                )
    if of is concertino.backend.BackendWrapper:
        body += SECTIONS["Backend"]
    if of is concertino.server.Operations:
        # Its tool() takes the options of add_tool(), which the page refers to.
        body += SECTIONS["Server"]
    if of is concertino.backend.ContextWrapper:
        body += SECTIONS["Context"]
    return [item for item in wanted if not is_described(item, body)]


@pytest.mark.parametrize("name", sorted(name for name in PUBLIC if name in SECTIONS))
def test_every_public_name_is_documented_with_its_members_and_parameters(name: str) -> None:
    assert name in SECTIONS, f"docs/reference has no heading `## {name}`"
    assert missing(name, PUBLIC[name]) == []


@pytest.mark.requirement("FR-16")
@pytest.mark.requirement("FR-16", side="client")
@pytest.mark.parametrize("name", ["Connection", "Receiver"])
def test_what_a_transport_has_to_be_is_documented(name: str) -> None:
    assert missing(name, getattr(transports, name)) == []


@pytest.mark.parametrize(
    "protocol",
    [
        connection.SupportsDirectSend,
        connection.SupportsOversizeReports,
        connection.SupportsPolling,
        connection.SupportsSubscriptions,
        call_hooks.SupportsCallStarter,
        call_hooks.SupportsOperationHandlers,
    ],
)
def test_the_optional_interfaces_are_documented(protocol: type) -> None:
    assert missing(protocol.__name__, protocol) == []


def test_the_hooks_of_a_call_are_documented() -> None:
    body = SECTIONS["SupportsCallStarter"]
    names = parameters(call_hooks.CallStarter)
    names += [name for name in vars(CallHooks) if not name.startswith("_")]
    assert [name for name in names if not is_described(name, body)] == []


def test_what_is_missing_would_be_found_out() -> None:
    def invented(colour: str) -> None: ...

    SECTIONS["invented"] = "`invented(shape)`"
    assert missing("invented", invented) == ["colour"]


@pytest.mark.parametrize(
    "name", [name for name in sorted(PUBLIC) if name in SECTIONS and inspect.isclass(PUBLIC[name])]
)
def test_defaults_that_are_shown_are_true(name: str) -> None:
    """In the first line of a section: `Name(parameter=value)`."""
    of = PUBLIC[name]
    shown = re.match(rf"\s*`({name}\(.*\))`", SECTIONS[name])
    if shown is None or "..." in shown[1]:
        return
    if not parameters(of):
        assert "=" not in shown[1]
        return
    written = dict(re.findall(r"(\w+)=(\"[^\"]*\"|[^,)]+)", shown[1]))
    # A Struct's default that is made anew for each shows as <factory>; here they are all empty
    # mappings.
    actual = {
        key: value.default
        for key, value in inspect.signature(of).parameters.items()
        if value.default is not value.empty
    }
    assert written.keys() == actual.keys()
    for key, text in written.items():
        assert text == repr(actual[key]).replace("'", '"').replace("<factory>", "{}"), key


def test_the_limits_are_the_table_of_the_limits() -> None:
    rows = dict(
        re.findall(
            r"^\| `(\w+)` \| ([\d.]+) \|", (REFERENCE / "limits.md").read_text(), re.MULTILINE
        )
    )
    assert {name: float(value) for name, value in rows.items()} == {
        item.name: item.default for item in fields(concertino.Limits)
    }


def test_the_tools_of_every_kind_do_what_the_tables_say(tmp_path: Path) -> None:
    assert paste(REFERENCE / "server.md", tmp_path) == ["kinds.py"]
    moved, refused, report, archive, turned, long = serve(
        ["kinds.py"],
        [
            ("move", {"point": {"x": 1, "y": 2}, "by": 2.5}),
            ("move", {"point": {"x": 1, "y": 2}, "by": 0}),
            ("report", {}),
            ("archive", {}),
            ("reverse", {"text": "abc"}),
            ("reverse", {"text": "a" * 101}),
        ],
        tmp_path,
    )
    assert moved["structuredContent"] == {"x": 3.5, "y": 2.0}
    assert "by: " in refused["content"][0]["text"]
    assert [block["text"] for block in report["content"]] == ["first", "second"]
    assert archive["content"][0]["resource"]["uri"] == "report://2026/all.zip"
    assert turned["content"][0]["text"] == "cba"
    assert long["isError"] is True


def test_a_limit_given_in_code_counts(tmp_path: Path) -> None:
    assert paste(REFERENCE / "limits.md", tmp_path) == ["large.py"]
    text = "x" * (11 * 2**20)  # more than the default lets through
    [length] = serve(["large.py"], [("length", {"text": text})], tmp_path)
    assert length["structuredContent"] == {"result": len(text)}


def test_a_raw_client_speaks_to_a_program_that_it_starts(tmp_path: Path) -> None:
    assert paste(REFERENCE / "connections.md", tmp_path) == ["raw.py"]
    (tmp_path / "server.py").write_text((ROOT / "examples" / "calculator.py").read_text())
    done = subprocess.run(
        [sys.executable, "raw.py"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout == "2024-11-05\n['add']\nexit code 0\n"
    assert "server: " in done.stderr


def test_a_guard_is_served_by_its_name_and_refuses(tmp_path: Path) -> None:
    assert paste(REFERENCE / "backends.md", tmp_path) == ["guarded.py"]
    command = [sys.executable, "-m", "concertino", "serve", "guarded.py:backend"]
    [told], _, _ = spoken_to(command, [("secret", {})], tmp_path)
    assert told["content"][0]["text"] == "42"
    params = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "stranger", "version": "1"},
    }
    stdin = "".join(
        json.dumps({"jsonrpc": "2.0", **message}) + "\n"
        for message in (
            {"id": 0, "method": "initialize", "params": params},
            {"id": 1, "method": "tools/call", "params": {"name": "secret"}},
        )
    )
    done = subprocess.run(
        command,
        input=stdin,
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    [refused] = [
        message for message in map(json.loads, done.stdout.splitlines()) if message["id"] == 1
    ]
    assert refused["error"] == {"code": -32602, "message": "not for you"}


@pytest.mark.parametrize(
    ("annotation", "kinds"),
    [
        ("-> list[str | ImageContent]", ["text", "image"]),
        ("", ["text", "image"]),
        ("-> list", ["text", "image"]),
        ("-> tuple | None", ["text", "image"]),
        ("-> list[object]", ["text", "image"]),
        ("-> list[dict]", ["text"]),
    ],
)
def test_a_list_is_content_if_its_type_says_so_or_says_nothing(
    annotation: str, kinds: list[str], tmp_path: Path
) -> None:
    (tmp_path / "mixed.py").write_text(
        "from concertino import Server, image\nfrom concertino.types import ImageContent\n"
        'server = Server("mixed")\n'
        f"@server.tool\ndef both() {annotation}:\n"
        '    return ["a", image(b"\\x89PNG\\r\\n\\x1a\\n")]\n'
        "server.run()\n"
    )
    [result] = serve(["mixed.py"], [("both", {})], tmp_path)
    assert [block["type"] for block in result["content"]] == kinds


@pytest.mark.parametrize(
    "written",
    re.findall(r"`([^`]+)`", SECTIONS["Schemas from a function"].partition("\nTypes: ")[2]),
)
def test_a_type_that_is_listed_can_be_taken_and_given(written: str) -> None:
    import datetime
    import decimal
    import enum
    import typing
    import uuid

    scope: dict[str, object] = {
        **vars(typing),
        **vars(datetime),
        **vars(decimal),
        **vars(uuid),
        "Enum": enum.Enum("Enum", "a"),
    }
    scope |= {
        "Literal": typing.Literal["a"],
        "Optional": typing.Optional[int],  # noqa: UP045
        "Struct": msgspec.defstruct("S", [("x", int)]),
    }
    scope |= {
        "TypedDict": typing.TypedDict("TD", {"x": int}),
        "NamedTuple": typing.NamedTuple("NT", [("x", int)]),
    }
    for name in written.split():
        server = concertino.Server("types")
        annotation = eval(name, scope)

        def handler(value: object) -> object:
            return value

        handler.__annotations__ = {"value": annotation, "return": annotation}
        server.add_tool(handler)
