"""examples/library: its samples are run, and do what their pages say.

What the calls give was worked out by hand from the pages, not taken from a run.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from library.example_pages import DOCUMENTS, Page, document

import concertino
from concertino import Client, RpcError, Server, ToolError
from concertino.backend import Backend
from concertino.runtime import entry
from concertino.types.completion import PromptReference

SOURCE = str(Path(concertino.__file__).parents[1])  # what is tested here, for other processes
Imported = Callable[[Page], dict[str, ModuleType]]


@pytest.fixture
def import_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Imported]:
    """Pastes a page's files into a folder and imports all but its tests, as `concertino serve`
    would.
    """
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    calls: ContextVar[list[Any] | None] = ContextVar("calls")
    calls.set([])
    monkeypatch.setattr(entry, "run_calls", calls)

    def paste(page: Page) -> dict[str, ModuleType]:
        for name, source in page.files().items():
            (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
            monkeypatch.delitem(
                sys.modules, name, raising=False
            )  # another test's, of the same name
        importlib.invalidate_caches()
        return {
            name: importlib.import_module(name)
            for name in page.files()
            if not name.startswith("test_")
        }

    yield paste
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


WITH_SAMPLES = [page for page in DOCUMENTS if page.files()]


@pytest.mark.parametrize("page", WITH_SAMPLES, ids=lambda page: page.path.stem)
def test_samples_are_servers_that_clients_can_list(page: Page, import_page: Imported) -> None:
    for name, source in page.files().items():
        compile(source, name, "exec")
    modules = import_page(page)
    servers = [
        item
        for module in modules.values()
        for item in vars(module).values()
        if isinstance(item, Server)
    ]
    for server in {id(item): item for item in servers}.values():
        asyncio.run(list_names(server))


async def list_names(server: Server) -> None:
    async with Client(server) as client:
        offered = client.capabilities
        tools = await client.list_tools() if "tools" in offered else []
        prompts = await client.list_prompts() if "prompts" in offered else []
        resources: list[Any] = []
        if "resources" in offered:
            resources = [*await client.list_resources(), *await client.list_resource_templates()]
        assert tools or prompts or resources
        assert all(tool.description for tool in tools)


@dataclass(frozen=True)
class ToolFailure:
    """The tool fails, with these words."""

    words: str


ORDER = {
    "lines": [{"item": "plum", "amount": 2}, {"item": "pear", "amount": 1}],
    "day": "2026-11-21",
}
SAMPLES: dict[str, list[tuple[str, dict[str, Any], Any]]] = {
    "examples/minimal-server shop:server": [
        ("price", {"item": "plum", "amount": 4}, 1.0),
        ("price", {"item": "pear"}, ToolFailure(r"there is no item 'pear'; there are apple, plum")),
        ("price", {"item": "plum", "amount": "3"}, ToolFailure(r"amount: expected int")),
        ("price", {"item": "plum", "amount": 0}, ToolFailure(r"amount: expected int >= 1")),
        ("price", {"item": "plum", "ammount": 1}, ToolFailure("ammount: unknown argument")),
    ],
    "best-practices/errors-for-models templates:server": [
        ("template", {"name": "hono"}, "a web service"),
        ("template", {"name": "htmx"}, ToolFailure("^there is no template 'htmx'; use hono$")),
    ],
    "best-practices/errors-for-models coded:server": [
        (
            "find",
            {"name": "htmx"},
            ToolFailure(
                re.escape(
                    '{"error":"there is no template \'htmx\'","code":"TEMPLATE_NOT_FOUND",'
                    '"suggestion":"Choose one of these","available":["hono"]}'
                )
            ),
        )
    ],
    "best-practices/observability watched:server": [("price", {"item": "plum"}, 1.5)],
    "best-practices/prompt-injection cleaned:server": [
        ("ticket", {"number": 1}, {"customer_text": "It broke.[31m Please help."})
    ],
    "best-practices/tool-descriptions catalogue:server": [
        ("search_items", {"words": "Apple"}, {"a1": "red apple"}),
        ("delete_item", {"item_id": "p7"}, True),
        ("delete_item", {"item_id": "p7"}, False),
    ],
    "examples/process-pool primes:server": [
        ("primes", {"below": 30}, 10),
        ("primes", {"below": 10**9}, ToolFailure("below: expected int <= 200000")),
    ],
    "examples/rate-limit-guard limited:guarded": [
        ("search", {"words": "a"}, "nothing found for a"),
        ("search", {"words": "b"}, "nothing found for b"),
        ("search", {"words": "c"}, "nothing found for c"),
        (
            "search",
            {"words": "d"},
            ToolFailure(r"Too many calls of search: try again in (60|59) s"),
        ),
    ],
    "examples/sqlite-lifespan ledger:server": [
        ("deposit", {"name": "Ann", "cents": 500}, 500),
        ("deposit", {"name": "O'Neil", "cents": 1}, 1),
        ("transfer", {"source": "Ann", "target": "O'Neil", "cents": 200}, 300),
        (
            "transfer",
            {"source": "Ann", "target": "O'Neil", "cents": 301},
            ToolFailure("'Ann' has not got 301 cents"),
        ),
        (
            "transfer",
            {"source": "Ann", "target": "nobody", "cents": 1},
            ToolFailure("there is no account 'nobody'"),
        ),
        ("balance", {"name": "Ann"}, 300),
        ("balance", {"name": "O'Neil"}, 201),
    ],
    "examples/subprocess-tool searcher:server": [
        ("count_matches", {"text": "start_new_session"}, "./searcher.py:1\n"),
        ("count_matches", {"text": "--help"}, "./searcher.py:0\n"),
        ("count_matches", {"text": "$(id); SHOWN ="}, "./searcher.py:0\n"),
    ],
    "guides/large-messages excerpt:server": [
        (
            "read_lines",
            {"first": 2, "count": 2},
            {"lines": ["line 2", "line 3"], "next_line": 4, "total": 100_000},
        ),
        (
            "read_lines",
            {"first": 100_000},
            {"lines": ["line 100000"], "next_line": None, "total": 100_000},
        ),
        ("read_lines", {"count": 201}, ToolFailure("count: expected int <= 200")),
    ],
    "guides/stdout-and-stderr chatty:server": [("talk", {}, "the answer")],
    "guides/threads-and-async mixed:server": [
        ("total", {"words": ["plum", "pear"]}, 8),
        ("longest", {"words": ["fig", "plum"]}, "plum"),
    ],
    "guides/time-outs bounded:server": [
        ("ask_service", {"seconds": 0}, "done"),
        ("ask_service", {"seconds": 60}, ToolFailure("did not answer within 0.05 s")),
    ],
    "patterns/_fragments/path-containment contained:server": [
        ("read_file", {"name": "note.txt"}, "a note"),
        ("read_file", {"name": "inner/../note.txt"}, "a note"),
        ("read_file", {"name": "../outside.txt"}, ToolFailure("is not inside of the folder")),
        ("read_file", {"name": "/etc/passwd"}, ToolFailure("is not inside of the folder")),
        ("read_file", {"name": "link.txt"}, ToolFailure("is not inside of the folder")),
        ("read_file", {"name": "links/outside.txt"}, ToolFailure("is not inside of the folder")),
        ("read_file", {"name": "pipe"}, ToolFailure("there is no file 'pipe'")),
        ("read_file", {"name": "gone.txt"}, ToolFailure("there is no file 'gone.txt'")),
        ("read_file", {"name": "a\0b"}, ToolFailure("NUL")),
        ("read_file", {"name": "x" * 5000}, ToolFailure("no file")),
        ("read_file", {"name": "circle"}, ToolFailure("no file")),
    ],
    "patterns/compose-servers desk:desk": [
        ("math_add", {"a": 1, "b": 2}, 3.0),
        ("diary_add", {"text": "rain"}, "written: rain"),
    ],
    "skills/design-tool-schemas orders:server": [
        ("order", ORDER, "3 pieces on Saturday, pickup"),
        ("order", {**ORDER, "delivery": "drone"}, ToolFailure("delivery")),
        (
            "order",
            {**ORDER, "lines": [{"item": "plum", "amount": 0}]},
            ToolFailure(r"lines\[0\]\.amount: expected int >= 1"),
        ),
        ("order", {**ORDER, "lines": []}, ToolFailure("lines")),
    ],
    "skills/fault-test-a-server with_test_tools:server": [("price", {"item": "plum"}, 1.5)],
    "skills/redact-secrets careful:server": [
        ("account", {}, ToolFailure("SHOP_API_KEY is not set"))
    ],
    "skills/report-progress indexer:server": [
        ("index", {"files": ["a", "b"]}, 2),
        ("index_in_a_thread", {"files": ["a", "b", "c"]}, 3),
        ("lines", {"count": 2}, "line 1\nline 2\n"),
    ],
    "workflows/migrate-to-concertino moved:server": [
        ("price", {"item": "plum"}, {"item": "plum", "euros": 0.25}),
        ("price", {"item": "pear"}, ToolFailure("there is no 'pear'; there is plum")),
    ],
    "workflows/ship-a-server shop_mcp:server": [("price", {"item": "plum"}, 1.5)],
}


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_sample_does_what_its_page_says(
    sample: str, import_page: Imported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SHOP_API_KEY", "LEDGER"):
        monkeypatch.delenv(name, raising=False)
    found = re.fullmatch(r"(\S+) (\w+):(\w+)", sample)
    assert found
    backend = vars(import_page(document(found[1]))[found[2]])[found[3]]
    if found[2] == "contained":
        outside = tmp_path.parent / "outside.txt"
        outside.write_text("secret")
        (tmp_path / "note.txt").write_text("a note")
        (tmp_path / "inner").mkdir()
        (tmp_path / "link.txt").symlink_to(outside)
        (tmp_path / "links").symlink_to(tmp_path.parent)
        (tmp_path / "circle").symlink_to(tmp_path / "circle")
        os.mkfifo(tmp_path / "pipe")
    asyncio.run(call_all(backend, SAMPLES[sample]))


async def call_all(backend: Backend, calls: list[tuple[str, dict[str, Any], Any]]) -> None:
    async with Client(backend) as client:
        for name, arguments, expected in calls:
            if isinstance(expected, ToolFailure):
                with pytest.raises(ToolError, match=expected.words):
                    await client.call_tool(name, arguments, into=Any)
            else:
                assert await client.call_tool(name, arguments, into=type(expected)) == expected


def test_the_samples_with_calls_are_all_those_that_have_tools(import_page: Imported) -> None:
    without = {
        "guides/change-notices",
        "guides/sockets",
        "patterns/long-operations",
        "patterns/probe-and-fallback",
    }
    without |= {
        "patterns/request-correlation",
        "skills/handle-cancellation",
        "skills/test-in-memory",
    }
    without |= {"examples/client-script"}  # these have tests of their own, below
    with_tools = {
        page.name
        for page in WITH_SAMPLES
        if any("@server.tool" in item for item in page.files().values())
    }
    assert with_tools - without == {sample.partition(" ")[0] for sample in SAMPLES} - {
        "patterns/compose-servers"
    }


def test_an_operation_is_started_asked_for_and_forgotten(import_page: Imported) -> None:
    jobs = import_page(document("patterns/long-operations"))["jobs"]

    async def through() -> None:
        async with Client(jobs.server) as client:
            begun = await client.call_tool("start_count", {"to": 3}, into=dict)
            assert begun["state"] == "in_progress"
            handle = {"operation_id": begun["operation_id"]}
            async with asyncio.timeout(5):
                while (status := await client.call_tool("count_status", handle, into=dict))[
                    "state"
                ] != "done":
                    pass
            assert status["result"] == 3
            assert await client.call_tool("forget", handle, into=bool)
            assert not await client.call_tool("forget", handle, into=bool)
            with pytest.raises(ToolError, match="no operation of this id"):
                await client.call_tool("count_status", handle, into=dict)
            endless = await client.call_tool("start_count", {"to": 10**9}, into=dict)
            assert await client.call_tool(
                "forget", {"operation_id": endless["operation_id"]}, into=bool
            )
            async with asyncio.timeout(5):
                while jobs.tasks:
                    await asyncio.sleep(0)

    asyncio.run(through())


def test_resources_prompts_and_completion_do_what_their_pages_say(import_page: Imported) -> None:
    shelf = import_page(document("guides/resources-and-templates"))["shelf"]
    letters = import_page(document("guides/prompts-and-completion"))["letters"]
    fresh = import_page(document("guides/caching-hints"))["fresh"]

    async def through() -> None:
        async with Client(shelf.server, era="legacy") as client:
            for uri, text in (("about", "A diary."), ("index", '["2026-07-28"]')):
                [content] = (await client.read_resource(f"shelf://{uri}")).contents
                assert content.text == text
            [content] = (await client.read_resource("shelf://pages/2026-07-28?upper=true")).contents
            assert content.text == "A NEW REVISION CAME OUT."
            for day in ("2026-07-29", "today", ".."):
                with pytest.raises(RpcError) as refused:
                    await client.read_resource(f"shelf://pages/{day}")
                assert refused.value.code == -32002
        async with Client(letters.server) as client:
            prompt = await client.get_prompt("improve", {"draft": "thanks", "sentences": "2"})
            assert [message.role for message in prompt.messages] == ["user", "user", "assistant"]
            assert "in a friendly tone, in at most 2 sentences" in prompt.messages[1].content.text
            assert (await client.complete(PromptReference("improve"), "draft", "co")).values == [
                "complaint"
            ]
            assert (await client.complete(PromptReference("improve"), "tone", "fo")).values == [
                "formal"
            ]
            with pytest.raises(RpcError) as missing:
                await client.get_prompt("improve", {})
            assert missing.value.code == -32602
            assert "draft" in str(missing.value.data)
            with pytest.raises(
                RpcError, match="there is no draft 'wish'; there are complaint, thanks"
            ):
                await client.get_prompt("improve", {"draft": "wish"})
        async with Client(fresh.server, era="modern") as client:
            hints = [
                (item["ttlMs"], item["cacheScope"])
                for item in [
                    await client.request("resources/list"),
                    await client.request("resources/read", {"uri": "fresh://licence"}),
                    await client.request("resources/read", {"uri": "fresh://clock"}),
                ]
            ]
            assert hints == [(60_000, "public"), (86_400_000, "public"), (0, "private")]

    asyncio.run(through())


def test_a_subscriber_hears_of_a_note_that_was_pinned(import_page: Imported) -> None:
    board = import_page(document("guides/change-notices"))["board"]

    async def through() -> str:
        heard: asyncio.Queue[str] = asyncio.Queue()
        async with Client(board.server, era="legacy", updated=heard.put_nowait) as client:
            await client.subscribe("board://milk")
            assert (
                await client.call_tool("pin", {"name": "milk", "text": "buy some"}, into=str)
                == "pinned"
            )
            return await asyncio.wait_for(heard.get(), 5)

    assert asyncio.run(through()) == "board://milk"


def test_the_scripts_end_as_their_pages_say(
    import_page: Imported, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    era = import_page(document("patterns/probe-and-fallback"))["era"]
    assert (asyncio.run(era.spoken("auto")), asyncio.run(era.spoken("legacy"))) == (
        "2026-07-28",
        "2025-11-25",
    )
    overtaking = import_page(document("patterns/request-correlation"))["overtaking"]
    assert asyncio.run(overtaking.main()) == [0.0, 0.05]
    last_words = import_page(document("patterns/close-ladder"))["last_words"]
    assert asyncio.run(last_words.why()) == (1, "no configuration found")
    service = import_page(document("guides/sockets"))["service"]
    assert asyncio.run(service.main("shop.sock")) == 1.5
    guest = import_page(document("examples/client-script"))["guest"]
    kitchen = [
        "env",
        f"PYTHONPATH={SOURCE}",
        sys.executable,
        "-m",
        "concertino",
        "serve",
        "kitchen.py",
    ]
    assert asyncio.run(guest.main(*kitchen)) == 0
    assert capsys.readouterr().out == "plum: 45 minutes\n"
    assert asyncio.run(guest.main("no-such-program")) == 3
    answering = import_page(document("patterns/asking-the-user"))["answering"]
    asyncio.run(answering.main(kitchen))
    assert capsys.readouterr().out == "['recipe']\n"


def test_names_from_outside_do_not_fill_the_rate_limit(import_page: Imported) -> None:
    limited = import_page(document("examples/rate-limit-guard"))["limited"]

    async def through() -> None:
        async with Client(limited.guarded) as client:
            for number in range(1100):
                with suppress(RpcError, ToolError):  # there is no such tool; too many calls
                    await client.call_tool(f"unknown_{number}", into=str)

    asyncio.run(through())
    assert len(limited.guarded._accepted) == 1001


def test_all_pages_of_a_list_are_walked_and_circles_end(import_page: Imported) -> None:
    pages = import_page(document("patterns/_fragments/cursor-pagination"))["pages"]
    answers = {
        None: {"tools": [1], "nextCursor": ""},
        "": {"tools": [2], "nextCursor": "b"},
        "b": {"tools": [3]},
    }

    async def request(method: str, params: dict[str, Any]) -> dict[str, Any]:
        return answers[params.get("cursor")]

    async def circle(method: str, params: dict[str, Any]) -> dict[str, Any]:
        return {"tools": [1], "nextCursor": "a"}

    assert asyncio.run(pages.everything(request, "tools/list", "tools")) == [1, 2, 3]
    with pytest.raises(RuntimeError, match="'a' came twice"):
        asyncio.run(pages.everything(circle, "tools/list", "tools"))


def test_the_dropping_log_drops_and_says_so(
    import_page: Imported, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = import_page(document("patterns/_fragments/bounded-stderr"))["quiet_log"]
    written: queue.Queue[str] = queue.Queue()
    reading = threading.Event()

    class Stderr:
        def write(self, text: str) -> None:
            assert reading.wait(30)
            written.put(text)

        def flush(self) -> None:
            pass

    monkeypatch.setattr(sys, "stderr", Stderr())
    handler = quiet.DroppingHandler(room=1)
    for number in range(10):
        handler.emit(logging.makeLogRecord({"msg": f"line {number}"}))
    reading.set()
    came = ""
    while "dropped" not in came:
        came += written.get(timeout=30)
    assert re.search(r"\b[5-9] lines dropped \(stderr was not read\)\n", came)


def test_the_tests_on_the_pages_pass(tmp_path: Path) -> None:
    for name in ("patterns/newline-framer", "skills/handle-cancellation", "skills/test-in-memory"):
        for module, source in document(name).files().items():
            (tmp_path / f"{module}.py").write_text(source, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    environment = {
        **os.environ,
        "PYTHONPATH": SOURCE,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
