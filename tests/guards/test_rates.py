"""The rate limit against a model that keeps every accepted call, with a fake clock."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from guards.asking import ask_server, text_of
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from concertino import RpcError, Server
from concertino.backend import Call
from concertino.backend.wrappers import BackendWrapper
from concertino.guards.guard import Guard
from concertino.guards.rates import Rate
from concertino.guards.single_guards import RateLimit
from concertino.types import CallToolResult, TextContent

DONE = CallToolResult([TextContent("done")])


class Nothing:
    """A backend that answers everything alike."""

    async def handle(self, call: Call, context: Any) -> CallToolResult:
        return DONE


def step(guard: BackendWrapper, name: str, method: str = "tools/call", member: str = "name") -> Any:
    """One call that does not wait: its result, or its RpcError."""
    work = guard.handle(Call(method, {member: Raw(json.dumps(name).encode())}), None)  # type: ignore[arg-type]
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    except RpcError as error:
        return error
    raise AssertionError("it waits")


def body(result: CallToolResult) -> dict[str, Any]:
    assert result.is_error
    return json.loads(result.content[0].text)  # type: ignore[union-attr]


class Model:
    """Every accepted call with its time, and for each rate a look through all of them."""

    def __init__(self, rates: list[tuple[int, float, set[str], bool]], now: float) -> None:
        self.rates = rates  # calls, within_s, names, shared
        self.accepted: list[tuple[float, str]] = []
        self.now = now

    def call(self, name: str, clock: float) -> float:
        """0 if accepted, else the seconds to wait, by looking when the call would be accepted if
        nothing else came.
        """
        if not any(name in rate[2] for rate in self.rates):
            return 0  # the clock is read when a rate is about the call
        self.now = max(self.now, clock)  # one that steps back counts as standing still
        waits = [self._wait(name, self.now, *rate) for rate in self.rates if name in rate[2]]
        if any(waits):
            return max(waits)
        self.accepted.append((self.now, name))
        return 0

    def _wait(
        self, name: str, now: float, calls: int, within_s: float, names: set[str], shared: bool
    ) -> float:
        times = [
            at
            for at, who in self.accepted
            if (who in names if shared else who == name) and now - at < within_s
        ]
        wait = 0.0
        while len(times) >= calls:
            wait = times.pop(0) + within_s - now
        return wait


# Eighths of seconds: floats hold their sums exactly, so exactly 60 s is exactly 60 s.
MOVES = st.sampled_from([0, 0, 0, 1, 7, 8, 60, 472, 479, 480, 481, 960, -1, -80, -4000]).map(
    lambda eighths: eighths / 8
)
STEPS = st.lists(st.tuples(MOVES, st.sampled_from(["a", "b", "c"])), max_size=80)
RATES = st.lists(
    st.tuples(
        st.integers(1, 4),
        st.sampled_from([0.5, 10.0, 60.0]),
        st.sampled_from(["a", "[ab]", "*"]),
        st.booleans(),
    ),
    max_size=3,
    unique_by=lambda rate: rate,
)
NAMES = {"a": {"a"}, "[ab]": {"a", "b"}, "*": {"a", "b", "c"}}


@settings(deadline=None, derandomize=True, max_examples=150)
@given(RATES, STEPS)
def test_it_accepts_and_refuses_as_the_model_does(
    rates: list[tuple[int, float, str, bool]], steps: list[tuple[float, str]]
) -> None:
    clock = [1000.0]
    guard = Guard(Nothing(), rate_limit=[Rate(*rate) for rate in rates], clock=lambda: clock[0])  # type: ignore[arg-type]
    model = Model(
        [(calls, within_s, NAMES[match], shared) for calls, within_s, match, shared in rates],
        clock[0],
    )
    for move, name in steps:
        clock[0] += move
        wait = model.call(name, clock[0])
        result = step(guard, name)
        if wait:
            assert body(result)["retryAfterSeconds"] == wait
        else:
            assert result is DONE


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.lists(MOVES, max_size=60))
def test_without_arguments_it_is_ten_calls_in_sixty_seconds(moves: list[float]) -> None:
    clock = [0.0]
    guard = RateLimit(Nothing(), clock=lambda: clock[0])  # type: ignore[arg-type]
    model = Model([(10, 60.0, {"a"}, False)], clock[0])
    for move in moves:
        clock[0] += move
        assert (step(guard, "a") is DONE) == (model.call("a", clock[0]) == 0)


def test_the_eleventh_call_is_refused_and_told_when_to_come_back() -> None:
    clock = [0.0]
    guard = RateLimit(Nothing(), clock=lambda: clock[0])  # type: ignore[arg-type]
    for _ in range(10):
        assert step(guard, "search") is DONE
        clock[0] += 1
    refused = body(step(guard, "search"))
    assert refused == {
        "error": "Too many calls of search: 10 in 60 s are accepted.",
        "code": "RATE_LIMIT_EXCEEDED",
        "suggestion": "Try again in 50 s.",
        "retryAfterSeconds": 50.0,
    }
    assert step(guard, "other") is DONE
    clock[0] = 59.875
    assert body(step(guard, "search"))["retryAfterSeconds"] == 0.125
    clock[0] = 60.0
    assert step(guard, "search") is DONE


def test_refused_calls_are_not_recorded() -> None:
    clock = [0.0]
    guard = RateLimit(Nothing(), 1, 10, clock=lambda: clock[0])  # type: ignore[arg-type]
    assert step(guard, "a") is DONE
    for second in range(1, 10):
        clock[0] = second
        assert step(guard, "a") is not DONE
    clock[0] = 10
    assert step(guard, "a") is DONE


def test_a_call_that_one_of_two_rates_refuses_counts_in_neither() -> None:
    clock = [0.0]
    guard = Guard(Nothing(), rate_limit=["1/1", Rate(2, 100, shared=True)], clock=lambda: clock[0])  # type: ignore[arg-type]
    assert step(guard, "a") is DONE
    for _ in range(5):
        assert step(guard, "a") is not DONE
    assert step(guard, "b") is DONE
    assert body(step(guard, "c"))["retryAfterSeconds"] == 100


def test_a_name_spelled_with_escapes_is_the_same_name() -> None:
    guard = RateLimit(Nothing(), 1, 60, clock=lambda: 0.0)  # type: ignore[arg-type]
    work = guard.handle(Call("tools/call", {"name": Raw(rb'"\u0061"')}), None)  # type: ignore[arg-type]
    with pytest.raises(StopIteration):
        work.send(None)
    assert step(guard, "a") is not DONE


def test_prompts_and_resources_are_limited_when_they_are_named_and_refused_by_an_error() -> None:
    guard = RateLimit(Nothing(), 1, 60, match=("prompt:*", "resource:a:*"), clock=lambda: 0.0)  # type: ignore[arg-type]
    assert [step(guard, "x") for _ in range(3)] == [DONE] * 3
    for method, member, name in (
        ("prompts/get", "name", "greet"),
        ("resources/read", "uri", "a:b"),
    ):
        assert step(guard, name, method, member) is DONE
        error = step(guard, name, method, member)
        assert isinstance(error, RpcError)
        assert error.code == -31001
        assert error.data["code"] == "RATE_LIMIT_EXCEEDED"  # type: ignore[index]
    assert step(guard, "b:c", "resources/read", "uri") is DONE


def test_any_number_of_names_takes_bounded_memory_and_is_still_limited() -> None:
    guard = RateLimit(Nothing(), 2, 60, clock=lambda: 0.0)  # type: ignore[arg-type]
    accepted = sum(step(guard, f"name{number}") is DONE for number in range(5000))
    assert accepted == 1024 + 2  # each of the first has a window of its own; all others share one
    assert step(guard, "name1") is DONE
    assert len(guard._operations._policies["tools/call"]) == 1024
    assert step(guard, "x" * 100_000) is not DONE


def test_names_that_are_not_called_any_more_make_room() -> None:
    clock = [0.0]
    guard = RateLimit(Nothing(), 1, 60, clock=lambda: clock[0])  # type: ignore[arg-type]
    for number in range(1024):
        assert step(guard, f"old{number}") is DONE
    clock[0] = 60.0
    assert all(step(guard, f"new{number}") is DONE for number in range(1024))
    assert step(guard, "new1") is not DONE


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("10/60", Rate()),
        ("5/0.5", Rate(5, 0.5)),
        ("search_*=3/1", Rate(3, 1.0, "search_*")),
        ("resource:a:b?c=*=3/1", Rate(3, 1.0, "resource:a:b?c=*")),
    ],
)
def test_a_rate_as_text(text: str, rate: Rate) -> None:
    assert Rate.read(text) == rate


@pytest.mark.parametrize("text", ["", "10", "0/60", "10/0", "-1/60", "x/y", "=10/60", "10/60s", 10])
def test_what_is_no_rate_is_named(text: Any) -> None:
    with pytest.raises(ValueError, match="rate: "):
        Rate.read(text)


@pytest.mark.parametrize(
    ("calls", "within_s"),
    [(1.5, 1), (10**30, 1), (True, 1), (1, True), (1, float("inf")), (1, float("nan")), ("1", 1)],
)
def test_a_rate_of_other_types_is_refused(calls: Any, within_s: Any) -> None:
    with pytest.raises(ValueError, match="rate: "):
        Rate(calls, within_s)


def test_a_tool_says_its_own_rate() -> None:
    server = Server("s")

    @server.tool(rate_limit="2/3600")
    async def limited() -> str:
        return "done"

    @server.tool
    async def free() -> str:
        return "done"

    calls = [
        ("tools/call", {"name": name})
        for name in ("limited", "limited", "limited", "free", "free", "free")
    ]
    answers = ask_server(server, *calls)
    assert [each.get("isError", False) for each in answers] == [
        False,
        False,
        True,
        False,
        False,
        False,
    ]
    assert json.loads(text_of(answers[2]))["code"] == "RATE_LIMIT_EXCEEDED"


def test_calls_in_flight_are_refused_beyond_the_limit_and_counted_in_no_rate() -> None:
    async def run() -> None:
        release = asyncio.Event()

        class Waiting:
            async def handle(self, call: Call, context: Any) -> CallToolResult:
                await release.wait()
                return DONE

        guard = Guard(Waiting(), max_in_flight=2, rate_limit="3/60", clock=lambda: 0.0)  # type: ignore[arg-type]
        call = Call("tools/call", {"name": Raw(b'"a"')})
        first, second = (asyncio.ensure_future(guard.handle(call, None)) for _ in range(2))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        refused = body(step(guard, "a"))
        assert (refused["code"], refused["limit"]) == ("TOO_MANY_IN_FLIGHT", 2)
        second.cancel()
        await asyncio.wait([second])
        third = asyncio.ensure_future(guard.handle(call, None))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        release.set()
        assert await asyncio.gather(first, third) == [DONE, DONE]
        assert body(step(guard, "a"))["code"] == "RATE_LIMIT_EXCEEDED"

    asyncio.run(run())
