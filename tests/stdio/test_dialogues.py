"""The same dialogue in every revision, with every way to start a server.

Expected shapes are those of the revisions' own schemas and lifecycle pages (spec/schema,
REQUIREMENTS A and B), written out.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from stdio.harness import (
    INITIALIZE,
    INITIALIZED,
    MODERN_META,
    RUN,
    Process,
    call,
    notification,
    request,
    script,
    text_of,
)

LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
ADDER = '''
@server.tool
async def add(a: int, b: int) -> int:
    """Add two integers.

    Args:
        a: The first.
    """
    return a + b
'''


def opening(version: str) -> dict[str, Any]:
    return request(0, "initialize", {**INITIALIZE["params"], "protocolVersion": version})  # type: ignore[dict-item]


def expected_tool(version: str) -> dict[str, Any]:
    tool: dict[str, Any] = {
        "name": "add",
        "description": "Add two integers.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "description": "The first."},
                "b": {"type": "integer"},
            },
            "required": ["a", "b"],
        },
    }
    if version in ("2025-06-18", "2025-11-25"):
        # Structured content is an object there: other values are wrapped.
        tool["outputSchema"] = {
            "type": "object",
            "properties": {"result": {"type": "integer"}},
            "required": ["result"],
            "x-fastmcp-wrap-result": True,
        }
    elif version == "2026-07-28":
        tool["outputSchema"] = {"type": "integer"}
    return tool


def dialogue(process: Process, version: str) -> None:
    if version == "2026-07-28":
        return modern_dialogue(process)
    opened = process.ask(opening(version))["result"]
    assert opened["protocolVersion"] == version
    assert opened["capabilities"] == {"logging": {}, "tools": {"listChanged": True}}
    assert opened["serverInfo"] == {"name": "probe", "version": "1.2.3"}
    process.send(INITIALIZED)
    assert process.ask(request(1, "ping"))["result"] == {}
    listed = process.ask(request("list", "tools/list"))["result"]
    assert without_extras(listed["tools"]) == [expected_tool(version)]
    assert set(listed) == {"tools"}
    result = process.ask(call(3, "add", {"a": 2, "b": 3}))["result"]
    assert result["content"] == [{"type": "text", "text": "5"}]
    assert result.get("structuredContent") == ({"result": 5} if version >= "2025-06-18" else None)
    wrong = process.ask(call(4, "add", {"a": "two"}))["result"]
    assert wrong["isError"] is True
    unknown = process.ask(call(5, "none"))["error"]
    assert unknown["code"] == -32602
    assert process.ask(request(6, "no/such"))["error"]["code"] == -32601
    assert process.ask(request(7, "server/discover"))["error"]["code"] == -32601
    return None


def modern_dialogue(process: Process) -> None:
    info = {"name": "probe", "version": "1.2.3"}
    found = process.ask(request(0, "server/discover", modern=True))["result"]
    assert found["supportedVersions"] == ["2026-07-28"]
    assert found["capabilities"] == {"logging": {}, "tools": {"listChanged": True}}
    assert found["resultType"] == "complete"
    assert found["_meta"]["io.modelcontextprotocol/serverInfo"] == info
    listed = process.ask(request("list", "tools/list", modern=True))["result"]
    assert without_extras(listed["tools"]) == [expected_tool("2026-07-28")]
    assert listed["resultType"] == "complete"
    assert (listed["ttlMs"], listed["cacheScope"]) == (0, "private")
    result = process.ask(call(3, "add", {"a": 2, "b": 3}, modern=True))["result"]
    assert result["content"] == [{"type": "text", "text": "5"}]
    assert result["structuredContent"] == 5
    assert result["resultType"] == "complete"
    assert result["_meta"]["io.modelcontextprotocol/serverInfo"] == info
    assert process.ask(call(4, "add", {"a": "two"}, modern=True))["result"]["isError"] is True
    assert process.ask(call(5, "none", modern=True))["error"]["code"] == -32602
    assert process.ask(request(6, "no/such", modern=True))["error"]["code"] == -32601
    assert (
        process.ask(request(7, "ping", modern=True))["error"]["code"] == -32601
    )  # removed in 2026-07-28


def without_extras(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what a schema may add and a client does not need: titles of properties, dialect,
    additionalProperties.
    """
    for tool in tools:
        for name in ("inputSchema", "outputSchema"):
            for extra in ("$schema", "additionalProperties", "title"):
                tool.get(name, {}).pop(extra, None)
    return tools


@pytest.mark.parametrize("version", [*LEGACY, "2026-07-28"])
def test_the_dialogue_with_python_server_py(version: str, tmp_path: Path) -> None:
    with Process([script(tmp_path, ADDER + RUN)]) as process:
        dialogue(process, version)
        assert process.finish() == 0


@pytest.mark.parametrize("version", ["2025-06-18", "2026-07-28"])
@pytest.mark.parametrize("target", ["file.py", "file.py:attr", "module:attr"])
@pytest.mark.parametrize("run", ["", RUN], ids=["no run()", "run()"])
def test_the_dialogue_with_concertino_serve(
    version: str, target: str, run: str, tmp_path: Path
) -> None:
    script(tmp_path, ADDER + run, "calc_probe.py")
    named = {
        "file.py": "calc_probe.py",
        "file.py:attr": "calc_probe.py:server",
        "module:attr": "calc_probe:server",
    }
    with Process(["-m", "concertino", "serve", named[target]], cwd=tmp_path) as process:
        dialogue(process, version)
        assert process.finish() == 0


def test_the_installed_command_serves(tmp_path: Path) -> None:
    """`concertino` is an entry point that calls cli.main(), as pip writes it."""
    path = script(tmp_path, ADDER)
    start = (
        "import sys; from concertino.cli import main; sys.argv[0] = 'concertino'; sys.exit(main())"
    )
    with Process([sys.executable, "-c", start, "serve", path], command=True) as process:
        dialogue(process, "2025-11-25")
        assert process.finish() == 0


def test_a_server_in_a_nested_attribute_of_a_package_is_found(tmp_path: Path) -> None:
    package = tmp_path / "shop" / "floor"
    package.mkdir(parents=True)
    script(package, ADDER + "class Holder: inner = server\n", "desk.py")
    with Process(
        ["-m", "concertino", "serve", "shop.floor.desk:Holder.inner"], cwd=tmp_path
    ) as process:
        dialogue(process, "2025-11-25")
        assert process.finish() == 0


def test_uvloop_serves_the_same_dialogue(tmp_path: Path) -> None:
    source = ADDER + "import uvloop\nserver.run(loop_factory=uvloop.new_event_loop)\n"
    for version in ("2025-11-25", "2026-07-28"):
        with Process([script(tmp_path, source)]) as process:
            dialogue(process, version)
            assert process.finish() == 0


@pytest.mark.requirement("ER-10")
def test_both_eras_interleave_on_one_connection() -> None:
    with Process() as process:
        old, new = call(1, "who"), call(2, "who", modern=True)
        assert "2026-07-28" in text_of(process.ask(new))
        process.initialize("2025-06-18")
        assert process.ask(old)["result"]["structuredContent"]["revision"] == "2025-06-18"
        answer = process.ask(call(3, "who", modern=True))["result"]
        assert answer["structuredContent"]["revision"] == "2026-07-28"
        assert answer["resultType"] == "complete"
        again = process.ask(call(4, "who"))["result"]
        assert again["structuredContent"]["revision"] == "2025-06-18"
        assert "resultType" not in again
        pairs = [call(10 + n, "who", modern=bool(n % 2)) for n in range(100)]
        process.send(*pairs)
        for n in range(100):
            revision = process.answer(10 + n)["result"]["structuredContent"]["revision"]
            assert revision == ("2026-07-28" if n % 2 else "2025-06-18")
        assert process.finish() == 0


@pytest.mark.requirement("ME-9")
def test_the_client_of_a_modern_call_is_the_one_in_its_meta() -> None:
    meta = {**MODERN_META, "io.modelcontextprotocol/clientInfo": {"name": "other", "version": "9"}}
    with Process() as process:
        process.initialize()
        params = {"name": "who", "arguments": {}, "_meta": meta}
        found = process.ask(request(1, "tools/call", params))["result"]["structuredContent"]
        assert found == {"name": "other", "version": "9", "revision": "2026-07-28"}
        assert process.ask(call(2, "who"))["result"]["structuredContent"]["name"] == "test"


def test_a_call_before_initialize_is_refused_and_initialize_still_works() -> None:
    with Process() as process:
        error = process.ask(call(1, "echo", {"text": "x"}))["error"]
        assert error["code"] == -32602
        assert error["data"]["supported"] == [*LEGACY, "2026-07-28"]
        assert process.ask(request(2, "ping"))["result"] == {}
        assert process.initialize()["result"]["protocolVersion"] == "2025-11-25"
        assert text_of(process.ask(call(3, "echo", {"text": "x"}))) == "x"


def test_a_pipelined_handshake_is_answered_in_order() -> None:
    with Process() as process:
        process.send(
            opening("2025-11-25"),
            INITIALIZED,
            request(1, "tools/list"),
            call(2, "echo", {"text": "é"}),
        )
        assert [process.receive()["id"] for _ in range(3)] == [0, 1, 2]


def test_everything_and_the_end_of_input_in_one_write() -> None:
    with Process() as process:
        process.send(opening("2025-11-25"), INITIALIZED, call(1, "echo", {"text": "x"}))
        assert process.finish() == 0
        assert text_of(process.answer(1)) == "x"


def test_a_client_that_forgets_initialized_is_served() -> None:
    with Process() as process:
        process.ask(opening("2025-11-25"))
        assert text_of(process.ask(call(1, "echo", {"text": "x"}))) == "x"


def test_a_second_initialize_is_refused_and_changes_nothing() -> None:
    with Process() as process:
        process.initialize("2025-06-18")
        process.send({**opening("2024-11-05"), "id": 1})
        assert process.answer(1)["error"]["code"] == -32600
        assert (
            process.ask(call(2, "who"))["result"]["structuredContent"]["revision"] == "2025-06-18"
        )


@pytest.mark.requirement("LC-12", "LC-13")
@pytest.mark.parametrize("version", ["1.0", "2027-01-01", "", "2026-07-28"])
def test_an_unknown_version_is_answered_with_the_newest_that_has_a_handshake(version: str) -> None:
    with Process() as process:
        assert process.ask(opening(version))["result"]["protocolVersion"] == "2025-11-25"
        assert text_of(process.ask(call(1, "echo", {"text": "x"}))) == "x"


@pytest.mark.requirement("LC-12")
@pytest.mark.parametrize(
    "params", [{}, {"protocolVersion": 5}, {"protocolVersion": None}, {"capabilities": {}}]
)
def test_a_malformed_initialize_latches_nothing(params: dict[str, Any]) -> None:
    with Process() as process:
        assert process.ask(request(5, "initialize", params))["error"]["code"] == -32602
        assert process.ask(call(6, "echo", {"text": "x"}))["error"]["code"] == -32602
        process.initialize()
        assert text_of(process.ask(call(7, "echo", {"text": "x"}))) == "x"


@pytest.mark.requirement("ER-14")
def test_an_unsupported_modern_version_is_refused_by_its_own_code() -> None:
    meta = {**MODERN_META, "io.modelcontextprotocol/protocolVersion": "2099-01-01"}
    with Process() as process:
        error = process.ask(request(1, "tools/list", {"_meta": meta}))["error"]
        assert error["code"] == -32022
        assert error["data"] == {"supported": ["2026-07-28"], "requested": "2099-01-01"}


@pytest.mark.requirement("FR-11", "JR-12")
def test_a_batch_is_one_array_of_answers_in_2025_03_26() -> None:
    with Process() as process:
        process.initialize("2025-03-26")
        process.send(
            [
                call(1, "echo", {"text": "one"}),
                notification("notifications/nothing"),
                call(2, "wait_at", {"name": "batch"}),
                request(3, "no/such"),
                42,
                request(4, "ping"),
            ]
        )
        process.send(call(9, "open_gate", {"name": "batch"}))
        process.answer(9)
        process.answer(1)
        (batch,) = [message for message in process.messages if isinstance(message, list)]
        by_id = {each.get("id"): each for each in batch}
        assert set(by_id) == {1, 2, 3, 4, None}
        assert text_of(by_id[1]) == "one"
        assert text_of(by_id[2]) == "batch"
        assert by_id[3]["error"]["code"] == -32601
        assert by_id[None]["error"]["code"] == -32600
        assert process.finish() == 0


def test_a_batch_of_notifications_is_not_answered() -> None:
    with Process() as process:
        process.initialize("2025-03-26")
        process.send([notification("notifications/a"), notification("notifications/b")])
        process.ask(request(1, "ping"))
        assert len(process.messages) == 2


@pytest.mark.requirement("FR-10", "JR-15")
@pytest.mark.parametrize("version", ["2024-11-05", "2025-06-18", "2025-11-25"])
def test_a_batch_is_refused_in_the_other_revisions(version: str) -> None:
    with Process() as process:
        process.initialize(version)
        process.send([call(1, "echo", {"text": "one"})])
        process.ask(request(2, "ping"))
        refusal = process.messages[1]
        assert refusal["error"]["code"] == -32600
        assert ("id" in refusal) is (version != "2025-11-25")
        assert refusal.get("id") is None


def test_a_slow_start_does_not_keep_initialize_waiting(tmp_path: Path) -> None:
    source = """
class Slow(Server):
    async def start(self, outlet):
        await asyncio.get_running_loop().run_in_executor(None, sys.modules['__main__'].opened.wait)
        await super().start(outlet)
opened = threading.Event()
import signal
signal.signal(signal.SIGUSR1, lambda *_: opened.set())
server = Slow("slow")
@server.tool
async def echo(text: str) -> str:
    return text
server.run()
"""
    import signal

    with Process([script(tmp_path, source)]) as process:
        assert process.ask(INITIALIZE)["result"]["serverInfo"]["name"] == "slow"
        process.send(INITIALIZED, call(1, "echo", {"text": "kept"}))
        process.ask(request(2, "ping"))
        assert process.answers(1) == []
        process.signal(signal.SIGUSR1)
        assert text_of(process.answer(1)) == "kept"
        assert process.finish() == 0


def test_requests_sent_before_the_imports_are_done_are_answered(tmp_path: Path) -> None:
    source = "import time; print('importing'); sys.stdout.flush(); time.sleep(0.3)\n" + ADDER
    with Process(["-m", "concertino", "serve", script(tmp_path, source)]) as process:
        process.send(INITIALIZE, INITIALIZED, call(1, "add", {"a": 1, "b": 1}))
        process.until_stderr("importing")
        assert text_of(process.answer(1)) == "2"
        assert process.finish() == 0


@pytest.mark.parametrize("more", [{"clientInfo": {"name": "client", "version": "1.0"}}, {}])
def test_an_initialize_without_capabilities_is_answered(
    more: dict[str, Any], tmp_path: Path
) -> None:
    """As in one-line examples that are typed by hand."""
    with Process([script(tmp_path, RUN)]) as process:
        opened = process.ask(request(1, "initialize", {"protocolVersion": "2024-11-05", **more}))
        assert opened["result"]["protocolVersion"] == "2024-11-05"
        process.send({"jsonrpc": "2.0", "id": 2, "method": "tools/list"})
        assert process.answer(2)["result"]["tools"] == []
        assert process.finish() == 0


def test_a_server_over_stdio_opens_no_network_socket(tmp_path: Path) -> None:
    with Process([script(tmp_path, ADDER + RUN)]) as process:
        process.initialize()
        process.ask(call(1, "add", {"a": 1, "b": 2}))
        folder = Path(f"/proc/{process.pid}")
        # The loop has a pair of Unix sockets for itself, which these tables do not contain.
        tables = [(folder / "net" / name) for name in ("tcp", "tcp6", "udp", "udp6")]
        rows = [row.split() for table in tables for row in table.read_text().splitlines()[1:]]
        network = {f"socket:[{row[9]}]" for row in rows}
        opened = {os.readlink(link) for link in (folder / "fd").iterdir()}
        assert opened & network == set()
        assert process.finish() == 0
