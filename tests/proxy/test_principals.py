"""Two users of one proxy, alone and as a part of a composition: neither sees anything of the other.

The server keeps whatever it is told, and shows it in every way that MCP has.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from client.scripted import LEGACY, MODERN, on_a_loop
from proxy.proxy_rig import Caller

from concertino.backend import Host
from concertino.backend.interface import Backend
from concertino.composition.composed_backend import ComposedBackend
from concertino.composition.part_names import BoundedNames
from concertino.composition.rules import CompositionRules
from concertino.proxy import Proxy
from concertino.transports.memory import memory_pair
from concertino.types.results import Implementation

SERVER = Path(__file__).with_name("keeping_server.py")
SECRET = "only-for-ada"
RULES = CompositionRules(start_s=20, lists_s=20, list_limit_s=20, maps_uris=True)
Make = Callable[[list[str]], Backend]


def make_proxy(command: list[str]) -> Backend:
    return Proxy(command, name="keeper")


def make_composition(command: list[str]) -> Backend:
    parts = {"keeper": Proxy(command, name="keeper"), "other": Proxy(command, name="other")}
    return ComposedBackend(Implementation("all", "1"), parts, BoundedNames(parts), RULES)


class User:
    """A client of one verified user. prefix: of the names of tools."""

    def __init__(self, caller: Caller, prefix: str) -> None:
        self.caller = caller
        self._prefix = prefix

    def start(self, tool: str, text: str = "") -> int:
        name = f"{self._prefix}{tool}"
        meta = {"progressToken": 7}
        return self.caller.ask("tools/call", meta, name=name, arguments={"text": text})

    async def call(self, tool: str, text: str = "") -> Any:
        """Call a tool and return the process id of its server and what that keeps."""
        response = await self.caller.response(self.start(tool, text))
        return json.loads(response["result"]["content"][0]["text"])

    def sees(self, text: str) -> bool:
        """Return whether anything that came contains the text."""
        return any(text in frame.decode() for frame in self.caller.frames)


@asynccontextmanager
async def two_users(make: Make, revision: str) -> AsyncIterator[tuple[User, User]]:
    """Provide Ada and Bob, on connections of their own to one host."""
    prefix = "keeper_" if make is make_composition else ""
    async with AsyncExitStack() as stack:
        host = await stack.enter_async_context(Host(make([sys.executable, str(SERVER)])))
        users: list[User] = []
        for uid in (1001, 1002):
            ours, theirs = memory_pair()
            theirs.facts = {"transport": "memory", "uid": uid}
            served = host.attach(theirs)
            # Both say the same of themselves: that never counts.
            caller = Caller(ours, revision, {"elicitation": {"form": {}}})
            caller.checked = False
            await caller.initialize()
            users.append(User(caller, prefix))

            async def leave(ours: Any = ours, served: Any = served) -> None:
                await ours.close(1)
                await served.closed

            stack.push_async_callback(leave)
        ada, bob = users
        yield ada, bob


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
@pytest.mark.parametrize("make", [make_proxy, make_composition])
@on_a_loop
async def test_what_one_user_tells_a_server_is_nowhere_for_the_other(
    make: Make, revision: str
) -> None:
    async with two_users(make, revision) as (ada, bob):
        # Bob subscribes and listens to all that he can.
        if revision == LEGACY:
            await bob.caller.call("resources/subscribe", uri="kept:all")
        bobs_pid, _ = await bob.call("pid")
        for method in ("tools/list", "prompts/list", "resources/list"):
            await ada.caller.call(method)
        pid, kept = await ada.call("keep", SECRET)
        assert kept == [SECRET]
        assert pid != bobs_pid

        # Lists were answered for Ada, and may be cached.
        for method in ("tools/list", "prompts/list", "resources/list"):
            await ada.caller.call(method)
        assert ada.sees(f"{SECRET}")
        for method in ("tools/list", "prompts/list", "resources/list"):
            await bob.caller.call(method)
        await bob.caller.call("resources/read", uri="kept:all")
        await bob.caller.call("resources/read", uri=f"kept:{SECRET[:4]}")
        assert await bob.call("pid") == [bobs_pid, []]
        assert not bob.sees(SECRET)
        assert bob.caller.of("notifications/message") == []
        assert bob.caller.of("notifications/resources/updated") == []
        assert bob.caller.of("notifications/tools/list_changed") == []


@pytest.mark.parametrize("make", [make_proxy, make_composition])
@on_a_loop
async def test_tasks_and_events_of_one_user_are_nowhere_for_the_other(make: Make) -> None:
    async with two_users(make, LEGACY) as (ada, bob):
        await bob.call("pid")
        bob.caller.ask("events/stream", name="all")
        stream = ada.caller.ask("events/stream", name="all")
        # Later requests may overtake these, but not their responses.
        await bob.call("pid")
        await ada.call("pid")
        await ada.call("keep", SECRET)

        def events(user: User) -> dict[str, Any]:
            """Return the _meta of the events that a user got, by cursor."""
            lines = user.caller.of("notifications/events/event")
            return {line["params"]["cursor"]: line["params"].get("_meta") for line in lines}

        await ada.caller.until(lambda: SECRET in events(ada))
        assert events(ada)[SECRET] == {"io.modelcontextprotocol/subscriptionId": stream}

        listed = await ada.caller.call("tasks/list")
        [task] = listed["result"]["tasks"]
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            stolen = await bob.caller.call(method, taskId=task["taskId"])
            assert stolen["error"]["message"].endswith("no such task")
        assert (await bob.caller.call("tasks/list"))["result"]["tasks"] == []
        assert (await bob.caller.call("events/list"))["result"]["events"] == []
        assert (await ada.caller.call("tasks/get", taskId=task["taskId"]))["result"]["text"]
        # Bob says that Ada's request has ended.
        cancelled = {"requestId": stream}
        bob.caller.send({"method": "notifications/cancelled", "params": cancelled})
        await bob.call("keep", "for-bob")
        await ada.call("keep", "more")
        await ada.caller.until(lambda: "more" in events(ada))
        await bob.caller.until(lambda: "for-bob" in events(bob))
        assert not bob.sees(SECRET)
        assert not ada.sees("for-bob")


@pytest.mark.parametrize("make", [make_proxy, make_composition])
@on_a_loop
async def test_a_question_goes_to_the_user_whose_call_it_belongs_to(make: Make) -> None:
    async with two_users(make, LEGACY) as (ada, bob):
        await ada.call("pid")
        await bob.call("pid")
        asked = ada.start("ask", SECRET)
        # Bob has a newer call, and answers a question that he never got.
        waiting = bob.start("wait")
        await ada.caller.until(lambda: ada.caller.of("elicitation/create"))
        [question] = ada.caller.of("elicitation/create")
        forged = {"action": "accept", "content": {"name": "Bob"}}
        bob.caller.send({"id": question["id"], "result": forged})
        await bob.caller.call("ping")
        ada.caller.send({"id": question["id"], "result": {"action": "decline"}})
        answer = json.loads((await ada.caller.response(asked))["result"]["content"][0]["text"])
        assert answer["result"] == {"action": "decline"}
        assert bob.caller.of("elicitation/create") == []
        assert not bob.sees(SECRET)
        bob.caller.send({"method": "notifications/cancelled", "params": {"requestId": waiting}})


@pytest.mark.parametrize("make", [make_proxy, make_composition])
@on_a_loop
async def test_a_parked_question_cannot_be_answered_by_the_other_user(make: Make) -> None:
    async with two_users(make, MODERN) as (ada, bob):
        await bob.call("pid")
        asked = (await ada.caller.response(ada.start("ask", SECRET)))["result"]
        assert asked["resultType"] == "input_required"
        prefix = "keeper_" if make is make_composition else ""
        answers = {key: {"action": "decline"} for key in asked["inputRequests"]}
        repeated: dict[str, Any] = {
            "name": f"{prefix}ask",
            "arguments": {"text": SECRET},
            "inputResponses": answers,
            "requestState": asked["requestState"],
        }
        stolen = await bob.caller.call("tools/call", **repeated)
        assert stolen["error"]["code"] == -32602
        # The call still waits for Ada.
        finished = await ada.caller.call("tools/call", **repeated)
        answer = json.loads(finished["result"]["content"][0]["text"])
        assert answer["result"] == {"action": "decline"}


@pytest.mark.parametrize("make", [make_proxy, make_composition])
@on_a_loop
async def test_logs_and_cancellations_of_one_user_do_not_reach_the_other_s_calls(
    make: Make,
) -> None:
    """Their requests have the same ids and progress tokens."""
    async with two_users(make, LEGACY) as (ada, bob):
        await ada.call("pid")
        await bob.call("pid")
        waiting = ada.start("wait", SECRET)
        await ada.caller.until(lambda: ada.caller.of("notifications/message"))
        same = bob.start("wait", "for-bob")
        assert same == waiting
        await bob.caller.until(lambda: bob.caller.of("notifications/message"))
        bob.caller.send({"method": "notifications/cancelled", "params": {"requestId": same}})
        await bob.caller.call("ping")
        # A server that is killed says so to its own callers only.
        died = await bob.caller.response(bob.start("die", "bobs-stderr"))
        assert died["error"]["code"] == -32603
        await ada.caller.call("ping")
        assert not any("id" in line and line["id"] == waiting for line in ada.caller.lines)
        assert not bob.sees(SECRET)
        assert not ada.sees("bob")


@on_a_loop
async def test_errors_of_a_server_that_ends_have_nothing_of_what_it_printed() -> None:
    """It may be about another user's calls where one process serves several."""

    def make_shared(command: list[str]) -> Backend:
        return Proxy(command, name="keeper", isolation="shared")

    async with two_users(make_shared, LEGACY) as (ada, bob):
        first, _ = await ada.call("pid")
        assert (await bob.call("pid"))[0] == first
        waiting = bob.start("wait")
        await bob.caller.until(lambda: bob.caller.of("notifications/message"))
        died = await ada.caller.response(ada.start("die", SECRET))
        assert died["error"]["code"] == -32603
        lost = await bob.caller.response(waiting)
        assert lost["error"]["code"] == -32603
        assert not bob.sees(SECRET)
