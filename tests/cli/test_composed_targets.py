"""`concertino serve` with several targets, one of which is slow or cannot start: the others are
served (real processes).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from stdio.harness import INITIALIZE, INITIALIZED, Process, call, request, text_of

SERVE = ["-m", "concertino", "serve"]
GOOD = """
from concertino import Server
server = Server("good")
@server.tool
def hello() -> str:
    return "hello"
server.run()
"""
# Its import, or its lifespan, ends when somebody opens the fifo.
SLOW_IMPORT = """
import os
open(os.environ["GATE"]).close()
from concertino import Server
server = Server("slow")
@server.tool
def late() -> str:
    return "at last"
server.run()
"""
SLOW_START = """
import asyncio, os
from collections.abc import AsyncIterator
from concertino import Server
server = Server("slow")
@server.lifespan
async def opened() -> AsyncIterator[None]:
    await asyncio.get_running_loop().run_in_executor(None, open, os.environ["GATE"])
    yield
@server.tool
def late() -> str:
    return "at last"
server.run()
"""
BROKEN = "import no_such_module_here\n"
REASON = (
    "cannot start: broken: ModuleNotFoundError: No module named 'no_such_module_here' (broken.py:1)"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sources = {
        "good": GOOD,
        "slow_import": SLOW_IMPORT,
        "slow_start": SLOW_START,
        "broken": BROKEN,
    }
    for name, source in sources.items():
        (tmp_path / f"{name}.py").write_text(source)
    os.mkfifo(tmp_path / "gate")
    return tmp_path


def serving(folder: Path, *words: str) -> Process:
    return Process([*SERVE, *words], cwd=folder, env={"GATE": str(folder / "gate")})


def tools(process: Process, id: object) -> list[str]:
    listed = process.ask(request(id, "tools/list"))
    return [tool["name"] for tool in listed["result"]["tools"]]


@pytest.mark.parametrize("slow", ["slow_import", "slow_start"])
def test_a_slow_part_does_not_hold_up_the_others(slow: str, folder: Path) -> None:
    with serving(folder, f"slow={slow}.py", "good.py") as process:
        process.until_stderr("Starting")
        process.initialize()
        assert text_of(process.ask(call(1, "good_hello"))) == "hello"
        process.ask(request(2, "tools/list"))
        # A call of the slow part waits for it; then its tools are announced and listed.
        process.send(call(3, "slow_late"))
        (folder / "gate").write_bytes(b"")
        assert text_of(process.answer(3)) == "at last"
        process.pump(lambda: bool(process.notifications("notifications/tools/list_changed")))
        assert tools(process, 4) == ["slow_late", "good_hello"]
        assert process.finish() == 0


def test_a_part_that_fails_is_reported_and_the_others_are_served(folder: Path) -> None:
    with serving(folder, "good.py", "broken.py") as process:
        process.initialize()
        assert tools(process, 1) == ["good_hello"]
        assert text_of(process.ask(call(2, "good_hello"))) == "hello"
        error = process.ask(call(3, "broken_anything"))["error"]
        assert error["code"] == -32603
        assert error["message"].startswith(REASON)
        assert process.finish() == 0
        assert REASON.encode() in process.stderr


def test_a_part_that_does_not_exist_is_reported(folder: Path) -> None:
    with serving(folder, "good.py", "nothing.py") as process:
        process.initialize()
        assert tools(process, 1) == ["good_hello"]
        assert process.finish() == 0
        assert b"cannot start: nothing: nothing.py: no such file" in process.stderr


def test_if_all_parts_fail_the_server_fails(folder: Path) -> None:
    with serving(folder, "broken.py", "nothing.py") as process:
        message = process.ask(INITIALIZE)["error"]["message"]
        assert message.startswith("cannot start: broken: ModuleNotFoundError: ")
        assert "nothing: nothing.py: no such file" in message
        assert process.finish() == 1


@pytest.mark.parametrize("other", ["broken.py", "nothing.py"])
def test_strict_serves_none_if_one_fails(other: str, folder: Path) -> None:
    with serving(folder, "--strict", "good.py", other) as process:
        process.send(INITIALIZE, INITIALIZED)
        process.pump(lambda: bool(process.messages))
        assert process.messages[0]["error"]["message"].startswith("cannot start: ")
        assert process.finish() == 1


def test_several_files_may_be_imported_at_once(folder: Path) -> None:
    """Each file's own call of run() names its server, even if it has two."""
    two = GOOD.replace("server.run()", "other = Server('other')\nserver.run()")
    for name in ("a", "b", "c", "d"):
        (folder / f"{name}.py").write_text(two)
    with serving(folder, "a.py", "b.py", "c.py", "d.py") as process:
        process.initialize()
        assert tools(process, 1) == ["a_hello", "b_hello", "c_hello", "d_hello"]
        assert process.finish() == 0


SERVED = {
    "a folder": (["knowledge"], "Starting notes MCP server v1.2.3"),
    "a folder with another": (["knowledge", "more"], "Starting notes MCP server v1.2.3"),
    "a folder with a file": (["knowledge", "good.py"], "Starting notes MCP server v1.2.3"),
}


@pytest.mark.parametrize(("targets", "line"), SERVED.values(), ids=SERVED)
def test_name_and_version_are_in_the_handshake_and_in_the_log(
    folder: Path, targets: list[str], line: str
) -> None:
    for name in ("knowledge", "more"):
        (folder / name / "prompts").mkdir(parents=True)
    options = ["--name", "notes", "--version", "1.2.3"]
    with serving(folder, *targets, *options) as process:
        info = process.ask(INITIALIZE)["result"]["serverInfo"]
        assert process.finish() == 0
    assert (info["name"], info["version"]) == ("notes", "1.2.3")
    assert line.encode() in process.stderr


def test_a_python_file_names_itself(folder: Path) -> None:
    with serving(folder, "good.py", "--version", "1.2.3") as process:
        message = process.ask(INITIALIZE)["error"]["message"]
        assert process.finish() == 1
    assert "good.py: --name and --version are for folders" in message
