"""Allow and deny: what is not allowed is neither listed nor known, whichever way it is
asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from guards.asking import ask_server
from loops import on_a_loop
from msgspec import Raw

from concertino import Context, Guard, Rate, RpcError, Server
from concertino.backend.interface import (
    Call,
    ChangeKind,
    Notifier,
    ServerFeatures,
    SupportsEarlyOpening,
    SupportsHeldOpening,
    opens_with_handshake,
)
from concertino.backend.wrappers import BackendWrapper
from concertino.guards.operation_names import Patterns
from concertino.guards.single_guards import Filter
from concertino.logs import redact
from concertino.types.results import Implementation


def server() -> Server:
    made = Server("s", page_size=2)
    for name in ("read_a", "read_b", "drop_a", "write"):
        made.add_tool(lambda: "done", name=name)
    for name in ("greet", "secret"):

        def prompt(who: str = "x") -> str:
            return who

        made.add_prompt(prompt, name=name)
        made.complete(name, "who")(lambda value: ["one"])
    made.add_resource("notes://public", text="a")
    made.add_resource("notes://private", text="b")

    @made.resource("day://{day}")
    def day(day: str) -> str:
        return day

    return made


def list_names(backend: Any, method: str, member: str, key: str) -> list[str]:
    found: list[str] = []
    params: dict[str, Any] = {}
    while True:
        [page] = ask_server(backend, (method, params))
        found += [each[key] for each in page[member]]
        if "nextCursor" not in page:
            return found
        params = {"cursor": page["nextCursor"]}


def tools(backend: Any) -> list[str]:
    return list_names(backend, "tools/list", "tools", "name")


@pytest.mark.parametrize(
    ("allow", "deny", "seen"),
    [
        ((), (), ["read_a", "read_b", "drop_a", "write"]),
        ("read_*", (), ["read_a", "read_b"]),
        (("read_?", "write"), "read_a", ["read_b", "write"]),
        ((), ("*_a", "tool:write"), ["read_b"]),
        ("READ_*", (), []),
        ("prompt:*", (), ["read_a", "read_b", "drop_a", "write"]),
    ],
)
def test_lists_and_calls_agree(allow: Any, deny: Any, seen: list[str]) -> None:
    backend = Filter(server(), allow, deny)
    assert tools(backend) == seen
    for name in ("read_a", "read_b", "drop_a", "write"):
        [answer] = ask_server(backend, ("tools/call", {"name": name}))
        if name in seen:
            assert answer["content"][0]["text"] == "done"
        else:  # as the server says it of a tool that there is not
            [unknown] = ask_server(server(), ("tools/call", {"name": "nothing"}))
            assert (answer.code, answer.message) == (
                unknown.code,
                unknown.message.replace("nothing", name),
            )
            assert answer.data == {"details": unknown.data["details"].replace("nothing", name)}


def test_prompts_and_their_completion() -> None:
    backend = Filter(server(), deny="prompt:s*")
    assert list_names(backend, "prompts/list", "prompts", "name") == ["greet"]

    def ask(name: str) -> list[Any]:
        ref = {"type": "ref/prompt", "name": name}
        return ask_server(
            backend,
            ("prompts/get", {"name": name}),
            ("completion/complete", {"ref": ref, "argument": {"name": "who", "value": ""}}),
        )

    assert all(isinstance(each, dict) for each in ask("greet"))
    for error in ask("secret"):
        assert (error.code, error.message) == (-32602, "Unknown prompt: secret")


def test_resources_their_templates_and_other_spellings() -> None:
    backend = Filter(
        server(), allow=("resource:notes://*", "resource:day://*"), deny="resource:*private*"
    )
    assert list_names(backend, "resources/list", "resources", "uri") == ["notes://public"]
    assert list_names(backend, "resources/templates/list", "resourceTemplates", "uriTemplate") == [
        "day://{day}"
    ]
    uris = (
        "notes://public",
        "day://monday",
        "notes://private",
        "day://private",
        "day://%70rivate",
        "other://x",
    )
    answers = ask_server(backend, *(("resources/read", {"uri": uri}) for uri in uris))
    assert [isinstance(each, RpcError) for each in answers] == [
        False,
        False,
        True,
        True,
        True,
        True,
    ]
    assert all(error.message == "Resource not found" for error in answers[2:])


def test_a_uri_that_is_allowed_in_one_spelling_alone_is_not_allowed() -> None:
    patterns = Patterns("resource:a://%41*")
    assert patterns.match_any_spelling("resource", "a://%41b")
    assert not patterns.match_all_spellings("resource", "a://%41b")


def test_changes_of_what_nobody_may_see_are_not_told_nor_watched() -> None:
    told: list[str] = []
    watched: list[frozenset[str]] = []

    class Inner:
        async def start(self, outlet: Any) -> None:
            for uri in ("a:1", "b:1"):
                outlet.report_update(uri)
            outlet.report_change("tools")

        async def watch(self, uris: frozenset[str]) -> None:
            watched.append(uris)

    class Up:
        def report_update(self, uri: str) -> None:
            told.append(uri)

        def report_change(self, what: str) -> None:
            told.append(what)

    def finish(work: Any) -> None:
        with pytest.raises(StopIteration):
            work.send(None)

    guard = Filter(Inner(), deny="resource:b:*")
    finish(guard.start(Up()))
    finish(guard.watch(frozenset({"a:1", "b:1"})))
    assert told == ["a:1", "tools"]
    assert watched == [frozenset({"a:1"})]


@pytest.mark.parametrize(
    "pattern", ["prompts:*", "notes://private*", "Resource:a", "prompt:", ["drop_*", "tools:x"]]
)
def test_a_pattern_that_would_hide_nothing_is_refused(pattern: Any) -> None:
    with pytest.raises(ValueError, match=r"expected tool:, prompt: or resource: before"):
        Filter(server(), deny=pattern)


def test_a_tool_of_another_server_may_have_a_colon_in_its_name() -> None:
    assert Patterns("tool:shop:*").match("tool", "shop:price")


@pytest.mark.parametrize(
    "settings", [{"rate_limit": 5}, {"allow": 5}, {"deny": None}, {"match": 5}]
)
def test_what_is_neither_one_nor_several_is_named(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"got (5|None)"):
        Guard(server(), **settings)


@pytest.mark.parametrize("pattern", ["", 5])
def test_what_is_no_pattern_is_refused(pattern: Any) -> None:
    with pytest.raises(ValueError, match="expected a glob"):
        Patterns((pattern,))


TOPIC = {"name": "topic", "value": ""}


@pytest.mark.parametrize(
    ("settings", "method", "params"),
    [
        ({"rate_limit": Rate(1, 60, "prompt:*", shared=True)}, "prompts/get", {"name": "#"}),
        (
            {"rate_limit": Rate(1, 60, "resource:*", shared=True)},
            "resources/read",
            {"uri": "notes://#"},
        ),
        ({"rate_limit": Rate(1, 60, shared=True)}, "tools/call", {"name": "#"}),
        ({"deny": "*"}, "tools/call", {"name": "#"}),
        ({"deny": "resource:*"}, "resources/read", {"uri": "notes://#"}),
        (
            {"deny": "prompt:*"},
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "#"}, "argument": TOPIC},
        ),
        (
            {},
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "#"}, "argument": TOPIC},
        ),
    ],
)
def test_no_refusal_repeats_a_secret_that_was_named(
    settings: dict[str, Any], method: str, params: Any
) -> None:
    canary = "sk-canary-7f3a91"
    request = method, json.loads(json.dumps(params).replace("#", canary))
    redact.refresh({"CANARY_TOKEN": canary})
    try:
        answers = ask_server(Guard(server(), redact=True, **settings), request, request)
    finally:
        redact.refresh()
    said = [
        json.dumps(each.data) + str(each) if isinstance(each, RpcError) else json.dumps(each)
        for each in answers
    ]
    assert [canary in each for each in said] == [False, False]
    assert all("[REDACTED]" in each for each in said)


@pytest.mark.parametrize("redact", ["yes", 1, None])
def test_whether_to_redact_is_said_by_a_bool(redact: Any) -> None:
    with pytest.raises(ValueError, match=f"^redact: expected True or False, got {redact!r}$"):
        Guard(Server("s"), redact=redact)


class Foreign:
    """A backend that gives the list of another server, with a member that nobody knows."""

    PAGE = (
        b'{"tools":[{"name":"read","inputSchema":{"type":"object"},"x.example/cost":1.50},'
        b'{"name":"drop","inputSchema":{"type":"object"}}],"x.example/page":2}'
    )

    async def start(self, outlet: Any) -> None: ...
    async def watch(self, uris: frozenset[str]) -> None: ...
    async def close(self) -> None: ...

    def features(self) -> ServerFeatures:
        return ServerFeatures(Implementation("foreign", "1"), tools=True)

    async def handle(self, call: Call, context: Context) -> Raw:
        return Raw(self.PAGE)


@pytest.mark.parametrize(
    ("deny", "expected"),
    [
        ("nothing", Foreign.PAGE),
        (
            "drop",
            b'{"tools":[{"name":"read","inputSchema":{"type":"object"},"x.example/cost":1.50}],'
            b'"x.example/page":2}',
        ),
    ],
)
@on_a_loop
async def test_the_visible_tools_of_another_server_stay_as_they_are(
    deny: str, expected: bytes
) -> None:
    context: Any = None
    listed = await Guard(Foreign(), deny=deny).handle(Call("tools/list"), context)
    assert bytes(listed) == expected


@on_a_loop
async def test_a_backend_behind_a_filter_can_open_sessions_before_it_has_started() -> None:
    calls: list[object] = []

    class Outlet:
        """The Notifier of a server's Host, with the methods of the optional Protocols."""

        def report_change(self, what: ChangeKind) -> None:
            calls.append(what)

        def report_update(self, uri: str) -> None:
            calls.append(uri)

        def open_early(self) -> None:
            calls.append("early")

        def hold_opening(self, within_s: float, describe: Callable[[], str]) -> None:
            calls.append(within_s)

        async def opens_with_handshake(self, within_s: float) -> bool:
            return True

    class Slow(BackendWrapper):
        async def start(self, outlet: Notifier) -> None:
            assert isinstance(outlet, SupportsEarlyOpening)
            assert isinstance(outlet, SupportsHeldOpening)
            outlet.open_early()
            outlet.hold_opening(2.0, str)
            calls.append(await opens_with_handshake(outlet, 1.0))
            outlet.report_change("tools")
            outlet.report_update("note:seen")
            outlet.report_update("secret:hidden")

    guard = Filter(Slow(Server("x")), deny="resource:secret:*")
    await guard.start(Outlet())
    assert calls == ["early", 2.0, True, "tools", "note:seen"]
