"""protocol/dialogue.py: what a call asks, in which rounds, and in whose words.

Rules: 2026-07-28 basic/patterns/mrtr, client/elicitation, client/sampling, client/roots
(REQUIREMENTS A.8, A.20); the shapes that older revisions carry: part B.3, and their schemas.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import wire
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, multiple, rule
from msgspec import Raw
from msgspec.json import decode, encode

from concertino.errors import InvalidClientResponse, MissingCapability, RpcError
from concertino.protocol.call import ClientFacts
from concertino.protocol.dialogue import (
    MAX_KEY,
    MAX_ROUNDS,
    Dialogue,
    binding,
    check_response,
    downgrade_request,
    read_forwarded,
    resume_dialogue,
    to_wire_request,
    use_state,
)
from concertino.protocol.revisions import by_name
from concertino.protocol.seal import LIFETIME_S, Seal
from concertino.types.client_requests import (
    ClientRequest,
    Elicitation,
    InputRequest,
    ListRoots,
    Sampling,
    SamplingMessage,
    ToolResultContent,
    ToolUseContent,
)
from concertino.types.results import AudioContent, TextContent

A, B, C, D, E = wire.REVISIONS
FORM: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}}
WHO = to_wire_request(Elicitation("Who?", requested_schema=FORM))
WHERE = to_wire_request(Elicitation("Where?", requested_schema=FORM))
ADA = Raw(b'{"action":"accept","content":{"name":"Ada"}}')
SAID = Raw(b'{"role":"assistant","content":{"type":"text","text":"x"},"model":"m"}')
CALL = b"c" * 32


class Clock:
    def __init__(self) -> None:
        self.now = 1e6

    def __call__(self) -> float:
        return self.now


def a_seal(clock: Clock | None = None) -> Seal:
    numbers = iter(range(1, 10**6))
    return Seal(b"k" * 32, clock or Clock(), lambda size: next(numbers).to_bytes(size, "big"))


def accept_next_round(
    seal: Seal, token: str | None, answers: dict[str, Raw], bound: bytes = CALL
) -> Dialogue:
    """The next round of a call, accepted."""
    dialogue, sealed = resume_dialogue(lambda: seal, token, answers, lambda: bound)
    if sealed is not None:
        seal.mark_used(sealed)
    return dialogue


# Rounds


@pytest.mark.requirement("MR-9")
def test_a_question_is_put_and_answered_in_the_next_round() -> None:
    seal, first = a_seal(), Dialogue()
    assert first.ask({"who": WHO}) is None
    assert first.unanswered == {"who": WHO}
    second = accept_next_round(seal, first.seal_state(seal, CALL, b""), {"who": ADA})
    assert second.ask({"who": WHO}) == {"who": ADA}
    assert second.unanswered == {}
    assert second.answers == {"who": ADA}


def test_answers_of_all_rounds_stay() -> None:
    seal, dialogue = a_seal(), Dialogue()
    for number in range(5):
        for before in range(number):
            assert dialogue.ask({f"q{before}": WHO}) is not None
        assert dialogue.ask({f"q{number}": WHO}) is None
        dialogue = accept_next_round(
            seal, dialogue.seal_state(seal, CALL, b""), {f"q{number}": ADA}
        )
    assert list(dialogue.answers) == ["q0", "q1", "q2", "q3", "q4"]


@pytest.mark.requirement("MR-10")
def test_several_at_once_and_those_that_were_left_out_are_asked_again() -> None:
    """REQUIREMENTS MR-10: "Missing needed response -> ask again"."""
    seal, first = a_seal(), Dialogue()
    assert first.ask({"a": WHO, "b": WHERE}) is None
    second = accept_next_round(seal, first.seal_state(seal, CALL, b""), {"a": ADA})
    assert second.ask({"a": WHO, "b": WHERE}) is None
    assert second.unanswered == {"b": WHERE}
    third = accept_next_round(seal, second.seal_state(seal, CALL, b""), {"b": ADA})
    assert third.ask({"a": WHO, "b": WHERE}) == {"a": ADA, "b": ADA}


@pytest.mark.requirement("MR-11")
def test_answers_that_nobody_asked_for_are_ignored() -> None:
    seal, first = a_seal(), Dialogue()
    first.ask({"a": WHO})
    second = accept_next_round(
        seal, first.seal_state(seal, CALL, b""), {"a": ADA, "other": Raw(b"5"), "": ADA}
    )
    assert second.answers == {"a": ADA}


def test_an_answer_counts_for_its_own_question_only() -> None:
    seal, first = a_seal(), Dialogue()
    first.ask({"sure": WHO})
    second = accept_next_round(seal, first.seal_state(seal, CALL, b""), {"sure": ADA})
    assert second.ask({"sure": WHERE}) is None
    assert second.unanswered == {"sure": WHERE}


def test_an_answer_to_an_earlier_question_of_a_backend_is_none_to_what_it_asks_now() -> None:
    """As in the test above, for who reads the answers by their keys: nobody has said yes to the
    second question.
    """
    seal, dialogue = a_seal(), Dialogue()
    dialogue.unanswered = {"sure": WHO}
    dialogue = accept_next_round(seal, dialogue.seal_state(seal, CALL, b"1"), {"sure": ADA})
    dialogue.unanswered = {"sure": WHERE}
    dialogue = accept_next_round(seal, dialogue.seal_state(seal, CALL, b"2"), {})
    assert dialogue.answers == {}


@pytest.mark.requirement("MR-4")
def test_two_questions_of_a_round_cannot_have_one_key() -> None:
    dialogue = Dialogue()
    dialogue.ask({"a": WHO})
    assert dialogue.ask({"a": WHO}) is None
    with pytest.raises(ValueError, match="another request of this call has the same key"):
        dialogue.ask({"a": WHERE})
    for key in ("", "k" * (MAX_KEY + 1)):
        with pytest.raises(ValueError, match="1 to 128 characters"):
            dialogue.ask({key: WHO})


def test_keys_are_numbered_in_the_order_of_asking() -> None:
    dialogue = Dialogue()
    assert [dialogue.next_key() for _ in range(3)] == ["q1", "q2", "q3"]


def test_what_was_kept_and_a_backend_s_state_come_back() -> None:
    seal, first = a_seal(), Dialogue()
    first.saved["once"] = Raw(b"[1]")
    second = accept_next_round(seal, first.seal_state(seal, CALL, b"\0\xff"), {})
    assert (second.saved, second.state, second.round) == ({"once": Raw(b"[1]")}, b"\0\xff", 1)


def test_rounds_are_bounded() -> None:
    seal, dialogue = a_seal(), Dialogue()
    for _ in range(MAX_ROUNDS):
        dialogue = accept_next_round(seal, dialogue.seal_state(seal, CALL, b""), {})
    with pytest.raises(RpcError, match="asked 16 times") as error:
        dialogue.seal_state(seal, CALL, b"")
    assert error.value.code == -32603


def test_a_state_that_is_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match="the limit is 65536"):
        Dialogue().seal_state(a_seal(), CALL, b"x" * 65536)


# Answers without a state


def test_an_answer_may_come_with_the_first_call() -> None:
    """The official suite does that: input-required-result-ignore-extra-params."""
    dialogue = accept_next_round(a_seal(), None, {"who": ADA, "extra": Raw(b"5")})
    assert dialogue.ask({"who": WHO}) == {"who": ADA}
    assert dialogue.ask({"who": WHO}) == {"who": ADA}


def test_such_an_answer_is_checked_when_it_is_asked_for_and_kept_only_then() -> None:
    seal = a_seal()
    dialogue = accept_next_round(seal, None, {"who": Raw(b"12345"), "where": ADA, "extra": ADA})
    with pytest.raises(InvalidClientResponse, match="who: an answer to elicitation/create"):
        dialogue.ask({"who": WHO})
    assert dialogue.ask({"where": WHERE, "more": WHO}) is None
    assert list(accept_next_round(seal, dialogue.seal_state(seal, CALL, b""), {}).answers) == [
        "where"
    ]


# States that are refused


@pytest.mark.requirement("MR-6")
@pytest.mark.parametrize("token", ["", "AAAA", "x" * 70000, "é"])
def test_what_is_no_state_is_invalid(token: str) -> None:
    with pytest.raises(RpcError, match=r"Invalid params: requestState") as error:
        accept_next_round(a_seal(), token, {})
    assert error.value.code == -32602


def test_a_state_that_another_process_was_faster_to_use_is_invalid() -> None:
    class UsedElsewhere:
        def use(self, nonce: bytes, until: float) -> bool:
            return False

    seal = Seal(bytes(32), lambda: 1e6, bytes, record=UsedElsewhere())
    opened = seal.open_token(seal.create_token(b"", CALL), CALL)
    with pytest.raises(RpcError, match=r"Invalid params: requestState") as error:
        use_state(seal, opened)
    assert error.value.code == -32602


def test_a_state_of_another_release_with_the_same_key_is_invalid() -> None:
    seal = a_seal()
    for content in (b"", b"[1]", b"[1,{},{},{}]", b"null", b"\xff"):
        with pytest.raises(RpcError, match="requestState: it is none of this server's") as error:
            accept_next_round(seal, seal.create_token(content, CALL), {})
        assert error.value.code == -32602


@pytest.mark.requirement("MR-8")
def test_a_state_is_good_once_for_its_call_and_in_time() -> None:
    clock = Clock()
    seal = a_seal(clock)
    token = Dialogue().seal_state(seal, CALL, b"")
    with pytest.raises(RpcError, match="belongs to another call"):
        accept_next_round(seal, token, {}, b"d" * 32)
    accept_next_round(seal, token, {})
    with pytest.raises(RpcError, match="used before"):
        accept_next_round(seal, token, {})
    late = Dialogue().seal_state(seal, CALL, b"")
    clock.now += LIFETIME_S
    with pytest.raises(RpcError, match="older than 600 s"):
        accept_next_round(seal, late, {})


@pytest.mark.requirement("MR-12")
def test_an_answer_of_the_wrong_shape_is_refused_before_anything_runs() -> None:
    seal, first = a_seal(), Dialogue()
    first.ask({"who": WHO})
    token = first.seal_state(seal, CALL, b"")
    for wrong in (
        b"null",
        b"5",
        b"{}",
        b'{"action":"yes"}',
        b'{"action":"accept","content":[]}',
        b"[" * 2000 + b"]" * 2000,
    ):
        with pytest.raises(InvalidClientResponse) as error:
            accept_next_round(seal, token, {"who": Raw(wrong)})
        assert error.value.code == -32602
    assert accept_next_round(seal, token, {"who": ADA}).answers == {
        "who": ADA
    }  # the refusals did not spend it


@pytest.mark.requirement("MR-17")
@pytest.mark.parametrize(
    ("method", "good", "bad"),
    [
        ("elicitation/create", b'{"action":"cancel"}', b'{"roots":[]}'),
        ("sampling/createMessage", bytes(SAID), b'{"role":"assistant"}'),
        ("roots/list", b'{"roots":[{"uri":"file:///a"}]}', b'{"roots":5}'),
    ],
)
def test_each_kind_of_question_has_its_own_answers(method: str, good: bytes, bad: bytes) -> None:
    check_response("k", method, Raw(good))
    with pytest.raises(InvalidClientResponse, match=method):
        check_response("k", method, Raw(bad))


# What a state belongs to


def test_the_spelling_of_params_does_not_matter_and_everything_else_does() -> None:
    one = binding("tools/call", {"name": Raw(b'"a"'), "arguments": Raw(b'{"x":1,"y":[2]}')}, b"")
    assert one == binding(
        "tools/call", {"arguments": Raw(b'{ "y" : [2], "x":1 }'), "name": Raw(b'"\\u0061"')}, b""
    )
    others = [
        binding("prompts/get", {"name": Raw(b'"a"'), "arguments": Raw(b'{"x":1,"y":[2]}')}, b""),
        binding("tools/call", {"name": Raw(b'"a"'), "arguments": Raw(b'{"x":1,"y":[3]}')}, b""),
        binding("tools/call", {"name": Raw(b'"a"'), "arguments": Raw(b'{"x":true,"y":[2]}')}, b""),
        binding("tools/call", {"name": Raw(b'"a"'), "arguments": Raw(b'{"x":1,"y":[2]}')}, b"1000"),
        binding(
            "tools/call", {"name": Raw(b'"a"'), "arguments": Raw(b'{"x":1,"y":[2]}')}, b"", b"other"
        ),
    ]
    assert one not in others


def test_params_that_are_too_deep_to_be_read_still_bind() -> None:
    deep = {"arguments": Raw(b"[" * 5000 + b"]" * 5000)}
    assert binding("tools/call", deep, b"") == binding("tools/call", deep, b"")


# Before 2026-07-28


def test_an_answer_that_comes_at_once_is_remembered_for_the_same_question() -> None:
    dialogue = Dialogue()
    assert dialogue.ask({"a": WHO, "b": WHERE}) is None
    dialogue.add_answer("a", ADA)
    assert dialogue.unanswered == {"b": WHERE}
    dialogue.add_answer("b", ADA)
    assert dialogue.ask({"a": WHO, "b": WHERE}) == {"a": ADA, "b": ADA}
    dialogue.ask({"c": WHO})
    with pytest.raises(InvalidClientResponse):
        dialogue.add_answer("c", Raw(b"{}"))


# Questions, and who may be asked


def client(revision: str, capabilities: Any) -> ClientFacts:
    return ClientFacts("c", "1", revision, capabilities)


def put(question: ClientRequest, revision: str, capabilities: Any) -> InputRequest:
    return downgrade_request(
        to_wire_request(question),
        by_name[revision],
        client(revision, capabilities),
        lambda: "visit-1",
    )


ALL = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}, "context": {}},
    "roots": {},
}
PLAIN = Sampling([SamplingMessage("user", TextContent("hi"))], 10)
VISIT = Elicitation("Open?", "url", url="https://example.com")
ASK = Elicitation("Who?", requested_schema=FORM)
TOOLS = Sampling(
    [SamplingMessage("user", TextContent("hi"))],
    10,
    tools=[{"name": "t", "inputSchema": {"type": "object"}}],
)
CHOICE = Sampling([SamplingMessage("user", TextContent("hi"))], 10, tool_choice={"mode": "auto"})
CONTEXT = Sampling([SamplingMessage("user", TextContent("hi"))], 10, include_context="thisServer")
MULTIPLE = Elicitation(
    "Which?",
    requested_schema={
        "type": "object",
        "properties": {"x": {"type": "array", "items": {"enum": ["a"]}}},
    },
)
USED = Sampling(
    [
        SamplingMessage("assistant", ToolUseContent("1", "t", {})),
        SamplingMessage("user", ToolResultContent("1", [])),
    ],
    10,
)
SOUND = Sampling(
    [SamplingMessage("user", [TextContent("hi"), AudioContent("AAAA", "audio/wav")])], 10
)
ELICITATION, SAMPLING, ROOTS = {"elicitation": {}}, {"sampling": {}}, {"roots": {}}


@pytest.mark.requirement("ME-5", "ME-6", "MR-5", "EL-3", "SA-4", "SA-6", "RO-4")
@pytest.mark.parametrize(
    ("question", "revision", "capabilities", "required"),
    [
        (ASK, E, {}, ELICITATION),
        (ASK, E, {"elicitation": None}, ELICITATION),
        (ASK, A, ALL, ELICITATION),
        (ASK, B, ALL, ELICITATION),
        (ASK, C, ELICITATION, None),
        (ASK, D, ELICITATION, None),
        (ASK, E, ELICITATION, None),
        (ASK, E, {"elicitation": {"url": {}}}, {"elicitation": {"form": {}}}),
        (VISIT, E, ELICITATION, {"elicitation": {"url": {}}}),
        (VISIT, C, ALL, {"elicitation": {"url": {}}}),
        (VISIT, D, ALL, None),
        (MULTIPLE, C, ALL, {"elicitation": {"form": {}}}),
        (MULTIPLE, D, ALL, None),
        (PLAIN, E, {}, SAMPLING),
        (PLAIN, A, SAMPLING, None),
        (TOOLS, E, SAMPLING, {"sampling": {"tools": {}}}),
        (CHOICE, E, SAMPLING, {"sampling": {"tools": {}}}),
        (TOOLS, C, ALL, {"sampling": {"tools": {}}}),
        (TOOLS, D, ALL, None),
        (USED, C, ALL, {"sampling": {"tools": {}}}),
        (USED, D, ALL, None),
        (SOUND, A, ALL, SAMPLING),
        (SOUND, B, ALL, None),
        (CONTEXT, E, SAMPLING, {"sampling": {"context": {}}}),
        (CONTEXT, D, ALL, None),
        (CONTEXT, C, SAMPLING, None),
        (ListRoots(), E, {}, ROOTS),
        (ListRoots(), A, ROOTS, None),
    ],
)
def test_only_what_was_declared_is_asked(
    question: ClientRequest, revision: str, capabilities: Any, required: Any
) -> None:
    """REQUIREMENTS ME-5, ME-6, MR-5, EL-3, SA-4, SA-6, RO-4."""
    if required is None:
        put(question, revision, capabilities)
        return
    with pytest.raises(MissingCapability) as error:
        put(question, revision, capabilities)
    assert (error.value.code, error.value.data) == (-32021, {"requiredCapabilities": required})
    wire.check(required, E, "ClientCapabilities")


@pytest.mark.parametrize(
    ("request_of_a_server", "missing"),
    [
        (b'{"method":"elicitation/create","params":{"message":"Who?"}}', None),
        (b'{"method":"roots/list"}', {"roots": {}}),
        # What a later revision may add is the client's own affair.
        (b'{"method":"example.com/ask","params":{"x":1}}', None),
    ],
)
def test_a_forwarded_request_needs_what_the_client_declared(
    request_of_a_server: bytes, missing: Any
) -> None:
    client = ClientFacts("c", "1", E, {"elicitation": {}})
    if missing is None:
        request = read_forwarded(Raw(request_of_a_server), by_name[E], client)
        assert request.method == json.loads(request_of_a_server)["method"]
        return
    with pytest.raises(MissingCapability) as error:
        read_forwarded(Raw(request_of_a_server), by_name[E], client)
    assert error.value.data == {"requiredCapabilities": missing}


@pytest.mark.parametrize("raw", [b"5", b"{}", b'{"method":5}'])
def test_what_another_server_sends_instead_of_a_request_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"Expected|required field"):
        read_forwarded(Raw(raw), by_name[E], ClientFacts("c", "1", E, {}))


def asked_params(question: ClientRequest, revision: str) -> Any:
    request = put(question, revision, ALL)
    value = {"method": request.method, "params": json.loads(bytes(request.params))}
    name = {"elicitation/create": "ElicitRequest", "sampling/createMessage": "CreateMessageRequest"}
    message = value if revision == E else {"jsonrpc": "2.0", "id": 1, **value}
    wire.check(message, revision, name.get(request.method, "ListRootsRequest"))
    return value["params"]


@pytest.mark.requirement("EL-12", "EL-13")
def test_a_visit_has_an_id_in_2025_11_25_and_none_since() -> None:
    """REQUIREMENTS EL-13."""
    assert asked_params(VISIT, D)["elicitationId"] == "visit-1"
    named = Elicitation("Open?", "url", url="https://example.com", elicitation_id="mine")
    assert asked_params(named, D)["elicitationId"] == "mine"
    assert "elicitationId" not in asked_params(named, E)
    dialogue = Dialogue()
    assert (
        dialogue.elicitation_id("a") == dialogue.elicitation_id("a") != dialogue.elicitation_id("b")
    )


def test_a_form_for_2025_06_18_has_enum_names_and_only_boolean_defaults() -> None:
    properties = {
        "size": {"type": "string", "oneOf": [{"const": "s", "title": "Small"}], "default": "s"},
        "count": {"type": "integer", "default": 3},
        "sure": {"type": "boolean", "default": True},
    }
    question = Elicitation("Which?", requested_schema={"type": "object", "properties": properties})
    assert asked_params(question, D)["requestedSchema"]["properties"] == properties
    assert asked_params(question, C)["requestedSchema"]["properties"] == {
        "size": {"type": "string", "enum": ["s"], "enumNames": ["Small"]},
        "count": {"type": "integer"},
        "sure": {"type": "boolean", "default": True},
    }


def test_several_pieces_of_content_are_several_messages_for_older_models() -> None:
    use = ToolUseContent("1", "t", {})
    question = Sampling(
        [
            SamplingMessage("user", [TextContent("a"), TextContent("b")]),
            SamplingMessage("user", TextContent("c")),
        ],
        10,
    )
    assert [each["content"]["text"] for each in asked_params(question, A)["messages"]] == [
        "a",
        "b",
        "c",
    ]
    assert len(asked_params(question, E)["messages"]) == 2
    result = ToolResultContent("1", [TextContent("3")])
    tools = Sampling([SamplingMessage("assistant", [use]), SamplingMessage("user", [result])], 10)
    assert asked_params(tools, D)["messages"][1]["content"][0]["toolUseId"] == "1"


def test_meta_does_not_travel_with_a_question() -> None:
    assert "_meta" not in asked_params(Elicitation("Who?", requested_schema=FORM, meta={"k": 1}), E)
    assert asked_params(ListRoots(), E) == asked_params(ListRoots(), A) == {}


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (Elicitation("Who?"), "needs requested_schema"),
        (Elicitation("Open?", "url"), "needs url"),
        (InputRequest("ping"), "expected one of elicitation/create"),
        (
            Elicitation("Who?", requested_schema={"type": "object"}),
            "a requested_schema with properties",
        ),
        (InputRequest("elicitation/create", Raw(b'{"message":"Who?"}')), "needs requested_schema"),
        (
            InputRequest("elicitation/create", Raw(b"[1]")),
            "ask: elicitation/create: Expected object, got array",
        ),
        (InputRequest("elicitation/create"), "ask: elicitation/create: .* field message"),
        (
            InputRequest(
                "sampling/createMessage", Raw(b'{"maxTokens":1,"messages":[{"role":"user"}]}')
            ),
            "field content",
        ),
    ],
)
def test_what_is_no_question_is_refused(question: ClientRequest, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        to_wire_request(question)


def test_a_question_as_it_is_on_the_wire_is_one_too() -> None:
    foreign = InputRequest("roots/list", Raw(b'{"x":1}'))
    assert to_wire_request(foreign) is foreign


# Chains of rounds, beside a model


class Chains(RuleBasedStateMachine):
    """Calls that ask up to five questions, one after the other; clients that answer, doubly, late,
    wrongly, or not at all.

    The model is what the specification says in words: a state is good for its call, once, for ten
    minutes; whatever was answered stays answered; nothing but the next question is ever asked.
    """

    tokens = Bundle("tokens")

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.seal = a_seal(self.clock)
        self.spent: set[str] = set()
        self.calls = 0

    def rounds_of(self, dialogue: Dialogue, call: int, answered: int) -> Any:
        """What a handler does: ask 0, 1, 2, ... until one is open, or all five are there."""
        bound = f"call-{call}".encode()
        for number in range(5):
            question = InputRequest(
                "elicitation/create", Raw(encode({"message": f"{call}.{number}"}))
            )
            found = dialogue.ask({f"k{number}": question})
            if found is None:
                assert number == answered
                if dialogue.round == MAX_ROUNDS:
                    return multiple()
                return (
                    dialogue.seal_state(self.seal, bound, b""),
                    call,
                    number,
                    dialogue.round,
                    self.clock.now,
                )
            assert number < answered
            assert decode(found[f"k{number}"])["content"] == {"to": f"{call}.{number}"}
        assert answered == 5
        return multiple()

    @rule(target=tokens)
    def begin(self) -> Any:
        self.calls += 1
        return self.rounds_of(Dialogue(), self.calls, 0)

    def answer(self, call: int, number: int) -> Raw:
        return Raw(encode({"action": "accept", "content": {"to": f"{call}.{number}"}}))

    def retry(self, token: Any, answers: dict[str, Raw], call: int) -> Dialogue | None:
        """As a server does it. None if it is refused, which the model must have expected."""
        text, owner, _, _, made = token
        refused = text in self.spent or owner != call or self.clock.now - made >= LIFETIME_S
        if refused:
            with pytest.raises(RpcError, match=r"Invalid params: requestState"):
                accept_next_round(self.seal, text, answers, f"call-{call}".encode())
            return None
        dialogue = accept_next_round(self.seal, text, answers, f"call-{call}".encode())
        self.spent.add(text)
        return dialogue

    @rule(target=tokens, token=consumes(tokens), doubled=st.booleans())
    def answer_it(self, token: Any, doubled: bool) -> Any:
        _, call, number, _, _ = token
        dialogue = self.retry(token, {f"k{number}": self.answer(call, number), "k9": ADA}, call)
        if doubled:
            assert self.retry(token, {f"k{number}": self.answer(call, number)}, call) is None
        return multiple() if dialogue is None else self.rounds_of(dialogue, call, number + 1)

    @rule(target=tokens, token=tokens)
    def leave_it_out(self, token: Any) -> Any:
        """The state comes back, and no answer."""
        _, call, number, _, _ = token
        dialogue = self.retry(token, {}, call)
        return multiple() if dialogue is None else self.rounds_of(dialogue, call, number)

    @rule(token=tokens)
    def answer_and_cancel(self, token: Any) -> None:
        """The retry was accepted, and is cancelled before it has done anything: the state is spent
        all the same.
        """
        _, call, number, _, _ = token
        self.retry(token, {f"k{number}": self.answer(call, number)}, call)

    @rule(token=tokens, shift=st.integers(1, 3))
    def answer_for_another_call(self, token: Any, shift: int) -> None:
        assert self.retry(token, {f"k{token[2]}": ADA}, token[1] + shift) is None

    @rule(token=tokens)
    def answer_nonsense(self, token: Any) -> None:
        text, call, number, _, made = token
        if text in self.spent or self.clock.now - made >= LIFETIME_S:
            return
        with pytest.raises(InvalidClientResponse):
            accept_next_round(self.seal, text, {f"k{number}": Raw(b"[]")}, f"call-{call}".encode())

    @rule(seconds=st.sampled_from([1.0, 100.0, LIFETIME_S - 1, LIFETIME_S]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds


Chains.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.no_cover
class TestChainsOfQuestionsBesideTheirModel(Chains.TestCase):
    """One class: Hypothesis makes its machines unittest cases."""
