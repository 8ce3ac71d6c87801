"""runtime/context.py: what a handler tells its caller, from the loop and from threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from concertino.backend.wrappers import ContextWrapper
from concertino.guards.guard_context import GuardContext
from concertino.runtime import context
from concertino.runtime.context import CallContext


class Rig:
    """A link, its session and an incoming call in one. Acts wait in `posts` until take()."""

    def __init__(self, thread: int = 0) -> None:
        self.thread = thread  # 0: everybody is in another thread
        self.session = self.notifications = self
        self.open = True
        self.posts: list[Callable[[], None]] = []
        self.told: list[Any] = []
        self.rooms = 0
        self.posted = threading.Event()
        self.context = CallContext(self, self)

    def progress(self, _: Any, *values: Any) -> None:
        self.told.append(values)

    def log(self, _: Any, level: str, data: Any, logger: str | None) -> None:
        if logger == "fails":
            raise ValueError("no")
        self.told.append(bytes(data).decode() if isinstance(data, context.Raw) else data)

    def post(self, act: Callable[[], None]) -> None:
        self.posts.append(act)
        self.posted.set()

    def backpressure(self) -> Any:
        self.rooms += 1
        return context.DONE

    def take(self) -> None:
        posts, self.posts = self.posts, []
        for act in posts:
            act()


def test_room_is_asked_for_only_when_it_is_awaited() -> None:
    rig = Rig(threading.get_ident())

    async def main() -> None:
        rig.context.progress(1)
        told = rig.context.log("info", "x")
        assert rig.rooms == 0
        await told
        assert rig.rooms == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    ("given", "sent"),
    [(1, 1), (0.5, 0.5), (Decimal("0.5"), 0.5), (2**63, 2**63), (2**70, float(2**70))],
)
def test_progress_is_sent_as_a_plain_number(given: Any, sent: float) -> None:
    rig = Rig(threading.get_ident())
    rig.context.progress(given, given)
    assert rig.told == [(sent, sent, None)]
    assert {type(value) for value in rig.told[0][:2]} == {type(sent)}


@pytest.mark.parametrize("thread", [0, threading.get_ident()], ids=["elsewhere", "here"])
@pytest.mark.parametrize(
    ("values", "error"),
    [
        (("1",), TypeError),
        ((True,), TypeError),
        ((None,), TypeError),
        ((1, "2"), TypeError),
        ((1, 2, 3), TypeError),
        ((1, 2, b"x"), TypeError),
        ((Decimal("nan"),), ValueError),
        ((10**400,), ValueError),
    ],
)
def test_progress_tells_its_author_what_is_wrong(
    values: Any, error: type[Exception], thread: int
) -> None:
    with pytest.raises(error, match=r"^progress"):
        Rig(thread).context.progress(*values)


def test_a_message_that_fails_does_not_stop_the_later_ones(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    for number in range(3):
        rig.context.log("info", number, "fails" if number == 1 else None)
    rig.take()
    assert rig.told == ["0", "2"]
    assert "could not be sent" in caplog.text


def test_one_wake_up_for_all_that_waits_and_another_for_what_comes_after() -> None:
    rig = Rig()
    rig.context.log("info", 1)
    rig.context.log("info", 2)
    assert len(rig.posts) == 1
    rig.take()
    rig.context.log("info", 3)
    rig.take()
    assert rig.told == ["1", "2", "3"]


def test_what_two_threads_of_one_call_say_all_arrives() -> None:
    rig = Rig()

    def say() -> None:
        for number in range(500):
            rig.context.log("info", number)

    threads = [threading.Thread(target=say) for _ in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        rig.take()
    rig.take()
    assert len(rig.told) == 4000


def test_progress_without_room_gives_way_to_newer_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "MAX_POSTED", 2)
    rig = Rig()
    for number in range(1, 6):
        rig.context.progress(number)
    rig.take()
    assert [done for done, _, _ in rig.told] == [1, 2, 5]


def test_log_lines_without_room_wait_for_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "MAX_POSTED", 2)
    rig = Rig()
    thread = threading.Thread(
        target=lambda: [rig.context.log("info", number) for number in range(7)]
    )
    thread.start()
    while thread.is_alive() or rig.posts:
        assert rig.posted.wait(10)
        rig.take()
    assert rig.told == [str(number) for number in range(7)]


@pytest.mark.parametrize("why", ["the loop takes nothing", "the call is over"])
def test_a_thread_does_not_wait_for_ever(
    why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(context, "MAX_POSTED", 1)
    monkeypatch.setattr(context, "STUCK_LOOP_S", 0.01 if why == "the loop takes nothing" else 60)
    rig = Rig()
    rig.open = why == "the loop takes nothing"
    for number in range(20):
        rig.context.log("info", number)
    assert caplog.text.count("dropped") == rig.open
    rig.take()
    rig.context.log("info", "again")
    rig.take()
    assert rig.told == ["0", '"again"']


@pytest.mark.parametrize("wrap", [lambda inner: inner, ContextWrapper, GuardContext])
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("info", "write context.log('info', ...)"),
        ("debug", "write context.log('debug', ...)"),
        ("warning", "write context.log('warning', ...)"),
        ("error", "write context.log('error', ...)"),
        ("report_progress", "write context.progress(done, total, message)"),
        ("read_resource", "call the function that returns the resource's content"),
        ("list_roots", "write await context.roots()"),
    ],
)
def test_a_name_of_another_library_says_what_to_write_instead(
    wrap: Any, name: str, hint: str
) -> None:
    context = wrap(CallContext(None, None))  # type: ignore[arg-type]
    with pytest.raises(AttributeError) as failure:
        getattr(context, name)
    assert str(failure.value) == f"Context has no '{name}': {hint}"
    assert not hasattr(context, name)


def test_other_unknown_names_raise_the_usual_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'unknown'"):
        CallContext(None, None).unknown  # type: ignore[arg-type, attr-defined]  # noqa: B018
