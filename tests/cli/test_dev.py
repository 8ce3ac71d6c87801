"""`concertino dev` and `concertino proxy --watch`, as real processes whose files are saved."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from loops import on_a_loop, on_a_loop_within
from warm_commands import run_python

from concertino import Client, ServerParameters, ToolError
from concertino.errors import RpcError

# Together they take long, and they do not depend on the version of Python.
pytestmark = pytest.mark.slow

SERVER = """
import asyncio
import os
from pathlib import Path

import rule
from concertino import Server

server = Server("rules")

@server.tool
async def answer(number: int) -> str:
    return f"{os.getpid()} {rule.apply(number)}"

@server.tool
async def wait(path: str) -> str:
    while not Path(path).exists():
        await asyncio.sleep(0.01)
    return "old"

@server.tool
async def end() -> None:
    os._exit(3)

if __name__ == "__main__":
    server.run()
"""
RULE = "def apply(number):\n    return number + 1\n"
TIMES_7 = "def apply(number):\n    return number * 7\n"
BROKEN = "def apply(number):\n    return number *\n"
RAISES = "import nothing_of_this_name\n"


class Dev:
    """A client of `concertino dev`, and what it has heard."""

    def __init__(self, folder: Path, *words: str, cwd: Path | None = None) -> None:
        self.folder = folder
        self.log: list[str] = []
        self.changed: list[str] = []
        self._heard = asyncio.Event()
        self.client = Client(
            ServerParameters(sys.executable, ["-m", "concertino", *words], cwd=cwd),
            stderr=self.on_line,
            changed=self.on_change,
        )

    def on_line(self, line: str) -> None:
        self.log.append(line)
        self._heard.set()

    def on_change(self, name: str) -> None:
        self.changed.append(name)
        self._heard.set()

    async def until(self, has_come: Any) -> None:
        """Wait until a line or a change makes a condition true."""
        async with asyncio.timeout(60):
            while not has_come():
                self._heard.clear()
                await self._heard.wait()

    def save(self, text: str, name: str = "rule.py") -> None:
        (self.folder / name).write_text(text)

    async def answer(self, number: int = 3) -> tuple[int, str]:
        """Return the process that has answered, and its answer."""
        pid, _, text = (await self.client.call_tool("answer", {"number": number})).text.partition(
            " "
        )
        return int(pid), text


@asynccontextmanager
async def a_dev(folder: Path, *words: str, rule: str = RULE) -> AsyncGenerator[Dev]:
    (folder / "rules.py").write_text(SERVER)
    (folder / "rule.py").write_text(rule)
    dev = Dev(folder, *(words or ("dev", str(folder / "rules.py"))))
    async with dev.client:
        yield dev


def watched(folder: Path) -> tuple[str, ...]:
    """Return the words of a proxy in front of the same server, for any language."""
    command = [sys.executable, str(folder / "rules.py")]
    return ("proxy", "--watch", str(folder), "--", *command)


@on_a_loop
@pytest.mark.parametrize("way", ["dev", "proxy --watch"])
async def test_the_call_after_a_save_runs_the_new_code(tmp_path: Path, way: str) -> None:
    async with a_dev(tmp_path, *(() if way == "dev" else watched(tmp_path))) as dev:
        before, text = await dev.answer()
        assert text == "4"
        # Each of the same size, and within the same second as the others.
        for factor in (5, 6, 7):
            dev.save(f"def apply(number):\n    return number * {factor}\n")
            assert (await dev.answer())[1] == str(3 * factor)
        assert (await dev.answer())[0] != before


@on_a_loop
async def test_the_log_names_a_server_by_the_last_part_of_its_module(tmp_path: Path) -> None:
    package = tmp_path / "office"
    package.mkdir()
    (package / "rules.py").write_text(SERVER)
    (tmp_path / "rule.py").write_text(RULE)
    dev = Dev(tmp_path, "dev", "office.rules:server", cwd=tmp_path)
    async with dev.client:
        assert (await dev.answer())[1] == "4"
        dev.save(TIMES_7)
        assert (await dev.answer())[1] == "21"
        await dev.until(lambda: any("the new code serves" in line for line in dev.log))
    [line] = [line for line in dev.log if "the new code serves" in line]
    assert "] rules: the new code serves after" in line


@on_a_loop
async def test_calls_under_way_finish_at_the_old_process(tmp_path: Path) -> None:
    async with a_dev(tmp_path) as dev:
        old = asyncio.create_task(dev.client.call_tool("wait", {"path": str(tmp_path / "go")}))
        pid, _ = await dev.answer()
        dev.save(TIMES_7)
        new, text = await dev.answer()
        assert (text, new != pid) == ("21", True)
        assert not old.done()
        (tmp_path / "go").touch()
        assert (await old).text == "old"


@on_a_loop
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (BROKEN, "SyntaxError: invalid syntax (rule.py:2)"),
        (RAISES, "No module named 'nothing_of_this_name' (rule.py:1)"),
    ],
    ids=["does not parse", "cannot be imported"],
)
async def test_new_code_that_does_not_start_is_told_once_and_the_old_code_serves_on(
    tmp_path: Path, code: str, reason: str
) -> None:
    async with a_dev(tmp_path) as dev:
        before = await dev.answer()
        dev.save(code)
        told = await dev.client.call_tool("answer", {"number": 3})
        assert told.is_error
        assert told.text.startswith("rules: cannot start: ")
        assert reason in told.text
        assert await dev.answer() == before
        assert any("the code before the change serves on" in line for line in dev.log)
        dev.save(TIMES_7)
        assert (await dev.answer())[1] == "21"


@on_a_loop
async def test_an_error_that_was_mended_before_the_next_call_is_not_told(tmp_path: Path) -> None:
    async with a_dev(tmp_path) as dev:
        dev.save(BROKEN)
        await dev.until(lambda: any("serves on" in line for line in dev.log))
        dev.save(TIMES_7)
        assert (await dev.answer())[1] == "21"


@on_a_loop
async def test_code_that_does_not_start_at_first_serves_as_soon_as_it_is_mended(
    tmp_path: Path,
) -> None:
    async with a_dev(tmp_path, rule=BROKEN) as dev:
        for _ in range(2):
            with pytest.raises(RpcError, match=r"SyntaxError: invalid syntax \(rule.py:2\)"):
                await dev.client.call_tool("answer", {"number": 3})
        with pytest.raises(RpcError, match=r"rule.py:2"):
            await dev.client.list_tools()
        dev.save(RULE)
        assert (await dev.answer())[1] == "4"
        assert [tool.name for tool in await dev.client.list_tools()] == [
            "answer",
            "wait",
            "end",
        ]
        await dev.until(lambda: "tools" in dev.changed)


@on_a_loop_within(60)
async def test_the_call_after_a_save_runs_the_new_code_among_thousands_of_files(
    tmp_path: Path,
) -> None:
    # The time of a check depends on the number of files, and as much on the load of the machine.
    (tmp_path / "many").mkdir()
    for number in range(3000):
        (tmp_path / "many" / f"{number}.py").touch()
    async with a_dev(tmp_path) as dev:
        await dev.answer()
        dev.save(TIMES_7)
        assert (await dev.answer())[1] == "21"
        dev.save(BROKEN)
        told = await dev.client.call_tool("answer", {"number": 3})
        assert told.text.startswith("rules: cannot start: ")


@on_a_loop
async def test_code_that_hangs_is_replaced_by_the_code_that_is_saved_next(tmp_path: Path) -> None:
    async with a_dev(tmp_path) as dev:
        began = tmp_path / "began"
        dev.save(f"import time\nopen({str(began)!r}, 'w').close()\ntime.sleep(3600)\n")
        async with asyncio.timeout(60):
            while not began.exists():
                await asyncio.sleep(0.01)
        dev.save(TIMES_7)
        assert (await dev.answer())[1] == "21"


@on_a_loop
@pytest.mark.parametrize("way", ["rename", "remove", "in steps", "twice"])
async def test_each_way_of_saving_is_a_save(tmp_path: Path, way: str) -> None:
    async with a_dev(tmp_path) as dev:
        rule = tmp_path / "rule.py"
        for _ in range(2):
            for code, expected in ((TIMES_7, "21"), (RULE, "4")):
                if way == "rename":
                    # As editors do that write another file first.
                    dev.save(code, "rule.py.new")
                    (tmp_path / "rule.py.new").replace(rule)
                elif way == "remove":
                    # As editors do that keep the file before the change.
                    rule.rename(tmp_path / "rule.py~")
                    dev.save(code)
                elif way == "in steps":
                    with rule.open("w") as file:
                        for line in code.splitlines(keepends=True):
                            file.write(line)
                            file.flush()
                else:
                    # The same size, within the same second or even tick of the file system's clock.
                    dev.save(code.replace("number", "NUMBER", 1))
                    dev.save(code)
                assert (await dev.answer())[1] == expected


@on_a_loop
async def test_a_folder_that_is_moved_away_and_back_is_told_and_served_again(
    tmp_path: Path,
) -> None:
    folder, away = tmp_path / "project", tmp_path / "away"
    folder.mkdir()
    async with a_dev(folder) as dev:
        await dev.answer()
        folder.rename(away)
        told = await dev.client.call_tool("answer", {"number": 3})
        assert told.is_error
        assert "rules.py" in told.text
        assert (await dev.answer())[1] == "4"
        (away / "rule.py").write_text(TIMES_7)
        away.rename(folder)
        assert (await dev.answer())[1] == "21"


@on_a_loop
async def test_a_changed_schema_is_announced_and_shown_as_a_diff(tmp_path: Path) -> None:
    async with a_dev(tmp_path) as dev:
        await dev.answer()
        dev.save(SERVER.replace("number: int", "number: int = 5"), "rules.py")
        await dev.until(lambda: dev.changed)
        await dev.until(lambda: any('+        "default": 5,' in line for line in dev.log))
        assert dev.changed == ["tools"]
        assert any("--- before/answer" in line for line in dev.log)
        assert (await dev.client.call_tool("answer", {})).text.endswith(" 6")
        dev.save(SERVER.replace("async def end", "async def stop"), "rules.py")
        await dev.until(lambda: any("tools that are gone: end" in line for line in dev.log))


@on_a_loop
async def test_code_that_changes_no_list_announces_nothing(tmp_path: Path) -> None:
    async with a_dev(tmp_path) as dev:
        dev.save(TIMES_7)
        await dev.answer()
        dev.save(SERVER.replace("number: int", "number: int = 5"), "rules.py")
        await dev.until(lambda: dev.changed)
        assert dev.changed == ["tools"]


@on_a_loop
async def test_a_process_that_ends_is_started_again(tmp_path: Path) -> None:
    async with a_dev(tmp_path) as dev:
        with pytest.raises((RpcError, ToolError)):
            await dev.client.call_tool("end")
        assert (await dev.answer())[1] == "4"


@on_a_loop
@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
async def test_nothing_is_left_when_the_client_is_gone(tmp_path: Path) -> None:
    async with a_dev(tmp_path) as dev:
        await dev.answer()
        dev.save(TIMES_7)
        await dev.answer()
    words = f"warm_server\0{tmp_path / 'rules.py'}".encode()
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if words in _read(path)]
    assert left == []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def run(*words: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ) if path is None else {**os.environ, "PATH": path}
    return run_python(
        [sys.executable, "-m", "concertino", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


def test_without_npx_the_inspector_is_not_opened_and_the_reason_is_clear(tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text(SERVER)
    done = run("dev", "--inspector", str(tmp_path / "rules.py"), path=str(tmp_path))
    assert done.returncode == 1
    assert "npx is missing" in done.stderr
    assert "install Node.js" in done.stderr


@pytest.mark.parametrize(
    "options", [[], ["--log-format", "json", "--trace"]], ids=["plain", "options"]
)
def test_the_inspector_starts_this_command_as_its_server(
    tmp_path: Path, options: list[str]
) -> None:
    npx = tmp_path / "npx"
    npx.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    npx.chmod(0o755)
    file = tmp_path / "rules.py"
    file.write_text(SERVER)
    done = run("dev", "--inspector", *options, str(file), path=f"{tmp_path}:{os.environ['PATH']}")
    words = done.stdout.splitlines()
    assert words[:2] == ["-y", "@modelcontextprotocol/inspector"]
    assert words[words.index("dev") :] == ["dev", str(file), *options]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["dev", "none.py"], "none.py: no such file"),
        (["dev", "--watch", "/nonexistent", __file__], "/nonexistent: no such file or folder"),
        (["proxy", "--watch", "/nonexistent", "--", "cat"], "/nonexistent: no such file"),
        (["proxy", "--watch", "/", "--", "unix:/x"], "--watch is for a server that is started"),
        (["dev"], "required: TARGET"),
    ],
)
def test_a_mistake_is_told(words: list[str], text: str) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert text in done.stderr
