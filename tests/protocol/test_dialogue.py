"""protocol/dialogue.py: what a call asks, in which rounds, and in whose words.

Rules: 2026-07-28 basic/patterns/mrtr, client/elicitation, client/sampling, client/roots
(REQUIREMENTS A.8, A.20); the shapes that older revisions carry: part B.3, and their schemas.
"""

from __future__ import annotations

from typing import Any

import pytest
import wire
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, multiple, rule
from msgspec import Raw
from msgspec.json import decode, encode

from concertino.errors import InvalidClientResponse, RpcError
from concertino.protocol.client_request_forms import to_wire_request
from concertino.protocol.dialogue import (
    MAX_KEY,
    MAX_ROUNDS,
    Dialogue,
    check_response,
    digest_call,
    resume_dialogue,
    use_state,
)
from concertino.protocol.seal import LIFETIME_S, Seal
from concertino.types.client_requests import (
    Elicitation,
    InputRequest,
)

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
    one = digest_call(
        "tools/call", {"name": Raw(b'"a"'), "arguments": Raw(b'{"x":1,"y":[2]}')}, b""
    )
    assert one == digest_call(
        "tools/call", {"arguments": Raw(b'{ "y" : [2], "x":1 }'), "name": Raw(b'"\\u0061"')}, b""
    )
    others = [
        digest_call(
            "prompts/get", {"name": Raw(b'"a"'), "arguments": Raw(b'{"x":1,"y":[2]}')}, b""
        ),
        digest_call("tools/call", {"name": Raw(b'"a"'), "arguments": Raw(b'{"x":1,"y":[3]}')}, b""),
        digest_call(
            "tools/call", {"name": Raw(b'"a"'), "arguments": Raw(b'{"x":true,"y":[2]}')}, b""
        ),
        digest_call(
            "tools/call", {"name": Raw(b'"a"'), "arguments": Raw(b'{"x":1,"y":[2]}')}, b"1000"
        ),
        digest_call(
            "tools/call", {"name": Raw(b'"a"'), "arguments": Raw(b'{"x":1,"y":[2]}')}, b"", b"other"
        ),
    ]
    assert one not in others


def test_params_that_are_too_deep_to_be_read_still_bind() -> None:
    deep = {"arguments": Raw(b"[" * 5000 + b"]" * 5000)}
    assert digest_call("tools/call", deep, b"") == digest_call("tools/call", deep, b"")


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


@pytest.mark.requirement("EL-12")
def test_a_visit_keeps_its_id() -> None:
    dialogue = Dialogue()
    assert (
        dialogue.elicitation_id("a") == dialogue.elicitation_id("a") != dialogue.elicitation_id("b")
    )


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
