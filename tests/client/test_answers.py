"""What a server asks while it works on a call: elicitation, sampling, roots, in both kinds of
revisions.

Shapes are those of the specification: 2026-07-28 basic/patterns/mrtr, client/elicitation,
client/sampling, client/roots; 2025-11-25 for the requests.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from client.scripted import SILENCE, Script, on_a_loop, opened

from concertino.client.elicitation_filler import fill_form
from concertino.errors import ProtocolError, RpcError
from concertino.types.client_requests import (
    CreateMessageResult,
    Elicitation,
    ElicitResult,
    Root,
    Sampling,
)
from concertino.types.results import Implementation, TextContent

TEXT = {"content": [{"type": "text", "text": "done"}], "resultType": "complete"}
FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "size": {"type": "integer", "default": 3},
    },
    "required": ["name"],
}
ELICIT = {
    "method": "elicitation/create",
    "params": {"message": "Who?", "mode": "form", "requestedSchema": FORM},
}
SAMPLE = {
    "method": "sampling/createMessage",
    "params": {
        "messages": [{"role": "user", "content": {"type": "text", "text": "Hi"}}],
        "maxTokens": 10,
    },
}
ROOTS = {"method": "roots/list"}


def asks(questions: dict[str, Any], state: Any = "s") -> Any:
    """A tool that asks once, and then shows what it was answered."""

    def handler(script: Script, message: dict[str, Any]) -> Any:
        params = message["params"]
        if "inputResponses" in params or "requestState" in params:
            shown = {
                key: params[key] for key in ("inputResponses", "requestState") if key in params
            }
            return {**TEXT, "structuredContent": shown}
        asked: dict[str, Any] = {"resultType": "input_required"}
        if questions:
            asked["inputRequests"] = questions
        if state is not None:
            asked["requestState"] = state
        return asked

    return handler


async def ask(script: Script, question: dict[str, Any], id: Any = "q") -> dict[str, Any]:
    """One question as a request; its answer."""
    script.send({"jsonrpc": "2.0", "id": id, "params": {}, **question})
    found: list[dict[str, Any]] = []

    def answered() -> bool:
        found[:] = [each for each in script.came if "method" not in each and each.get("id") == id]
        return bool(found)

    await script.until(answered)
    return found[0]


# Rounds


@pytest.mark.requirement("MR-13", "MR-17", "EL-14", "SA-3", side="client")
@on_a_loop
async def test_questions_of_all_kinds_are_answered_and_the_call_is_repeated() -> None:
    def elicit(question: Elicitation, server: Implementation) -> Any:
        assert (question.message, question.mode, question.requested_schema) == (
            "Who?",
            "form",
            FORM,
        )
        assert server.name == "script"
        return {"name": "Ada"}

    async def sample(question: Sampling, server: Implementation) -> str:
        assert question.messages[0].content == TextContent("Hi")
        await asyncio.sleep(0)
        return "Hello"

    handlers = {"tools/call": asks({"a": ELICIT, "b": SAMPLE, "c": ROOTS})}
    async with opened(handlers, elicit=elicit, sample=sample, roots=["file:///work"]) as (
        client,
        script,
    ):
        result = await client.call_tool("x", {"n": 1}, into=dict)
        assert result == {
            "inputResponses": {
                "a": {"action": "accept", "content": {"name": "Ada", "size": 3}},
                "b": {
                    "role": "assistant",
                    "content": {"type": "text", "text": "Hello"},
                    "model": "unknown",
                    "stopReason": "endTurn",
                },
                "c": {"roots": [{"uri": "file:///work"}]},
            },
            "requestState": "s",
        }
        first, second = script.of("tools/call")
        assert first["id"] != second["id"]
        assert first["params"]["_meta"] == second["params"]["_meta"]
        assert second["params"]["arguments"] == {"n": 1}
        declared = first["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]
        assert declared == {"elicitation": {"form": {}}, "sampling": {}, "roots": {}}


@pytest.mark.requirement("MR-14", side="client")
@pytest.mark.parametrize("state", ['"plain"', r'"A\/\u00e9\ud83d\ude00 \"\\"', '""'])
@on_a_loop
async def test_the_state_goes_back_byte_for_byte(state: str) -> None:
    seen: list[bytes] = []

    class Listening(Script):
        def on_frames(self, batch: Any) -> None:
            seen.extend(batch)
            super().on_frames(batch)

    def handler(script: Script, message: dict[str, Any]) -> Any:
        if "requestState" in message["params"]:
            return TEXT
        script.send(
            b'{"jsonrpc":"2.0","id":%d,"result":{"resultType":"input_required","requestState":%b}}'
            % (message["id"], state.encode())
        )
        return SILENCE

    async with opened({"tools/call": handler}) as (client, script):
        script.connection._receiver = Listening.__new__(Listening)  # pyright: ignore[reportPrivateUsage]
        script.connection._receiver.__dict__ = script.__dict__  # pyright: ignore[reportPrivateUsage]
        await client.call_tool("x")
    assert b'"requestState":' + state.encode() in seen[-1]


@pytest.mark.requirement("MR-14", side="client")
@on_a_loop
async def test_without_a_state_none_is_sent_and_without_questions_no_answers() -> None:
    async with opened({"tools/call": asks({"r": ROOTS}, state=None)}, roots=[]) as (client, _):
        assert await client.call_tool("x", into=dict) == {"inputResponses": {"r": {"roots": []}}}
    async with opened({"tools/call": asks({})}) as (client, _):
        assert await client.call_tool("x", into=dict) == {"requestState": "s"}


@pytest.mark.requirement("MR-19", side="client")
@on_a_loop
async def test_a_server_that_asks_for_ever_is_stopped() -> None:
    for_ever = {"resultType": "input_required", "requestState": "again"}
    async with opened({"tools/call": for_ever}, rounds=5) as (client, script):
        with pytest.raises(ProtocolError, match="tools/call x: the server asked for input 5 times"):
            await client.call_tool("x")
        assert len(script.of("tools/call")) == 6


@pytest.mark.requirement("MR-16", side="client")
@on_a_loop
async def test_parallel_calls_keep_their_states_apart() -> None:
    def handler(script: Script, message: dict[str, Any]) -> Any:
        n = message["params"]["arguments"]["n"]
        if "requestState" not in message["params"]:
            return {"resultType": "input_required", "requestState": f"state {n}"}
        return {**TEXT, "structuredContent": [n, message["params"]["requestState"]]}

    async with opened({"tools/call": handler}) as (client, _):
        results = await asyncio.gather(
            *(client.call_tool("x", {"n": n}, into=list) for n in range(50))
        )
        assert results == [[n, f"state {n}"] for n in range(50)]


@pytest.mark.requirement("JR-16", "EC-10", side="client")
@pytest.mark.parametrize(
    ("question", "code"),
    [
        (ELICIT, -32601),
        (SAMPLE, -32601),
        (ROOTS, -32601),
        ({"method": "shell/run", "params": {"command": "rm -rf /"}}, -32601),
    ],
)
@on_a_loop
async def test_what_was_not_offered_is_refused_and_the_call_not_repeated(
    question: Any, code: int
) -> None:
    async with opened({"tools/call": asks({"q": question})}) as (client, script):
        with pytest.raises(RpcError, match="was not offered by this client"):
            await client.call_tool("x")
        assert len(script.of("tools/call")) == 1
    async with opened({}, "legacy") as (_, script):
        assert (await ask(script, question))["error"]["code"] == code


@pytest.mark.parametrize(
    "result",
    [{"resultType": "input_required"}, {"resultType": "input_required", "inputRequests": 5}],
)
@on_a_loop
async def test_a_wish_without_a_question_is_shown(result: Any) -> None:
    async with opened({"tools/call": result}) as (client, _):
        with pytest.raises(ProtocolError, match="input"):
            await client.call_tool("x")


@on_a_loop
async def test_only_calls_prompts_and_resources_may_ask() -> None:
    """MR-2."""
    async with opened({"tools/list": {"resultType": "input_required", "requestState": "x"}}) as (
        client,
        _,
    ):
        with pytest.raises(
            ProtocolError, match="tools/list: a result of unknown type 'input_required'"
        ):
            await client.list_tools()


# Requests


@pytest.mark.requirement("LC-14", "EL-1", "RO-1", side="client")
@on_a_loop
async def test_the_same_functions_answer_the_requests_of_older_servers() -> None:
    async with opened(
        {},
        "legacy",
        elicit=lambda question, server: {"name": "Ada"},
        sample=lambda question, server: "Hello",
        roots=[Root("file:///a", "A")],
    ) as (_, script):
        [initialize] = script.of("initialize")
        assert initialize["params"]["capabilities"] == {
            "elicitation": {"form": {}},
            "sampling": {},
            "roots": {"listChanged": True},
        }
        answer = await ask(script, ELICIT, 1)
        assert answer["result"] == {"action": "accept", "content": {"name": "Ada", "size": 3}}
        assert (await ask(script, SAMPLE, 2))["result"]["content"] == {
            "type": "text",
            "text": "Hello",
        }
        assert (await ask(script, ROOTS, 3))["result"] == {
            "roots": [{"uri": "file:///a", "name": "A"}]
        }
        assert (await ask(script, {"method": "ping"}, "3"))["result"] == {}


@pytest.mark.requirement("JR-18", side="client")
@on_a_loop
async def test_a_question_is_answered_while_the_call_that_it_belongs_to_waits() -> None:
    def handler(script: Script, message: dict[str, Any]) -> Any:
        async def work() -> None:
            answer = await ask(script, ELICIT)
            script.answer(message, {**TEXT, "structuredContent": answer["result"]})

        script.work = asyncio.ensure_future(work())  # pyright: ignore[reportAttributeAccessIssue]
        return SILENCE

    async with opened({"tools/call": handler}, "legacy", elicit=lambda *_: "decline") as (
        client,
        _,
    ):
        assert await client.call_tool("x", into=dict) == {"action": "decline"}


@pytest.mark.requirement("CA-3", "CA-5", side="client")
@on_a_loop
async def test_a_question_that_is_cancelled_is_not_answered() -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def elicit(question: Elicitation, server: Implementation) -> Any:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with opened({}, "legacy", elicit=elicit) as (_, script):
        script.send({"jsonrpc": "2.0", "id": 7, **ELICIT})
        await begun.wait()
        script.notify("notifications/cancelled", requestId=7)
        await cancelled.wait()
        assert (await ask(script, {"method": "ping"}, 8))["result"] == {}
        assert [message for message in script.came if message.get("id") == 7] == []


@on_a_loop
async def test_questions_under_way_end_with_the_client() -> None:
    begun = asyncio.Event()

    async def elicit(question: Elicitation, server: Implementation) -> Any:
        begun.set()
        await asyncio.Event().wait()

    async with opened({}, "legacy", elicit=elicit) as (_, script):
        script.send({"jsonrpc": "2.0", "id": 7, **ELICIT})
        await begun.wait()


@pytest.mark.requirement("FR-12", "JR-17", side="client")
@on_a_loop
async def test_since_2026_a_request_of_the_servers_is_neither_answered_nor_heard() -> None:
    """FR-12: the client writes no responses."""
    asked: list[Any] = []
    async with opened({"tools/call": TEXT}, elicit=lambda *_: asked.append(1)) as (client, script):
        script.send(
            {"jsonrpc": "2.0", "id": 1, **ELICIT}, {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        )
        await client.call_tool("x")
        assert asked == []
        assert client.stray == 2
        assert [message for message in script.came if "method" not in message] == []


# What the functions return


@pytest.mark.requirement("EL-14", side="client")
@pytest.mark.parametrize(
    ("said", "result"),
    [
        ({"name": "Ada", "size": 5}, {"action": "accept", "content": {"name": "Ada", "size": 5}}),
        ("decline", {"action": "decline"}),
        ("cancel", {"action": "cancel"}),
        (None, {"action": "cancel"}),
        (ElicitResult("decline"), {"action": "decline"}),
        (
            ElicitResult("accept", {"name": "Ada"}),
            {"action": "accept", "content": {"name": "Ada", "size": 3}},
        ),
    ],
)
@on_a_loop
async def test_every_way_to_answer_a_form(said: Any, result: Any) -> None:
    async with opened({}, "legacy", elicit=lambda *_: said) as (_, script):
        assert (await ask(script, ELICIT))["result"] == result


@pytest.mark.requirement("EL-6", side="client")
@pytest.mark.parametrize(
    "said", [{"size": 1}, {"name": ""}, {"name": "Ada", "size": "big"}, 5, ["Ada"]]
)
@on_a_loop
async def test_an_answer_that_does_not_fit_the_form_does_not_leave(
    said: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened({}, "legacy", elicit=lambda *_: said) as (_, script):
        assert (await ask(script, ELICIT))["error"]["code"] == -32603
        assert caplog.records[-1].levelname == "ERROR"


@on_a_loop
async def test_a_function_that_fails_is_logged_and_says_no_more_than_that(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def elicit(question: Elicitation, server: Implementation) -> Any:
        raise ValueError("a private path")

    async with opened({"tools/call": asks({"q": ELICIT})}, elicit=elicit) as (client, _):
        with pytest.raises(RpcError, match="could not answer"):
            await client.call_tool("x")
    async with opened({}, "legacy", elicit=elicit) as (_, script):
        error = (await ask(script, ELICIT))["error"]
        assert error["code"] == -32603
        assert "private" not in error["message"]
    assert "a private path" in caplog.text


@pytest.mark.requirement("EC-9", side="client")
@on_a_loop
async def test_a_person_may_refuse_to_sample_with_a_code() -> None:
    """EC-9: user rejected is -1."""

    def sample(question: Sampling, server: Implementation) -> Any:
        raise RpcError(-1, "User rejected sampling request")

    async with opened({}, "legacy", sample=sample) as (_, script):
        assert (await ask(script, SAMPLE))["error"] == {
            "code": -1,
            "message": "User rejected sampling request",
        }


@pytest.mark.requirement("CO-5", side="client")
@on_a_loop
async def test_a_whole_message_of_a_model_is_passed_on() -> None:
    said = CreateMessageResult(
        "assistant", [TextContent("a"), TextContent("b")], model="m1", stop_reason="maxTokens"
    )
    async with opened({}, "legacy", sample=lambda *_: said) as (_, script):
        assert (await ask(script, SAMPLE))["result"] == {
            "role": "assistant",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            "model": "m1",
            "stopReason": "maxTokens",
        }


@pytest.mark.requirement("SA-1", side="client")
@on_a_loop
async def test_tools_for_a_model_are_refused_unless_offered() -> None:
    with_tools = {
        **SAMPLE,
        "params": SAMPLE["params"] | {"tools": [{"name": "t", "inputSchema": {}}]},
    }  # pyright: ignore[reportOperatorIssue]
    async with opened({}, "legacy", sample=lambda *_: "x") as (_, script):
        assert (await ask(script, with_tools))["error"]["code"] == -32602
    async with opened({}, "legacy", sample=lambda *_: "x", sampling={"tools": {}}) as (_, script):
        assert (await ask(script, with_tools))["result"]["model"] == "unknown"
        assert script.of("initialize")[0]["params"]["capabilities"]["sampling"] == {"tools": {}}


@pytest.mark.requirement("EC-11", "EL-2", "EL-10", side="client")
@on_a_loop
async def test_a_url_reaches_the_function_only_if_that_was_offered() -> None:
    question = {
        "method": "elicitation/create",
        "params": {"mode": "url", "message": "Open?", "url": "https://x.example/"},
    }
    seen: list[str | None] = []

    def elicit(asked: Elicitation, server: Implementation) -> str:
        seen.append(asked.url)
        return "accept"

    async with opened({}, "legacy", elicit=elicit) as (_, script):
        assert (await ask(script, question))["error"]["code"] == -32602  # EC-11
        assert seen == []
    async with opened({}, "legacy", elicit=elicit, elicit_urls=True) as (_, script):
        assert (await ask(script, question))["result"] == {"action": "accept"}
        assert seen == ["https://x.example/"]
        assert (await ask(script, {**question, "params": {"mode": "url", "message": "x"}}, 2))[
            "error"
        ]["code"] == -32602


@pytest.mark.requirement("JR-16", side="client")
@on_a_loop
async def test_malformed_questions_are_refused() -> None:
    async with opened({}, "legacy", elicit=lambda *_: {}, sample=lambda *_: "", roots=[]) as (
        _,
        script,
    ):
        for id, (method, params) in enumerate(
            [
                ("elicitation/create", {}),
                ("elicitation/create", {"message": 5}),
                ("sampling/createMessage", {"messages": []}),
            ]
        ):
            assert (await ask(script, {"method": method, "params": params}, id))["error"][
                "code"
            ] == -32602


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": [1]},
        {"properties": "x"},
        {"properties": {"a": {}}, "required": 5},
        {"required": [{}]},
    ],
)
@on_a_loop
async def test_a_form_that_makes_no_sense_is_refused_in_every_era(schema: Any) -> None:
    """What a server says never raises what is not documented out of a call."""
    question = {
        "method": "elicitation/create",
        "params": {"message": "?", "requestedSchema": schema},
    }
    async with opened({"tools/call": asks({"q": question})}, elicit=lambda *_: {"a": "b"}) as (
        client,
        _,
    ):
        with pytest.raises(RpcError, match="Invalid params: Expected"):
            await client.call_tool("x")
    async with opened({}, "legacy", elicit=lambda *_: {"a": "b"}) as (_, script):
        assert (await ask(script, question))["error"]["code"] == -32602


@pytest.mark.requirement("RO-1", "RO-2", "RO-3", side="client")
@on_a_loop
async def test_roots_may_change() -> None:
    async with opened({}, "legacy", roots=["file:///a"]) as (client, script):
        client.set_roots(lambda: ["file:///b"])
        await script.until(lambda: script.of("notifications/roots/list_changed"))
        assert (await ask(script, ROOTS))["result"] == {"roots": [{"uri": "file:///b"}]}
    with pytest.raises(ValueError, match="begins with file://"):
        async with opened({}, roots=["https://x"]):
            pass


# Forms


@pytest.mark.requirement("EL-6", side="client")
@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ({"type": "string", "maxLength": 2}, ["", "ab"], ["abc", 5, None]),
        ({"type": "integer", "minimum": 1, "maximum": 3}, [1, 3], [0, 4, 1.5, True, "1"]),
        ({"type": "number", "minimum": 0.5}, [0.5, 7], [0.4, "x", False]),
        ({"type": "boolean"}, [True, False], [0, "true"]),
        ({"type": "string", "enum": ["a", "b"]}, ["a"], ["c"]),
        ({"type": "string", "oneOf": [{"const": "a", "title": "A"}, {"const": "b", "title": "B"}]},
            ["b"], ["A"]),
        (
            {"type": "array", "minItems": 1, "maxItems": 2, "items": {"enum": ["a", "b", "c"]}},
            [["a"], ["a", "c"]],
            [[], ["d"], "a", ["a", "b", "c"]],
        ),
        ({"type": "array", "items": {"anyOf": [{"const": "a", "title": "A"}]}}, [[], ["a"]],
            [["b"]]),
        ({"type": "mystery"}, [1, "x"], []),
    ],
)  # fmt: skip
def test_values_of_a_form(field: dict[str, Any], good: list[Any], bad: list[Any]) -> None:
    schema = {"type": "object", "properties": {"f": field}}
    for value in good:
        assert fill_form(schema, {"f": value}) == {"f": value}
    for value in bad:
        with pytest.raises(ValueError, match=r"^f: expected"):
            fill_form(schema, {"f": value})


def test_a_form_without_anything_takes_anything() -> None:
    assert fill_form({}, {"x": 1}) == {"x": 1}
    assert fill_form({"properties": {"a": {"default": None}, "b": True}}, {}) == {"a": None}
