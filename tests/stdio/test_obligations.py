"""What the specification asks of a server and no other test here shows; against a real process.
requirements.py names each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stdio.harness import INITIALIZED, RUN, Process, call, notification, request, script, text_of

LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
TASKS = "io.modelcontextprotocol/tasks"
TOOLS = """
@server.tool
async def zebra() -> str:
    "Say that it is here."
    return "zebra"

@server.tool(name="apple")
async def first_in_the_alphabet() -> str:
    "Say that it is here."
    return "apple"

@server.tool
async def mole(context: Context) -> str:
    "Say who asks."
    return context.client.name
"""


# Lists of five, in pages of two; and content of several pieces.
PAGES = """
from concertino.types import ResourceContents
server = Server("pages", page_size=2)

for name in ("e", "d", "c", "b", "a"):
    server.add_tool(lambda: "x", name=name)
    server.add_prompt(lambda: "x", name=name)
    server.add_resource(f"test://{name}", text=name)
    server.resource(f"test://{{{name}}}/{name}")(eval(f"lambda {name}: 'x'"))

@server.resource("test://pieces")
def pieces() -> list:
    return [
        ResourceContents("test://pieces/1", text="one"),
        ResourceContents("test://pieces/2", blob=b"\\x00\\xff", mime_type="image/png"),
    ]

@server.prompt
def broken(kind: str) -> str:
    raise ValueError("no good")

@server.prompt
def many(word: str) -> str:
    return word

@server.complete("many", "word")
def words(value: str) -> list[str]:
    return [f"{value}{number:03}" for number in range(150)]

@server.tool
async def edit(uri: str) -> str:
    server.resource_updated(uri)
    return "edited"
"""


def opening(version: str, name: str = "test", **capabilities: Any) -> dict[str, Any]:
    client = {"name": name, "version": "1"}
    return request(
        "open",
        "initialize",
        {"protocolVersion": version, "capabilities": capabilities, "clientInfo": client},
    )


def modern(name: str = "test", **capabilities: Any) -> dict[str, Any]:
    """A `_meta` of 2026-07-28, to be given to request(..., modern=True)."""
    return {
        "io.modelcontextprotocol/clientInfo": {"name": name, "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": capabilities,
    }


def names(answer: Any) -> list[str]:
    return [tool["name"] for tool in answer["result"]["tools"]]


@pytest.mark.requirement("ME-8", "TO-3", "TO-4")
def test_everybody_sees_the_same_tools_in_the_order_in_which_they_were_added(
    tmp_path: Path,
) -> None:
    server = script(tmp_path, TOOLS + RUN)
    expected = ["zebra", "apple", "mole"]
    for version, client in (("2025-11-25", "inspector"), ("2024-11-05", "evil")):
        with Process([server]) as process:
            process.send(opening(version, client), INITIALIZED)
            assert names(process.ask(request(1, "tools/list"))) == expected
            assert (
                text_of(process.ask(call(2, "mole"))) == client
            )  # it knows who asks, and lists the same
            assert names(process.ask(request(3, "tools/list"))) == expected
            listed = [
                process.ask(request(name, "tools/list", {"_meta": modern(name)}, modern=True))[
                    "result"
                ]["tools"]
                for name in ("claude", "evil", "")
            ]
            assert [tool["name"] for tool in listed[0]] == expected
            assert listed[0] == listed[1] == listed[2]


@pytest.mark.requirement("TO-2")
def test_a_server_without_tools_lists_none(tmp_path: Path) -> None:
    with Process([script(tmp_path, RUN)]) as process:
        discovered = process.ask(request(1, "server/discover", modern=True))["result"]
        assert "tools" in discovered["capabilities"]
        assert names(process.ask(request(2, "tools/list", modern=True))) == []
        process.initialize()
        assert names(process.ask(request(3, "tools/list"))) == []


@pytest.mark.requirement("CX-2", "CX-4")
@pytest.mark.parametrize("version", LEGACY)
def test_capabilities_that_nobody_knows_are_no_obstacle(version: str) -> None:
    unknown: dict[str, Any] = {
        "elicitation": {"carrierPigeon": {"speed": 3}},
        "telepathy": {"range": [1, None]},
        "experimental": {"x": {}},
        "extensions": {"com.example/ui": {"a": 1}, TASKS: {}},
    }
    with Process() as process:
        process.send(opening(version, **unknown), INITIALIZED)
        assert process.answer("open")["result"]["protocolVersion"] == version
        assert text_of(process.ask(call(1, "echo", {"text": "a"}))) == "a"
        params = {"name": "echo", "arguments": {"text": "b"}, "_meta": modern(**unknown)}
        assert text_of(process.ask(request(2, "tools/call", params, modern=True))) == "b"


@pytest.mark.requirement("T5-1", "T5-9", "T6-2", "T6-5", "T6-11")
def test_tasks_are_neither_declared_nor_served_and_a_wish_for_one_is_ignored() -> None:
    wish = {"name": "echo", "arguments": {"text": "a"}, "task": {"ttl": 60000}}
    methods = ["tasks/get", "tasks/result", "tasks/list", "tasks/cancel"]
    with Process() as process:
        opened = process.initialize("2025-11-25")["result"]
        assert "tasks" not in opened["capabilities"]
        for meta in ({}, {"_meta": modern(extensions={TASKS: {}})}):
            eras = {"modern": bool(meta)}
            for method in [*methods, "tasks/update"] if meta else methods:
                refused = process.ask(
                    request(f"{method} {len(meta)}", method, {"taskId": "x", **meta}, **eras)
                )
                assert refused["error"]["code"] == -32601
            answer = process.ask(
                request(f"wish {len(meta)}", "tools/call", {**wish, **meta}, **eras)
            )
            assert text_of(answer) == "a"
            assert "task" not in answer["result"]
            assert answer["result"].get("resultType") == ("complete" if meta else None)
        tools = process.ask(request("list", "tools/list"))["result"]["tools"]
        assert not [tool["name"] for tool in tools if tool.get("execution", {}).get("taskSupport")]
        discovered = process.ask(request("discover", "server/discover", modern=True))["result"]
        assert TASKS not in discovered["capabilities"].get("extensions", {})


@pytest.mark.requirement("PR-7")
def test_progress_told_by_a_client_is_ignored() -> None:
    told = [
        notification("notifications/progress", {"progressToken": "t", "progress": 1}),
        notification("notifications/progress", {"progressToken": None, "progress": "much"}),
        notification(
            "notifications/progress", {"_meta": modern(), "progressToken": 5, "progress": 2}
        ),
    ]
    with Process() as process:
        process.send(call("a", "wait_at", {"name": "g"}, token="t", modern=True), *told)
        process.send(call("b", "open_gate", {"name": "g"}, modern=True))
        text_of(process.answer("a"))
        text_of(process.answer("b"))
        assert process.finish() == 0
        assert len(process.messages) == 2


@pytest.mark.requirement("CA-10")
def test_the_reason_of_a_cancel_is_in_the_log() -> None:
    with Process(env={"LOG_LEVEL": "debug"}) as process:
        process.initialize()
        process.ask(call(6, "echo", {"text": "The server has started."}))
        process.send(call(7, "sleep", {"seconds": 60}))
        process.send(
            notification(
                "notifications/cancelled", {"requestId": 7, "reason": "The cake is eaten."}
            )
        )
        process.until_stderr("request 7 was cancelled: The cake is eaten.")
        assert process.ask(request(8, "ping"))["result"] == {}
        assert process.answers(7) == []


def pages(process: Process, method: str, kind: str, id: str, *, modern: bool) -> list[list[Any]]:
    """Every page of a list, by its cursors."""
    found: list[list[Any]] = []
    params: dict[str, Any] = {}
    while True:
        result = process.ask(request(f"{id} {len(found)}", method, params, modern=modern))["result"]
        found.append(result[kind])
        if modern:
            assert (result["ttlMs"], result["cacheScope"]) == (0, "private")
        if "nextCursor" not in result:
            return found
        params = {"cursor": result["nextCursor"]}


@pytest.mark.requirement("TO-3", "RE-2", "PM-2", "PG-4", "PG-5", "CH-2")
@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("tools/list", "tools"),
        ("prompts/list", "prompts"),
        ("resources/list", "resources"),
        ("resources/templates/list", "resourceTemplates"),
    ],
)
def test_every_list_comes_in_pages_that_are_alike_for_all(
    method: str, kind: str, tmp_path: Path
) -> None:
    server = script(tmp_path, PAGES + RUN)
    seen: list[Any] = []
    for version in ("2024-11-05", "2025-11-25"):
        with Process([server]) as process:
            process.initialize(version)
            seen.append(pages(process, method, kind, "older", modern=False))
            seen.append(pages(process, method, kind, "newer", modern=True))
    for each in seen:
        assert [len(page) for page in each[:-1]] == [2] * (len(each) - 1)
        names = [
            item.get("uriTemplate") or item.get("uri") or item["name"]
            for page in each
            for item in page
        ]
        assert [name[-1] for name in names][:5] == ["e", "d", "c", "b", "a"]  # as they were added
        assert len(set(names)) == len(names)
    assert seen[1] == seen[3]  # 2026-07-28 over both connections
    assert [len(each) for each in seen] == [len(seen[0])] * 4


@pytest.mark.requirement("RE-3")
def test_what_is_read_may_have_several_contents_of_text_and_of_bytes(tmp_path: Path) -> None:
    with Process([script(tmp_path, PAGES + RUN)]) as process:
        contents = process.ask(request(1, "resources/read", {"uri": "test://pieces"}, modern=True))[
            "result"
        ]["contents"]
    one, two = contents
    assert (one["uri"], one["text"]) == ("test://pieces/1", "one")
    assert two == {"uri": "test://pieces/2", "mimeType": "image/png", "blob": "AP8="}  # RFC 4648


@pytest.mark.requirement("CP-2")
@pytest.mark.parametrize("modern", [False, True])
def test_at_most_100_values_complete_an_argument(modern: bool, tmp_path: Path) -> None:
    asked = {
        "ref": {"type": "ref/prompt", "name": "many"},
        "argument": {"name": "word", "value": "w"},
    }
    with Process([script(tmp_path, PAGES + RUN)]) as process:
        process.initialize()
        completion = process.ask(request(1, "completion/complete", asked, modern=modern))["result"][
            "completion"
        ]
    assert completion == {
        "values": [f"w{number:03}" for number in range(100)],
        "total": 150,
        "hasMore": True,
    }


@pytest.mark.requirement("PM-3")
@pytest.mark.parametrize("modern", [False, True])
def test_a_prompt_that_fails_is_an_internal_error_and_the_next_is_served(
    modern: bool, tmp_path: Path
) -> None:
    with Process([script(tmp_path, PAGES + RUN)]) as process:
        process.initialize()
        asked = {"name": "broken", "arguments": {"kind": "x"}}
        assert (
            process.ask(request(1, "prompts/get", asked, modern=modern))["error"]["code"] == -32603
        )
        asked = {"name": "many", "arguments": {"word": "x"}}
        assert process.ask(request(2, "prompts/get", asked, modern=modern))["result"]["messages"]


@pytest.mark.requirement("SU-14")
@pytest.mark.parametrize("version", LEGACY)
def test_who_subscribes_is_told_of_that_resource_and_of_no_other(
    version: str, tmp_path: Path
) -> None:
    updated = "notifications/resources/updated"
    with Process([script(tmp_path, PAGES + RUN)]) as process:
        opened = process.initialize(version)["result"]
        assert opened["capabilities"]["resources"]["subscribe"] is True
        text_of(process.ask(call(1, "edit", {"uri": "test://a"})))
        assert process.ask(request(2, "resources/subscribe", {"uri": "test://a"}))["result"] == {}
        for id, uri in ((3, "test://a"), (4, "test://b"), (5, "test://a")):
            text_of(process.ask(call(id, "edit", {"uri": uri})))
        assert process.ask(request(6, "resources/unsubscribe", {"uri": "test://a"}))["result"] == {}
        text_of(process.ask(call(7, "edit", {"uri": "test://a"})))
        assert process.finish() == 0
        assert process.notifications(updated) == [{"uri": "test://a"}] * 2


@pytest.mark.requirement("SU-1")
def test_2026_07_28_is_told_of_nothing_unasked(tmp_path: Path) -> None:
    with Process([script(tmp_path, PAGES + RUN)]) as process:
        for id, uri in enumerate(("test://a", "test://pieces")):
            text_of(process.ask(call(id, "edit", {"uri": uri}, modern=True)))
        assert process.finish() == 0
        assert not [each for each in process.messages if "method" in each]


DECORATED = """
from concertino.types import Annotations, Icon
server.add_resource(
    "test://decorated",
    name="decorated",
    title="Decorated",
    text="naïve",
    mime_type="text/markdown",
    annotations=Annotations(["user"], 0.5, "2026-07-28T12:00:00Z"),
    icons=[Icon("https://example.com/i.png")],
    meta={"com.example/a": 1},
)
"""


@pytest.mark.requirement("RE-8")
@pytest.mark.parametrize("version", [*LEGACY, "2026-07-28"])
def test_what_a_resource_is_said_to_be_is_shown_to_who_knows_it(
    version: str, tmp_path: Path
) -> None:
    expected: dict[str, Any] = {  # REQUIREMENTS B.3; `size` is in bytes, and ï has two
        "uri": "test://decorated",
        "name": "decorated",
        "mimeType": "text/markdown",
        "size": 6,
        "annotations": {"audience": ["user"], "priority": 0.5},
    }
    if version >= "2025-06-18":
        expected |= {"title": "Decorated", "_meta": {"com.example/a": 1}}
        expected["annotations"]["lastModified"] = "2026-07-28T12:00:00Z"
    if version >= "2025-11-25":
        expected["icons"] = [{"src": "https://example.com/i.png"}]
    with Process([script(tmp_path, DECORATED + RUN)]) as process:
        if version in LEGACY:
            process.initialize(version)
        listed = process.ask(request(1, "resources/list", modern=version not in LEGACY))["result"][
            "resources"
        ]
    assert listed == [expected]


FOLDER = """
from pathlib import Path
root = Path(__file__).parent / "root"

@server.resource("docs:///{+path}")
def doc(path: str) -> str:
    return (root / path).read_text()

server.add_resource("file:///one", path=root / "one.txt")
"""


@pytest.mark.requirement("RE-6")
def test_no_uri_leads_out_of_a_folder(tmp_path: Path) -> None:
    server = script(tmp_path, FOLDER + RUN)
    (tmp_path / "root" / "sub").mkdir(parents=True)
    (tmp_path / "root" / "one.txt").write_text("one")
    (tmp_path / "root" / "sub" / "two.txt").write_text("two")
    (tmp_path / "secret.txt").write_text("secret")
    allowed = {
        "docs:///one.txt": "one",
        "docs:///sub/two.txt": "two",
        "docs:///sub%2Ftwo.txt": "two",
        "file:///one": "one",
    }
    secret = tmp_path / "secret.txt"
    ways_out = [
        "../secret.txt",
        "sub/../../secret.txt",
        "..%2Fsecret.txt",
        "%2e%2e/secret.txt",
        "%2e%2e%2fsecret.txt",
    ]
    ways_out += [
        "..\\secret.txt",
        "..%5Csecret.txt",
        f"{secret}",
        f"%2F{str(secret)[1:]}",
        f"/{secret}",
        "one.txt%00",
    ]
    refused = [f"docs:///{way}" for way in ways_out] + [
        "file:///one/../../secret.txt",
        "file:///root/one.txt",
    ]
    with Process([server]) as process:
        for uri, text in allowed.items():
            [content] = process.ask(request(uri, "resources/read", {"uri": uri}, modern=True))[
                "result"
            ]["contents"]
            assert (content["uri"], content["text"]) == (uri, text)
        for uri in refused:
            error = process.ask(request(uri, "resources/read", {"uri": uri}, modern=True))["error"]
            assert (error["code"], error["data"]["uri"]) == (-32602, uri)
