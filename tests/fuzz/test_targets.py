"""fuzz/: every kept input through its target, some seconds of mutations of them, and that each
target sees what it is there to see.

The search itself is `scripts/soak fuzz`. Here nothing is needed but the package: the inputs in
fuzz/corpus are what it found worth keeping. The oracles get a second opinion: the official schemas
for what a session sends, `jsonschema` for what arguments may be.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fuzz
import jsonschema
import pytest
import wire
from fuzz import arguments as arguments_target
from fuzz import docstrings as docstrings_target
from fuzz import frames as frames_target
from fuzz import messages as messages_target
from fuzz import results as results_target
from fuzz import session as session_target
from fuzz.mutation import mutations
from fuzz.smaller import fault, smaller
from msgspec import UNSET, Raw
from msgspec.structs import replace

from concertino.client.client import Client
from concertino.http import chunked_body, request_head
from concertino.jsonrpc import framing, messages
from concertino.jsonrpc.peer import Peer
from concertino.orchestra import frames, structs
from concertino.protocol.session import Session
from concertino.protocol.session_methods import SessionMethods
from concertino.schema import arguments, return_values
from concertino.types.results import CallToolResult

ROOT = Path(__file__).parents[2]
MUTATIONS = {
    "framing": 4000,
    "messages": 15000,
    "session": 2000,
    "arguments": 10000,
    "results": 10000,
    "docstrings": 3000,
    "frames": 4000,
    "bridge": 1000,
    "http_requests": 10000,
}


def inputs(name: str) -> list[bytes]:
    return [data for _, data in fuzz.corpus(name)]


@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_nothing_is_wrong_with_any_kept_input(name: str):
    one = fuzz.target(name).one
    for line, data in fuzz.corpus(name):
        assert fault(one, data) is None, f"again: python -m fuzz {name} {line}"


@pytest.mark.slow
@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_nothing_is_wrong_with_mutations_of_them(name: str):
    target = fuzz.target(name)
    for data in mutations(inputs(name), target.TOKENS, target.MAX_BYTES, 1, MUTATIONS[name]):
        assert fault(target.one, data) is None, smaller(target.one, data)


@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_the_corpus_is_small(name: str):
    sizes = [len(data) for data in inputs(name)]
    assert 0 < len(sizes) <= 400
    assert max(sizes) <= fuzz.target(name).MAX_BYTES


def test_arguments_are_what_another_validator_says_too(monkeypatch: pytest.MonkeyPatch):
    second = tuple(
        jsonschema.Draft202012Validator(each.schema).is_valid for each in arguments_target.READ
    )
    monkeypatch.setattr(arguments_target, "validators", second)
    for data in inputs("arguments"):
        assert fault(arguments_target.one, data) is None, data


class Envelopes:
    """An onlooker: each line is a JSONRPCMessage, by the schema of a revision that knows errors
    without an id.
    """

    def __init__(self) -> None:
        self.seen = 0

    def on_sent(self, line: bytes) -> None:
        """Nothing is expected of what a fuzzer sends."""

    def on_received(self, line: bytes) -> None:
        value = wire.one_json(line)
        for each in value if isinstance(value, list) else [value]:
            if (
                "error" in each and each.get("id", 0) is None
            ):  # RELIABILITY "Policies": null, before 2025-11-25 was seen
                each = {**each, "id": 0}
            wire.check(each, "2025-11-25", "JSONRPCMessage")
            self.seen += 1


def test_what_sessions_send_is_what_the_official_schemas_call_messages():
    onlooker = Envelopes()
    for data in inputs("session"):
        session_target.play(data, onlooker)
    assert onlooker.seen > 1000


# --- each target finds the fault that it is there to find: planted here, one at a time ---


def finds_fault(name: str) -> bool:
    """Whether the corpus alone shows that something is wrong."""
    return any(fault(fuzz.target(name).one, data) for data in inputs(name))


def change_result(function: Callable[..., Any], change: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda *args, **named: change(function(*args, **named))


def swallow(*_: object) -> None:
    """In the place of what should be done."""


def test_a_framer_that_keeps_carriage_returns_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        framing.Framer,
        "_check_length",
        lambda self, line: line if len(line) <= self._limit else framing.OversizeFrame(999),
    )
    assert finds_fault("framing")


def test_a_framer_that_holds_what_it_should_discard_is_found(monkeypatch: pytest.MonkeyPatch):
    feed = framing.Framer.feed

    def hoarding(self: Any, chunk: bytes) -> Any:
        frames = feed(self, chunk)
        if self._discarding:
            self._parts.append(chunk)
        return frames

    monkeypatch.setattr(framing.Framer, "feed", hoarding)
    assert finds_fault("framing")


@pytest.mark.parametrize(
    "change",
    [
        lambda found: replace(found, id=UNSET) if type(found) is messages.Message else found,
        lambda found: replace(found, id=str(found.id)) if type(found.id) is int else found,
        lambda found: (
            replace(found, code=-32700)
            if type(found) is messages.InvalidMessage and found.code
            else found
        ),
        lambda found: (
            replace(found, code=-32600)
            if type(found) is messages.InvalidMessage and found.code == 0
            else found
        ),
    ],
    ids=["the id is lost", "a number becomes text", "all is a parse error", "silence is broken"],
)
def test_a_decoder_that_misunderstands_is_found(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any]
):
    monkeypatch.setattr(messages_target, "decode", change_result(messages.decode, change))
    assert finds_fault("messages")


def test_a_decoder_that_takes_half_a_surrogate_pair_or_nan_is_found(
    monkeypatch: pytest.MonkeyPatch,
):
    decode = messages.decode
    for wrong, right in ((b"\\ud83c", b"\\u0041"), (b"NaN", b"0.0")):
        monkeypatch.setattr(
            messages_target,
            "decode",
            lambda frame, wrong=wrong, right=right: decode(bytes(frame).replace(wrong, right)),  # type: ignore[misc]
        )
        assert finds_fault("messages")


def test_a_second_decoder_that_disagrees_is_found(monkeypatch: pytest.MonkeyPatch):
    def other(found: Any) -> Any:
        return replace(found, method=found.method + "x")

    monkeypatch.setattr(
        messages_target, "decode_request", change_result(messages.decode_request, other)
    )
    assert finds_fault("messages")


def test_a_batch_that_loses_an_element_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        messages_target,
        "decode_batch",
        change_result(messages.decode_batch, lambda found: found and found[1:]),
    )
    assert finds_fault("messages")


def twice(self: Any, incoming: Any, frame: bytes) -> None:
    Peer_answer(self, incoming, frame)
    self.send(frame, incoming.id)


Peer_answer = Peer._answer
Peer_leave_table = Peer._leave_table


@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [
        (Peer, "_answer", twice),
        (Peer, "cancel", swallow),
        (Peer, "pop_waiting", swallow),
        (Peer, "_reject", swallow),
        (Peer, "_finish_batch_item", swallow),
        (
            Peer,
            "_leave_table",
            lambda self, incoming: (
                Peer_leave_table(self, incoming) if len(incoming.params) != 1 else None
            ),
        ),
        (Peer, "_has_capacity", lambda self: True),
        (Peer, "abandon", swallow),
        (Session, "_respond_unencodable", swallow),
        (SessionMethods, "_set_level", swallow),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_session_that_breaks_a_promise_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, wrong: Any
):
    monkeypatch.setattr(owner, name, wrong)
    assert finds_fault("session")


def test_arguments_that_are_not_checked_are_found(monkeypatch: pytest.MonkeyPatch):
    lenient = tuple(
        arguments.argument_decoder(handler, coerce=True) for handler in arguments_target.HANDLERS
    )
    monkeypatch.setattr(arguments_target, "READ", lenient)
    assert finds_fault("arguments")


def test_a_result_that_changes_on_its_way_is_found(monkeypatch: pytest.MonkeyPatch):
    def emptied(result: CallToolResult) -> CallToolResult:
        return replace(result, content=[])

    wrong = [
        return_values.ResultShaper(each.schema, change_result(each.shape, emptied))
        for each in results_target.READ
    ]
    monkeypatch.setattr(results_target, "READ", wrong)
    assert finds_fault("results")


def test_a_proxy_that_changes_a_result_is_found(monkeypatch: pytest.MonkeyPatch):
    forward = Client.forward

    async def forward_emptied(self: Client, *args: Any, **options: Any) -> Raw:
        await forward(self, *args, **options)
        return Raw(b'{"content":[]}')

    monkeypatch.setattr(Client, "forward", forward_emptied)
    assert finds_fault("bridge")


def test_a_docstring_whose_words_are_invented_is_found(monkeypatch: pytest.MonkeyPatch):
    parse = docstrings_target.parse_docstring
    monkeypatch.setattr(
        docstrings_target,
        "parse_docstring",
        change_result(parse, lambda doc: replace(doc, description=f"{doc.description}!")),
    )
    assert finds_fault("docstrings")


def test_an_assembler_that_takes_too_long_a_frame_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(frames_target, "Assembler", lambda limit: frames.Assembler(limit + 1))
    assert finds_fault("frames")


def test_an_assembler_that_loses_a_byte_is_found(monkeypatch: pytest.MonkeyPatch):
    feed = frames.Assembler.feed
    monkeypatch.setattr(
        frames.Assembler,
        "feed",
        change_result(feed, lambda payloads: [each[1:] for each in payloads]),
    )
    assert finds_fault("frames")


@pytest.mark.parametrize(
    "change",
    [
        lambda value: {**value, str(len(value)): 1},
        lambda value: {key: float("inf") for key in value},
        lambda value: {1: 2},
    ],
    ids=["more", "infinity", "no text"],
)
def test_a_struct_that_is_misread_is_found(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any]
):
    monkeypatch.setattr(
        frames_target, "decode_struct", change_result(structs.decode_struct, change)
    )
    assert finds_fault("frames")


@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [
        (request_head, "REQUEST_LINE", re.compile(rb".* (/.*)")),
        (request_head, "UPGRADE", re.compile(rb"\r\nupgrade:(?s:.)*?(?=\r\n)", re.IGNORECASE)),
        (chunked_body, "SIZE", re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;(?s:.)*)?\r\n")),
        (chunked_body, "TRAILER", re.compile(rb"(a)?(?s:.)*\r\n")),
        (chunked_body, "NO_TRAILERS", frozenset[bytes]()),
    ],
    ids=["request line", "upgrade", "chunk", "trailer", "framing in a trailer"],
)
def test_a_lenient_reader_of_http_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, wrong: Any
):
    monkeypatch.setattr(owner, name, wrong)
    assert finds_fault("http_requests")


# --- the tools around the targets ---


def test_a_finding_becomes_small_and_fails_at_the_same_place():
    def one(data: bytes) -> None:
        assert b"bad" not in data
        if b"other" in data:
            raise ValueError

    assert smaller(one, b"a long line with something bad in it, and other things") == b"bad"
    assert smaller(one, b"only the other thing") == b"other"
    assert smaller(one, b"nothing at all") == b"nothing at all"


def test_mutations_are_the_same_for_the_same_seed_and_stay_small():
    first, again, another = (
        list(mutations([b"abc", b"defg"], [b"!"], 6, seed, 200)) for seed in (5, 5, 6)
    )
    assert first == again
    assert first != another
    assert max(map(len, first)) <= 6
    assert len(set(first)) > 100


def test_each_line_of_a_corpus_is_an_input_as_it_would_be_written_again():
    for name in fuzz.TARGETS:
        lines = fuzz.corpus_file(name).read_text().splitlines()
        kept = fuzz.corpus(name)
        assert [lines[number - 1] for number, _ in kept] == [
            fuzz.format_line(data) for _, data in kept
        ]
        assert len({data for _, data in kept}) == len(kept)
    every_byte = bytes(range(256))
    assert json.loads(fuzz.format_line(every_byte)).encode("utf-8", "surrogateescape") == every_byte


def test_a_finding_is_shown_again_from_the_command_line(tmp_path: Path):
    fine = tmp_path / "fine"
    fine.write_bytes(b"A docstring.")
    line = str(fuzz.corpus("docstrings")[0].line)
    done = subprocess.run(
        [sys.executable, "-m", "fuzz", "docstrings", str(fine), line, str(tmp_path / "absent")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert f"{fine}: nothing wrong\n{line}: nothing wrong\n" in done.stdout
    assert "absent: FINDING\nTraceback" in done.stdout
