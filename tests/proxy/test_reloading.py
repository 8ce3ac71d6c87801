"""reloading.py: what a call gets while files are being saved and code is starting.

The proxy is a stand-in, so that each test decides when its code has started. tests/cli/test_dev.py
has real processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from loops import on_a_loop
from msgspec import Raw
from msgspec.json import encode

from concertino.backend.interface import Call, Context, Notifier
from concertino.errors import ConcertinoError, RpcError
from concertino.protocol.call import ServerFeatures
from concertino.proxy import reloading, source_files
from concertino.proxy.proxy import Proxy
from concertino.proxy.reloading import ReloadingProxy
from concertino.proxy.source_files import SourceFiles
from concertino.types.results import Implementation

CALL = Call("tools/call", {"name": Raw(encode("run"))})
CONTEXT = cast("Context", None)


class FakeProxy(Proxy):
    """Its code is the text of a file, and a call returns the text that was started last.

    on_start: called with each text that is started, while it starts.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(["true"], name="rules")
        self.path = path
        self.code = ""
        self.started: list[str] = []
        self.on_start: Callable[[str], Any] = lambda text: None

    async def start(self, outlet: Notifier) -> None:
        await self.renew()

    async def renew(self) -> None:
        text = self.path.read_text()
        self.started.append(text)
        if (waiting := self.on_start(text)) is not None:
            await waiting
        if text == "broken":
            raise ConcertinoError("cannot start: it is broken")
        self.code = text

    def features(self) -> ServerFeatures:
        return ServerFeatures(Implementation("rules", "1"))

    async def handle(self, call: Call, context: Context) -> Raw:  # type: ignore[override]
        return Raw(encode(self.code))

    async def close(self) -> None: ...


class SilentNotifier:
    def report_change(self, what: str) -> None: ...


class Reloading:
    """A ReloadingProxy in front of a FakeProxy, whose file has the text "one" at first.

    Only calls check the files, unless the test sets POLL_S.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "server.py"
        self.path.write_text("one")
        self.files = SourceFiles([folder], [], (".py",))
        self.inner = FakeProxy(self.path)
        self.backend = ReloadingProxy(self.inner, self.files)

    async def __aenter__(self) -> Reloading:
        await self.backend.start(cast("Notifier", SilentNotifier()))
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.backend.close()

    async def call(self) -> str:
        """Return the code that has handled a call, or the error that the call got."""
        result = await self.backend.handle(CALL, CONTEXT)
        if isinstance(result, Raw):
            return bytes(result).decode().strip('"')
        return cast("Any", result).content[0].text


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_files, "POLL_S", 3600.0)
    monkeypatch.setattr(source_files, "SETTLE_S", 0.0)


async def steps(count: int = 100) -> None:
    """Let all tasks go on until they wait for something that the test decides."""
    for _ in range(count):
        await asyncio.sleep(0)


@on_a_loop
async def test_a_check_that_took_long_is_made_again_for_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine, a check of one file may take as long as one of thousands."""
    monkeypatch.setattr(source_files, "CHEAP_S", -1.0)
    async with Reloading(tmp_path) as server:
        assert await server.call() == "one"
        server.path.write_text("two")
        assert await server.call() == "two"
        server.path.write_text("broken")
        assert (await server.call()).startswith("rules: cannot start: it is broken")
        assert await server.call() == "two"


@on_a_loop
async def test_many_calls_during_a_long_check_share_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_files, "CHEAP_S", -1.0)
    async with Reloading(tmp_path) as server:
        checks: list[int] = []
        have_changed = SourceFiles.have_changed

        def count(files: SourceFiles) -> bool:
            checks.append(1)
            return have_changed(files)

        monkeypatch.setattr(SourceFiles, "have_changed", count)
        server.path.write_text("two")
        assert set(await asyncio.gather(*(server.call() for _ in range(50)))) == {"two"}
        # One for the calls, and some for the reload.
        assert len(checks) < 10


@on_a_loop
async def test_a_call_gets_what_was_saved_last_even_if_a_start_was_under_way(
    tmp_path: Path,
) -> None:
    async with Reloading(tmp_path) as server:
        is_starting, may_start = asyncio.Event(), asyncio.Event()

        def hold(code: str) -> Any:
            is_starting.set()
            return may_start.wait()

        server.inner.on_start = hold
        server.path.write_text("two")
        first = asyncio.create_task(server.call())
        await is_starting.wait()
        server.path.write_text("broken")
        second = asyncio.create_task(server.call())
        await steps()
        may_start.set()
        answers = {await first, await second}
        assert any(answer.startswith("rules: cannot start: it is broken") for answer in answers)
        assert "one" not in answers
        assert server.inner.started[-1] == "broken"
        server.path.write_text("three")
        assert await server.call() == "three"


@on_a_loop
async def test_a_call_during_the_second_start_does_not_get_the_failure_of_the_first(
    tmp_path: Path,
) -> None:
    async with Reloading(tmp_path) as server:
        late: list[asyncio.Task[str]] = []

        def change(code: str) -> Any:
            if code == "broken":
                server.path.write_text("two")
                return None
            late.append(asyncio.create_task(server.call()))
            return steps()

        server.inner.on_start = change
        server.path.write_text("broken")
        assert await server.call() == "two"
        assert [await call for call in late] == ["two"]


@on_a_loop
@pytest.mark.parametrize("is_replaced", [False, True], ids=["emptied", "removed"])
async def test_a_file_that_is_just_being_saved_is_no_new_code(
    tmp_path: Path, *, is_replaced: bool
) -> None:
    async with Reloading(tmp_path) as server:
        if is_replaced:
            server.path.rename(tmp_path / "server.py~")
        else:
            server.path.write_text("")
        calling = asyncio.create_task(server.call())
        await steps(source_files.MAX_SETTLE_STEPS // 2)
        server.path.write_text("two")
        assert await calling == "two"
        assert server.inner.started == ["one", "two"]


@on_a_loop
async def test_a_file_that_stays_empty_is_the_new_code(tmp_path: Path) -> None:
    async with Reloading(tmp_path) as server:
        server.path.write_text("")
        assert await server.call() == ""


@on_a_loop
async def test_a_start_that_hangs_is_given_up_when_a_file_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reloading, "HANGS_S", 0.01)
    monkeypatch.setattr(source_files, "POLL_S", 0.01)
    async with Reloading(tmp_path) as server:

        def hang(code: str) -> Any:
            return asyncio.Event().wait() if code == "hangs" else None

        server.inner.on_start = hang
        server.path.write_text("hangs")
        calling = asyncio.create_task(server.call())
        while "hangs" not in server.inner.started:
            await asyncio.sleep(0)
        server.path.write_text("two")
        assert await calling == "two"


@on_a_loop
async def test_code_that_hangs_at_the_first_start_is_given_up_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reloading, "HANGS_S", 0.01)
    monkeypatch.setattr(source_files, "POLL_S", 0.01)
    server = Reloading(tmp_path)
    server.inner.on_start = lambda code: asyncio.Event().wait() if code == "one" else None
    opening = asyncio.create_task(server.__aenter__())
    while not server.inner.started:
        await asyncio.sleep(0)
    server.path.write_text("two")
    await opening
    assert await server.call() == "two"
    await server.backend.close()


@on_a_loop
async def test_code_that_has_not_started_in_time_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reloading, "WAIT_S", 0.01)
    async with Reloading(tmp_path) as server:
        may_start = asyncio.Event()
        server.inner.on_start = lambda code: may_start.wait()
        server.path.write_text("two")
        told = await server.call()
        assert told.startswith("rules: the new code has not started within 0.01 s\n")
        monkeypatch.setattr(reloading, "WAIT_S", 3600.0)
        assert await server.call() == "one"
        may_start.set()
        while server.inner.code != "two":
            await asyncio.sleep(0)
        assert await server.call() == "two"


@pytest.mark.parametrize("calls_at", ["save", "start"])
@on_a_loop
async def test_a_call_waits_for_code_that_was_saved_after_code_that_hangs(
    calls_at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reloading, "HANGS_S", 0.01)
    monkeypatch.setattr(source_files, "POLL_S", 0.01)
    monkeypatch.setattr(reloading, "WAIT_S", 0.05)
    async with Reloading(tmp_path) as server:
        may_start = asyncio.Event()
        hangs: Mapping[str, asyncio.Event] = {"hangs": asyncio.Event(), "two": may_start}
        server.inner.on_start = lambda code: hangs[code].wait()
        server.path.write_text("hangs")
        assert "has not started" in await server.call()
        assert await server.call() == "one"

        monkeypatch.setattr(reloading, "WAIT_S", 3600.0)
        server.path.write_text("two")
        while calls_at == "start" and "two" not in server.inner.started:
            await asyncio.sleep(0)
        calling = asyncio.create_task(server.call())
        await steps()
        assert not calling.done()
        may_start.set()
        assert await calling == "two"


@on_a_loop
async def test_a_server_that_changes_its_own_files_does_not_start_for_ever(
    tmp_path: Path,
) -> None:
    async with Reloading(tmp_path) as server:

        def change(code: str) -> None:
            server.path.write_text(code + "+")

        server.inner.on_start = change
        server.path.write_text("two")
        assert (await server.call()).startswith("two")
        assert len(server.inner.started) == 1 + reloading.MAX_STARTS


@on_a_loop
async def test_code_without_a_first_start_answers_with_the_reason(tmp_path: Path) -> None:
    server = Reloading(tmp_path)
    server.path.write_text("broken")
    async with server:
        for _ in range(2):
            with pytest.raises(RpcError, match="cannot start: it is broken"):
                await server.call()
        server.path.write_text("two")
        assert await server.call() == "two"
