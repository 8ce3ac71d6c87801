"""library/watcher.py and changes while a library is served: seen by the next request, told to those
who listen, in either era.

A deadline of 250 ms is BEHAVIOUR.md's; tests await the event itself, with seconds as their upper
bound, since machines are busy.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
import shutil
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from library.shelves import fill
from loops import on_a_loop
from server.served import Served

from concertino import Client, Library, RpcError
from concertino.library import watcher
from concertino.library.watcher import Watcher

BOUND_S = 10


class WatchEvents:
    """What a Watch says, from its thread."""

    def __init__(self) -> None:
        self._told = threading.Condition()
        self.paths: list[list[str] | None] = []

    def __call__(self, paths: list[str] | None) -> None:
        with self._told:
            self.paths.append(paths)
            self._told.notify_all()

    def until(self, wanted: Callable[[list[list[str] | None]], bool]) -> None:
        with self._told:
            assert self._told.wait_for(lambda: wanted(self.paths), BOUND_S), self.paths


@pytest.fixture
def start_watch() -> Iterator[Callable[[Path], tuple[Watcher, WatchEvents]]]:
    watches: list[Watcher] = []

    def start(folder: Path) -> tuple[Watcher, WatchEvents]:
        heard = WatchEvents()
        watches.append(Watcher([str(folder)], heard, logging.getLogger("concertino.test")))
        return watches[-1], heard

    yield start
    for item in watches:
        item.close()


def without_watchfiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "POLL_S", 0.05)
    real = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name == "watchfiles":
            raise ModuleNotFoundError("No module named 'watchfiles'", name=name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)


def test_a_change_is_heard_with_its_path(
    start_watch: Callable[[Path], tuple[Watcher, WatchEvents]], tmp_path: Path
) -> None:
    _, heard = start_watch(fill(tmp_path, {"a/b.md": "1"}))
    heard.until(lambda said: None in said)  # it listens
    (tmp_path / "a" / "b.md").write_text("2")
    heard.until(lambda said: any(paths and str(tmp_path / "a" / "b.md") in paths for paths in said))


def test_a_folder_that_is_put_in_the_others_place_is_heard_of(
    start_watch: Callable[[Path], tuple[Watcher, WatchEvents]], tmp_path: Path
) -> None:
    root = fill(tmp_path / "root", {"a.md": "1"})
    _, heard = start_watch(root)
    heard.until(lambda said: None in said)
    root.rename(tmp_path / "old")
    fill(root, {"a.md": "2"})
    heard.until(lambda said: said.count(None) > 1)
    before = len(heard.paths)
    (root / "b.md").write_text("3")
    heard.until(
        lambda said: any(paths is None or str(root / "b.md") in paths for paths in said[before:])
    )


def test_without_watchfiles_all_is_looked_at_again_and_again(
    start_watch: Callable[[Path], tuple[Watcher, WatchEvents]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_watchfiles(monkeypatch)
    watch, heard = start_watch(tmp_path)
    heard.until(lambda said: said[:2] == [None, None])
    assert not watch.receives_events


def test_a_system_that_does_not_tell_is_said_once(
    start_watch: Callable[[Path], tuple[Watcher, WatchEvents]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    import watchfiles

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError("inotify watch limit reached")

    monkeypatch.setattr(watchfiles, "watch", refuse)
    monkeypatch.setattr(watcher, "POLL_S", 0.05)
    _, heard = start_watch(tmp_path)
    heard.until(lambda said: said[:2] == [None, None])
    assert [item.message for item in caplog.records] == [
        "looking for changes every 0.05 s, because the system does not report them: inotify watch"
        " limit reached"
    ]


# A library


async def until(what: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not await what():
            await asyncio.sleep(0.005)


def library(tmp_path: Path) -> Library:
    fill(
        tmp_path / "resources",
        {"agents/one.md": "# One\n\nsame\n\nalpha\n", "agents/two.md": "# Two\n"},
    )
    fill(tmp_path / "prompts", {"p.md": "# P"})
    return Library(tmp_path / "resources", tmp_path / "prompts")


def put(folder: Path, name: str, text: str) -> None:
    """At once, as editors do it: what watches sees no file that is half written."""
    (folder / "whole").write_text(text)
    (folder / "whole").replace(folder / name)


def in_order(notes: list[tuple[str, Any]]) -> list[str]:
    return [method.removeprefix("notifications/") for method, _ in notes]


async def listening(backend: Library) -> None:
    async def hears() -> bool:
        return (
            backend._loaded is not None
            and backend._loaded.watcher is not None
            and backend._loaded.watcher.receives_events
        )

    await until(hears)


@pytest.mark.parametrize("hears", [True, False])
@on_a_loop
async def test_what_is_edited_added_and_removed_is_seen(
    hears: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = library(tmp_path)
    if not hears:
        without_watchfiles(monkeypatch)
    async with Served(backend) as served:  # pyright: ignore[reportArgumentType]

        async def read(name: str) -> str:
            try:
                result = await served.ask("resources/read", uri=f"orchestr8://agents/{name}")
            except RpcError as error:
                return str(error.code)
            return result["contents"][0]["text"]

        async def found(words: str) -> str:
            result = await served.ask(
                "resources/read", uri=f"orchestr8://match?query={words}&mode=index"
            )
            return result["contents"][0]["text"]

        async def listed() -> list[str]:
            return [item["uri"] for item in (await served.ask("resources/list"))["resources"]]

        assert await read("one") == "# One\n\nsame\n\nalpha\n"  # and is kept in memory
        if hears:
            await listening(backend)
        folder = tmp_path / "resources" / "agents"
        (folder / "one.md").write_text("# One\n\nsame\n\nomega\n")  # of the same size
        await until(lambda: is_so(read("one"), "# One\n\nsame\n\nomega\n"))
        await until(lambda: has(found("omega"), "orchestr8://agents/one"))
        assert "orchestr8://agents/one" not in await found("alpha")
        (folder / "three.md").write_text("# Three\n\ngamma\n")
        await until(lambda: has(found("gamma"), "orchestr8://agents/three"))
        assert await read("three") == "# Three\n\ngamma\n"
        (folder / "two.md").unlink()
        await until(lambda: is_so(read("two"), "-32002"))
        folder.rename(tmp_path / "resources" / "skills")
        await until(lambda: is_so(read("one"), "-32002"))
        await until(lambda: is_so(listed(), ["orchestr8://skills/one", "orchestr8://skills/three"]))
        assert "orchestr8://skills/three" in await found("gamma")
        shutil.rmtree(tmp_path / "resources")
        await until(lambda: is_so(count(served), 0))
        fill(tmp_path / "resources", {"agents/four.md": "# Four"})
        await until(lambda: is_so(read("four"), "# Four"))


async def is_so(asked: Awaitable[Any], wanted: Any) -> bool:
    return await asked == wanted


async def has(asked: Awaitable[str], wanted: str) -> bool:
    return wanted in await asked


async def count(served: Served) -> int:
    return len((await served.ask("resources/list"))["resources"])


@on_a_loop
async def test_a_link_that_leads_to_another_folder_is_followed(tmp_path: Path) -> None:
    """As deployments do it that put a new version beside the old one."""
    fill(tmp_path / "one", {"a/b.md": "1", "a/c.md": "1"})
    fill(tmp_path / "two", {"a/b.md": "2"})
    (tmp_path / "now").symlink_to("one")
    backend = Library(tmp_path / "now")
    async with Served(backend) as served:  # pyright: ignore[reportArgumentType]
        assert await count(served) == 2
        await listening(backend)
        (tmp_path / "next").symlink_to("two")
        (tmp_path / "next").rename(tmp_path / "now")
        await until(lambda: is_so(count(served), 1))
        read = await served.ask("resources/read", uri="orchestr8://a/b")
        assert read["contents"][0]["text"] == "2"
        await listening(backend)
        (tmp_path / "two" / "a" / "d.md").write_text("3")
        await until(lambda: is_so(count(served), 2))


@on_a_loop
async def test_subscribers_are_told_of_what_they_watch(tmp_path: Path) -> None:
    backend = library(tmp_path)
    async with Served(backend) as served:  # pyright: ignore[reportArgumentType]
        start_watch = [
            "orchestr8://agents/one",
            "orchestr8://one",  # another name of it
            "orchestr8://match?query=alpha",
            "orchestr8://registry",
            "orchestr8://agents/two",
        ]
        for uri in start_watch:
            await served.ask("resources/subscribe", uri=uri)
        await listening(backend)

        async def told() -> bool:
            """What is said last."""
            return len([params for _, params in served.heard if "uri" in params]) >= 4

        put(tmp_path, "resources/agents/one.md", "# One\n\nsame\n\nomega\n")
        await until(told)
        assert sorted(params["uri"] for _, params in served.heard) == sorted(start_watch[:4])
        assert {*in_order(served.heard)} == {"resources/updated"}  # what a list says is what it was
        served.heard.clear()
        put(tmp_path, "resources/agents/one.md", "# Uno\n")
        await until(told)
        assert in_order(served.heard) == ["resources/list_changed", *["resources/updated"] * 4]
        served.heard.clear()
        put(tmp_path, "prompts/q.md", "# Q")
        await until(lambda: has_method(served, "prompts/list_changed"))
        assert in_order(served.heard) == ["prompts/list_changed"]
        assert [item["name"] for item in (await served.ask("prompts/list"))["prompts"]] == [
            "p",
            "q",
        ]


@on_a_loop
async def test_subscribers_of_a_catalogue_with_a_slash_are_told(tmp_path: Path) -> None:
    backend = library(tmp_path)
    async with Served(backend) as served:  # pyright: ignore[reportArgumentType]
        await served.ask("resources/subscribe", uri="orchestr8://agents/")
        await listening(backend)
        put(tmp_path, "resources/agents/one.md", "# One\n\nsame\n\nomega\n")
        await until(lambda: has_method(served, "resources/updated"))
        assert ("resources/updated", {"uri": "orchestr8://agents/"}) in [
            (method.removeprefix("notifications/"), {"uri": params.get("uri")})
            for method, params in served.heard
        ]


async def has_method(served: Served, method: str) -> bool:
    return method in in_order(served.heard)


@pytest.mark.parametrize("era", ["modern", "legacy"])
@on_a_loop
async def test_clients_of_both_eras_are_told(
    era: Literal["modern", "legacy"], tmp_path: Path
) -> None:
    backend = library(tmp_path)
    heard: list[str] = []

    async with Client(backend, era=era, updated=heard.append, changed=heard.append) as client:
        await client.subscribe("orchestr8://agents/one")
        await client.list_resources()
        await listening(backend)
        (tmp_path / "resources" / "agents" / "one.md").write_text("# Uno\n")
        (tmp_path / "prompts" / "q.md").write_text("# Q")
        await until(lambda: all_in(heard, {"orchestr8://agents/one", "resources", "prompts"}))
        assert {item.name for item in await client.list_prompts()} == {"p", "q"}


async def all_in(heard: list[str], wanted: set[str]) -> bool:
    return wanted <= set(heard)


@on_a_loop
async def test_one_library_serves_several_hosts_until_the_last_is_gone(tmp_path: Path) -> None:
    backend = library(tmp_path)
    async with Served(backend) as first:  # pyright: ignore[reportArgumentType]
        async with Served(backend) as second:  # pyright: ignore[reportArgumentType]
            await listening(backend)
            (tmp_path / "prompts" / "q.md").write_text("# Q")
            for served in (first, second):
                await until(lambda served=served: has_method(served, "prompts/list_changed"))
        (tmp_path / "prompts" / "q.md").unlink()
        first.heard.clear()
        await until(lambda: has_method(first, "prompts/list_changed"))
        assert await count(first) == 2
    assert backend._loaded is None


@on_a_loop
async def test_a_folder_that_comes_later_is_offered_then(tmp_path: Path) -> None:
    fill(tmp_path / "resources", {"a/b.md": ""})
    backend = Library(tmp_path / "resources", tmp_path / "prompts")
    async with Served(backend) as served:  # pyright: ignore[reportArgumentType]
        assert (await served.refused("prompts/list")).code == -32601
        fill(tmp_path / "prompts", {"p.md": "# P"})

        async def offered() -> bool:
            try:
                return len((await served.ask("prompts/list"))["prompts"]) == 1
            except RpcError:
                return False

        await until(offered)


@on_a_loop
async def test_a_file_that_goes_bad_says_so_and_leaves_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = library(tmp_path)
    async with Served(backend) as served:  # pyright: ignore[reportArgumentType]
        await listening(backend)
        (tmp_path / "resources" / "agents" / "one.md").write_bytes(b"---\nid: [\n---\n# One\n")

        async def said() -> bool:
            return "agents/one.md: is not YAML" in caplog.text

        await until(said)
        read = await served.ask("resources/read", uri="orchestr8://agents/one")
        assert read["contents"][0]["text"] == "---\nid: [\n---\n# One\n"
        assert (await served.ask("resources/read", uri="orchestr8://agents/two"))["contents"][0][
            "text"
        ] == "# Two\n"
