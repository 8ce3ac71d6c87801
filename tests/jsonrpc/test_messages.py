"""jsonrpc.py: frames into messages and back. Codes are those of JSON-RPC 2.0 section 5.1 and
RELIABILITY section 3; what is JSON and what is not is decided by the standard library's `json`,
made strict.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import UNSET, DecodeError, Raw

from concertino.jsonrpc import messages
from concertino.jsonrpc.messages import (
    ABSENT,
    LENIENT_BYTES,
    InvalidMessage,
    Message,
    decode,
    decode_batch,
    decode_request,
    reject_oversize,
)

RULES = settings(max_examples=150, deadline=None, derandomize=True)
PARSE, REQUEST, PARAMS = -32700, -32600, -32602
BOM = b"\xef\xbb\xbf"


def message(frame: bytes) -> Message:
    found = decode(frame)
    assert isinstance(found, Message), found
    return found


def bad(frame: bytes) -> tuple[int, Any]:
    found = decode(frame)
    assert isinstance(found, InvalidMessage), found
    assert found.message.isprintable()
    return found.code, None if found.id is UNSET else found.id


# Frames into messages


def test_a_request_has_method_id_and_undecoded_params():
    found = message(
        b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"add", '
        b'"arguments":{"a": 1.50}}}'
    )
    assert (found.method, found.id) == ("tools/call", 7)
    assert {name: bytes(raw) for name, raw in found.params.items()} == {
        "name": b'"add"',
        "arguments": b'{"a": 1.50}',
    }
    assert found.result is found.error is ABSENT


PLAIN = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"add"}}'


def test_a_plain_request_is_read_in_one_pass():
    found = decode_request(PLAIN)
    assert (found.method, found.id, bytes(found.params["name"])) == ("tools/call", 7, b'"add"')


@pytest.mark.parametrize(
    ("part", "other"),
    [
        (b'"2.0"', b'"1.0"'),
        (b'"jsonrpc":"2.0",', b""),
        (b'"id":7,', b""),
        (b'"id":7', b'"id":null'),
        (b'"id":7', b'"id":7.5'),
        (b'"tools/call"', b'""'),
        (b'"tools/call"', b"5"),
        (b'{"name":"add"}', b"[]"),
        (b'{"name":"add"}', b"null"),
        (b'{"name":"add"}', b'{},"result":{}'),
        (b'{"name":"add"}', b'{},"error":{}'),
        (b'{"name":"add"}', b'{},"x":1'),
        (b"}}", b"}} ,"),
        (b"}}", b"}"),
    ],
)
def test_what_is_more_or_less_than_a_plain_request_is_left_to_decode(part: bytes, other: bytes):
    frame = PLAIN.replace(part, other)
    assert frame != PLAIN
    with pytest.raises(DecodeError):
        decode_request(frame)


def test_a_notification_has_no_id():
    found = message(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
    assert found.id is UNSET
    assert found.params == {}


def test_a_response_has_a_result_or_an_error():
    assert bytes(message(b'{"jsonrpc":"2.0","id":1,"result":{"a":1}}').result) == b'{"a":1}'
    assert bytes(message(b'{"jsonrpc":"2.0","id":1,"result":null}').result) == b"null"
    assert bytes(message(b'{"jsonrpc":"2.0","id":1,"error":{"code":1}}').error) == b'{"code":1}'
    assert message(b'{"jsonrpc":"2.0","error":{"code":-32700,"message":"x"}}').id is UNSET


@pytest.mark.parametrize(
    ("text", "id"),
    [
        ("0", 0),
        ("-1", -1),
        ("1", 1),
        ('"1"', "1"),
        ('""', ""),
        ('"\\u00fc\\ud83c\\udfbb"', "ü🎻"),
        ('"ü🎻"', "ü🎻"),
        ("9007199254740993", 2**53 + 1),
        ("1180591620717411303424", 2**70),
        ("-1180591620717411303424", -(2**70)),
    ],
)
def test_ids_keep_type_and_value(text: str, id: object):
    found = message(f'{{"jsonrpc":"2.0","id":{text},"method":"ping"}}'.encode())
    assert found.id == id
    assert type(found.id) is type(id)
    assert json.loads(messages.encode_id(found.id)) == id  # type: ignore[arg-type]


def test_members_that_are_not_known_are_ignored():
    assert (
        message(b'{"x":{"y":[1]},"jsonrpc":"2.0","id":1,"method":"ping","z":null}').method == "ping"
    )


def test_of_a_member_that_comes_twice_the_last_counts():
    assert message(b'{"jsonrpc":"2.0","id":1,"id":2,"method":"a","method":"b"}').id == 2


def test_of_a_member_that_comes_twice_the_first_may_be_anything():
    found = message(
        b'{"jsonrpc":1,"jsonrpc":"2.0","id":{},"id":1,"method":5,"method":"a","params":[],'
        b'"params":{"b":2}}'
    )
    assert (found.id, found.method, {name: bytes(raw) for name, raw in found.params.items()}) == (
        1,
        "a",
        {"b": b"2"},
    )
    assert message(b'{"jsonrpc":"2.0","id":null,"id":1,"result":{}}').id == 1
    assert bad(b'{"jsonrpc":"2.0","id":{},"id":0,"method":""}') == (REQUEST, 0)
    assert bad(b'{"jsonrpc":"2.0","id":{},"id":0,"method":"a","params":{},"params":[]}') == (
        PARAMS,
        0,
    )


def test_a_byte_order_mark_is_removed_once():
    assert message(BOM + b'{"jsonrpc":"2.0","id":1,"method":"ping"}').id == 1
    assert bad(BOM + BOM + b'{"jsonrpc":"2.0","id":1,"method":"ping"}') == (PARSE, None)


def test_a_line_of_many_byte_order_marks_is_refused_like_any_garbage():
    assert bad(BOM * 100_000) == (PARSE, None)


def test_characters_that_end_lines_elsewhere_and_nul_escapes_stay_as_they_are():
    text = "\u2028\u2029\u0085\x7f"
    frame = json.dumps(
        {"jsonrpc": "2.0", "id": 1, "method": "x", "params": {"t": text + "\0"}}, ensure_ascii=False
    ).encode()
    assert json.loads(bytes(message(frame).params["t"])) == text + "\0"


# What is no message


@pytest.mark.parametrize("frame", [b"", b" ", b"\t \r", b"\x0b\x0c", BOM, BOM + b"  "])
def test_blank_lines_ask_for_silence(frame: bytes):
    assert bad(frame) == (0, None)


@pytest.mark.parametrize(
    "frame",
    [
        b"{not json}",
        b'{"jsonrpc":"2.0","id":1,"method":"pi',
        b'{"jsonrpc":"2.0","id":1,"method":"ping"} garbage',
        b'{"jsonrpc":"2.0","id":1,"method":"ping"}{"jsonrpc":"2.0","id":2,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping"} // comment',
        b'/* */{"jsonrpc":"2.0","id":1,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping",}',
        b"{'jsonrpc':'2.0','id':1,'method':'ping'}",
        b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":01}}',
        b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":"\\q"}}',
        b'{"jsonrpc":"2.0","id":\x00,"method":"ping"}',
        b"\xff\xfe\x80",
        b"\x00",
        b'{"jsonrpc":"2.0","id":"\xff","method":"ping"}',
        b'{"jsonrpc":"2.0","id":"\\ud800","method":"ping"}',
        b'{"jsonrpc":"2.0","id":null,"method":"x","params":{"a":NaN}}',
        b'[{"jsonrpc":"2.0","id":1,"method":"ping"},',
        b'"an unfinished string',
        b"42 43",
        b"tru",
        b"NaN",
        b'["\xff"]',
        b'["a" NaN]',
    ],
)
def test_what_is_no_json_is_a_parse_error(frame: bytes):
    assert bad(frame) == (PARSE, None)


@pytest.mark.requirement("JR-9")
@pytest.mark.parametrize(
    "params",
    [
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b'{"a":"\x00"}',
        b'{"a":"\x1f"}',
        b'{"a":"\xff"}',
        b'{"a":"\\ud83c"}',
        b'{"a":"\\ud83c x"}',
        b'{"\\udfbb":1}',
    ],
)
def test_a_parse_error_inside_a_request_carries_its_id_if_that_can_be_read(params: bytes):
    assert bad(b'{"jsonrpc":"2.0","id":"q1","method":"tools/call","params":%b}' % params) == (
        PARSE,
        "q1",
    )
    assert bad(b'{"jsonrpc":"2.0","id":41,"method":"tools/call","params":%b}' % params) == (
        PARSE,
        41,
    )


def test_half_a_surrogate_pair_is_named():
    found = decode(b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":"\\ud83c"}}')
    assert isinstance(found, InvalidMessage)
    assert found.message == "Parse error: a string holds half a surrogate pair"


PADDING = b'"padding":"%b"' % (b"x" * LENIENT_BYTES)


@pytest.mark.parametrize(
    ("frame", "code", "id", "answers"),
    [
        (b'{"jsonrpc":"2.0","id":7,"method":"x","params":{"a":"\\ud83c",%b}}', PARSE, 7, ()),
        (b'{"jsonrpc":"2.0","method":"x","params":{%b,"a":NaN},"id":"q"}', PARSE, "q", ()),
        (b'{"jsonrpc":"2.0","id":7,"method":"x","params":{%b,"a":', PARSE, 7, ()),
        # The rest of the id may be missing.
        (b'{"jsonrpc":"2.0","method":"x","params":{%b},"id":7', PARSE, UNSET, ()),
        (b'{"jsonrpc":"2.0","method":"x","params":{%b},"id":"q', PARSE, UNSET, ()),
        (b'{"jsonrpc":"2.0","id":7,"result":{%b,"a":"\\ud83c"}}', 0, UNSET, (7,)),
        (b'{"jsonrpc":"2.0","result":{%b,"a":"\\ud83c"},"id":7}', 0, UNSET, (7,)),
        (b'{"jsonrpc":"2.0","id":7,"result":{%b}}{"jsonrpc":"2.0","id":8,"result":{}}',
         0, UNSET, (7, 8)),
        (b'[{"jsonrpc":"2.0","id":7,"method":"x","params":{%b}},', PARSE, UNSET, ()),
        (b'{"jsonrpc":"2.0","id":7,"method":"\xff","params":{%b}}', PARSE, 7, ()),
    ],
)  # fmt: skip
def test_the_id_of_a_large_frame_is_read_without_decoding_all_of_it(
    frame: bytes,
    code: int,
    id: object,
    answers: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(json, "loads", None)

    found = decode(frame.replace(b"%b", PADDING))

    assert isinstance(found, InvalidMessage)
    assert (found.code, found.id, found.answered_ids) == (code, id, answers)


def test_a_large_batch_that_is_incomplete_is_refused_before_it_is_split():
    """Its millions of elements would be split in a quarter of a second."""
    batch = b"[" + b"1," * 2_000_000

    def refuse() -> None:
        assert decode_batch(batch) is None

    assert least_cpu_s(refuse) < least_cpu_s(lambda: decode_batch(batch + b"1]")) / 3


def least_cpu_s(work: Callable[[], object]) -> float:
    """The CPU time of a function in this thread, the least of three calls."""
    times: list[float] = []
    for _ in range(3):
        began = time.thread_time()
        work()
        times.append(time.thread_time() - began)
    return min(times)


def test_bytes_that_are_no_utf8_are_named():
    found = decode(b'{"jsonrpc":"2.0","id":1,"method":"\xff"}')
    assert isinstance(found, InvalidMessage)
    assert found.message == "Parse error: not UTF-8 at byte 34"


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (b"42", "Invalid Request: expected object, got int"),
        (b'"x"', "Invalid Request: expected object, got str"),
        (b"true", "Invalid Request: expected object, got bool"),
        (b"null", "Invalid Request: expected object, got null"),
        (b"[]", "Invalid Request: expected object, got array"),
        (
            b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]',
            "Invalid Request: expected object, got array",
        ),
        (
            b'{"jsonrpc":"2.0","id":null,"method":"x"}',
            "Invalid Request: id: expected int | str, got null",
        ),
        (
            b'{"jsonrpc":"2.0","id":1.0,"method":"x"}',
            "Invalid Request: id: expected int | str, got float",
        ),
        (
            b'{"jsonrpc":"2.0","id":1e2,"method":"x"}',
            "Invalid Request: id: expected int | str, got float",
        ),
        (
            b'{"jsonrpc":"2.0","id":true,"method":"x"}',
            "Invalid Request: id: expected int | str, got bool",
        ),
        (
            b'{"jsonrpc":"2.0","id":{},"method":"x"}',
            "Invalid Request: id: expected int | str, got object",
        ),
        (b'{"jsonrpc":"2.0"}', "Invalid Request: expected a method, a result or an error"),
        (b"{}", 'Invalid Request: jsonrpc: expected "2.0"'),
    ],
)
def test_what_is_no_message_and_has_no_usable_id_says_what_was_expected(frame: bytes, text: str):
    assert bad(frame) == (REQUEST, None)
    assert decode(frame).message == text  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("rest", "text"),
    [
        (b'"method":"x"', 'Invalid Request: jsonrpc: expected "2.0"'),
        (b'"jsonrpc":"1.0","method":"x"', 'Invalid Request: jsonrpc: expected "2.0"'),
        (b'"jsonrpc":2.0,"method":"x"', 'Invalid Request: jsonrpc: expected "2.0"'),
        (b'"jsonrpc":"2.0","method":5', "Invalid Request: method: expected str, got int"),
        (
            b'"jsonrpc":"2.0","method":""',
            "Invalid Request: method: expected a name, got an empty string",
        ),
        (b'"jsonrpc":"2.0"', "Invalid Request: expected a method, a result or an error"),
        (b'"jsonrpc":"2.0","params":[]', "Invalid Request: method: missing"),
        (
            b'"jsonrpc":"2.0","method":"x","result":{}',
            "Invalid Request: a method together with a result or an error",
        ),
        (
            b'"jsonrpc":"2.0","method":"x","error":{}',
            "Invalid Request: a method together with a result or an error",
        ),
    ],
)
def test_a_broken_request_is_refused_on_its_id(rest: bytes, text: str):
    frame = b'{"id":"a",%b}' % rest
    assert bad(frame) == (REQUEST, "a")
    assert decode(frame).message == text  # type: ignore[union-attr]


@pytest.mark.parametrize("params", [b"[]", b'"x"', b"null", b"5", b"true"])
def test_params_that_are_no_object_are_refused_on_the_id_and_ignored_without_one(params: bytes):
    assert bad(b'{"jsonrpc":"2.0","id":3,"method":"x","params":%b}' % params) == (PARAMS, 3)
    assert bad(b'{"jsonrpc":"2.0","method":"x","params":%b}' % params) == (0, None)


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (b'{"jsonrpc":"2.0","id":1,"result":{},"error":{}}', "a result and an error"),
        (b'{"id":1,"result":{}}', 'jsonrpc: expected "2.0", and it is missing'),
        (b'{"jsonrpc":"1.0","id":1,"error":{}}', 'jsonrpc: expected "2.0"'),
        (b'{"jsonrpc":"2.0","id":1,"result":{},"params":[]}', "params: expected none"),
        (b'{"jsonrpc":"2.0","id":1,"result":{},"method":null}', "method: expected none"),
        (b'{"jsonrpc":"2.0","id":1.0,"result":{}}', "id: expected int | str, got float"),
    ],
)
def test_a_broken_response_is_not_answered_and_ends_the_request_with_its_id(
    frame: bytes, problem: str
):
    assert decode(frame) == InvalidMessage(0, f"a malformed response: {problem}", UNSET, (1,))


@pytest.mark.parametrize(
    ("frame", "answers"),
    [
        (b'{"jsonrpc":"2.0","id":1,"result":{"a":"\xff"}}', (1,)),
        (b'{"jsonrpc":"2.0","id":1,"error":{"a":NaN}}', (1,)),
        (b'{"jsonrpc":"2.0","id":1,"method":null,"error":{"a":NaN}}', (1,)),
        (b'{"jsonrpc":"2.0","id":1.0,"result":NaN}', (1,)),
        (b'{"jsonrpc":"2.0","id":1,"result":"\\ud83c"}', (1,)),
        (b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"ty', (1,)),
        (b'{"jsonrpc":"2.0","id":"a","result":undefined}', ("a",)),
        (b'done {"jsonrpc":"2.0","id":1,"result":{"a', (1,)),
        (b'done {"jsonrpc":"2.0","id":1,"result":NaN}', (1,)),
        (b'{"a":{"jsonrpc":"2.0","id":1,"result":{}}', (1,)),
        (b'{x} {"id":1,"result":{}}{"error":{"id":3},"id":2}{"jsonrpc":"2.0","method":', (1, 2)),
    ],
)
def test_a_response_that_is_no_json_ends_the_request_with_its_id(
    frame: bytes, answers: tuple[int | str, ...]
):
    found = decode(frame)
    assert isinstance(found, InvalidMessage)
    assert (found.code, found.id, found.answered_ids) == (0, UNSET, answers)


@pytest.mark.parametrize(
    "frame",
    [
        b'{"jsonrpc":"2.0","id":1.5,"result":{}}',
        b'{"jsonrpc":"2.0","id":1e400,"result":{}}',
        b'{"jsonrpc":"2.0","id":%b,"result":{}}' % (b"9" * 5000),
        # About as deep as the decoder can go.
        *[b'{"jsonrpc":"2.0","id":%b1%b,"result":{}}' % (b"[" * n, b"]" * n) for n in (995, 996)],
        b'{"jsonrpc":"2.0","id":[1],"result":{}}',
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}',
        b'{"jsonrpc":"2.0","id":null,"result":{}}',
        # A line of a log.
        b'{"level":"error","id":1,"error":"no such file"}',
        b'{"level":"error","id":1,"error":NaN}',
    ],
)
def test_nothing_is_ended_by_what_has_no_id_or_is_a_line_of_a_log(frame: bytes):
    found = decode(frame)
    assert isinstance(found, InvalidMessage)
    assert (found.id, found.answered_ids) == (1 if b"NaN" in frame else UNSET, ())


@pytest.mark.parametrize("before", [b"printed", b"[12:00] DEBUG {x} sending ", b"f\xfcr "])
def test_a_response_that_follows_printed_text_is_read(before: bytes):
    found = decode(before + b'{"jsonrpc":"2.0","id":1,"result":{"a":"\xc3\xbc"}} \r')
    assert isinstance(found, Message)
    assert (found.id, bytes(found.result)) == (1, b'{"a":"\xc3\xbc"}')


@pytest.mark.parametrize("rest", [b'"result":{}}\'', b'"result":{}} in 3 ms', b'"method":"x"}'])
def test_what_a_log_quotes_is_no_message(rest: bytes):
    found = decode(b'sent {"jsonrpc":"2.0","id":1,' + rest)
    assert isinstance(found, InvalidMessage)
    assert (found.code, found.id, found.answered_ids) == (PARSE, UNSET, ())


def test_a_response_nested_too_deeply_ends_the_request_with_its_id():
    deep = b"[" * 200_000 + b"]" * 200_000
    found = decode(b'{"jsonrpc":"2.0","result":%b,"id":1}' % deep)
    assert found == InvalidMessage(0, "Parse error: nested too deeply", answered_ids=(1,))


@pytest.mark.parametrize("id", [b'"\\ud800"', b'"\xff"', b"[1]", b"null"])
def test_no_request_has_an_id_that_is_no_json_either(id: bytes):
    found = decode(b'{"jsonrpc":"2.0","id":%b,"result":undefined}' % id)
    assert isinstance(found, InvalidMessage)
    assert (found.code, found.answered_ids) == (PARSE, ())


@pytest.mark.parametrize("rest", [b'"jsonrpc":"2.0"', b'"jsonrpc":"2.0","method":"x","result":{}'])
def test_what_may_be_a_request_or_a_response_has_the_id_of_both(rest: bytes):
    found = decode(b'{"id":1,%b}' % rest)
    assert isinstance(found, InvalidMessage)
    assert (found.code, found.id, found.answered_ids) == (REQUEST, 1, (1,))


@pytest.mark.parametrize(
    "frame",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":'
        + b"[" * 200_000
        + b"]" * 200_000
        + b"}}",
        b'{"a":' * 200_000 + b"1" + b"}" * 200_000,
        b"[" * 200_000 + b"]" * 200_000,
        b"[" * 200_000,
    ],
)
def test_200_000_levels_are_refused(frame: bytes):
    code, _ = bad(frame)
    assert code == PARSE
    assert decode_batch(frame) is None


def test_deep_nesting_that_json_cannot_read_either_leaves_no_id():
    deep = b"[" * 200_000
    assert bad(b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"z":"\xff","a":%b' % deep) == (
        PARSE,
        None,
    )


def test_a_number_of_5_000_digits_is_no_id():
    assert bad(b'{"jsonrpc":"2.0","id":%b,"method":"x"}' % (b"9" * 5000)) == (REQUEST, None)
    assert bad(b'{"jsonrpc":"2.0","id":%b,"method":"\xff"}' % (b"9" * 5000)) == (PARSE, None)


def test_a_frame_split_anywhere_is_no_message():
    frame = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ü🎻"}}'.encode()
    for cut in range(1, len(frame)):
        assert bad(frame[:cut])[0] == PARSE
        assert bad(frame[cut:])[0] in (PARSE, REQUEST)


# Batches


def test_the_elements_of_a_batch_are_given_undecoded():
    elements = decode_batch(b' [{"jsonrpc":"2.0","id":1,"method":"a"}, 5,[],{"x":"\xc3\xbc"}]')
    assert elements is not None
    assert [bytes(each) for each in elements] == [
        b'{"jsonrpc":"2.0","id":1,"method":"a"}',
        b"5",
        b"[]",
        b'{"x":"\xc3\xbc"}',
    ]
    assert isinstance(decode(elements[0]), Message)
    assert isinstance(decode(elements[1]), InvalidMessage)


def test_an_empty_array_is_a_batch_of_nothing():
    assert decode_batch(b"[]") == []


def test_a_byte_order_mark_before_a_batch_is_removed():
    assert decode_batch(BOM + b"[5]") == [Raw(b"5")]


@pytest.mark.parametrize("frame", [b"{}", b"5", b"", b"[1,", b'["\xff"]', b"[1] 2", b"[NaN]"])
def test_what_is_no_array_is_no_batch(frame: bytes):
    assert decode_batch(frame) is None


# Messages into frames


@pytest.mark.requirement("JR-1", "JR-8", "JR-10")
def test_requests_notifications_and_errors_are_written_as_json_rpc_wants_them():
    assert (
        messages.encode_request(1, "ping", b"{}")
        == b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{}}'
    )
    assert messages.encode_request('a"b', "ü", b'{"x":1}') == (
        b'{"jsonrpc":"2.0","id":"a\\"b","method":"\xc3\xbc","params":{"x":1}}'
    )
    assert messages.encode_notification("notifications/x", b'{"a":2}') == (
        b'{"jsonrpc":"2.0","method":"notifications/x","params":{"a":2}}'
    )
    assert (
        messages.encode_error(b"null", -32700, "no")
        == b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no"}}'
    )
    assert (
        messages.encode_error(None, -32700, "no")
        == b'{"jsonrpc":"2.0","error":{"code":-32700,"message":"no"}}'
    )
    assert messages.encode_error(b'"a"', 1, "no", {"x": [1]}) == (
        b'{"jsonrpc":"2.0","id":"a","error":{"code":1,"message":"no","data":{"x":[1]}}}'
    )
    assert messages.encode_error(b"1", 1, "no", False) == (
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"no","data":false}}'
    )


def test_an_error_is_one_line_whatever_its_data():
    assert b"\n" not in messages.encode_error(b"1", 1, "two\nlines", Raw(b'{\n "a":\n 1\n}'))


IDS = st.integers() | st.text(alphabet=st.characters(exclude_categories=["Cs"]))


@RULES
@given(IDS)
def test_any_id_survives_there_and_back(id: int | str):
    frame = messages.encode_request(id, "ping", b"{}")
    assert b"\n" not in frame
    found = message(frame).id
    assert found == id
    assert type(found) is type(id)
    assert json.loads(frame)["id"] == id


# Differential: `json` decides what is JSON, JSON-RPC 2.0 section 4 and 5 what it means

SILENT = (0, None)
Verdict = tuple[object, ...]


def refuse(constant: str) -> object:
    raise ValueError(constant)


def strict(frame: bytes) -> object:
    """RFC 8259 and nothing else; ValueError if it is not that."""
    text = str(frame.removeprefix(BOM), "utf-8")
    value = json.loads(text, parse_constant=refuse)
    json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair: UnicodeEncodeError
    return value


def expected_message(frame: bytes) -> Verdict:
    """What a frame is, by the reference; the id of a parse error is not foreseen."""
    if not frame.removeprefix(BOM).strip():
        return SILENT
    try:
        value = strict(frame)
    except (ValueError, RecursionError):
        return (PARSE,)
    if not isinstance(value, dict):
        return (REQUEST, None)
    members: dict[str, Any] = value
    has_id = "id" in members
    id = members.get("id")
    good_id = type(id) in (int, str)
    good_params = isinstance(members.get("params", {}), dict)
    answers = ("result" in members) + ("error" in members)
    versioned = members.get("jsonrpc") == "2.0"
    if members.get("method") is None and answers:
        if (
            "method" in members
            or answers == 2
            or not versioned
            or not good_params
            or (has_id and not good_id)
        ):
            return SILENT
        return ("response", id, "result" in members)
    if has_id and not good_id:
        return (REQUEST, None)
    if not versioned or not isinstance(members.get("method"), str):
        return (REQUEST, id)
    if not good_params:
        return (PARAMS, id) if has_id else SILENT
    if answers or not members["method"]:
        return (REQUEST, id)
    return (
        "request" if has_id else "notification",
        id,
        members["method"],
        members.get("params", {}),
    )


def actual(frame: bytes) -> Verdict:
    found = decode(frame)
    if isinstance(found, InvalidMessage):
        if found.code == PARSE:
            return (PARSE,)
        return (found.code, None if found.id is UNSET else found.id)
    id = None if found.id is UNSET else found.id
    if found.method is UNSET:
        return ("response", id, found.result is not ABSENT)
    params = {name: json.loads(bytes(raw)) for name, raw in found.params.items()}
    return ("notification" if found.id is UNSET else "request", id, found.method, params)


POOL = [
    None,
    True,
    False,
    0,
    -1,
    1.5,
    -2.0,
    1e300,
    2**64,
    "",
    "x",
    "2.0",
    "ü🎻\u2028\0",
    "\ud83c",
    'a\\"b\n',
    [],
    {},
    [1, [2, {"": None}]],
]
VALUES = st.sampled_from([*POOL, {"a": POOL}, {"\udfbb": 1}, {"é": {"b": {"c": [0.1]}}}]) | st.text(
    max_size=5
)
MEMBERS = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | st.just("2.0") | st.just("2.0") | VALUES,
        "id": st.integers() | st.text(max_size=5) | VALUES,
        "method": st.sampled_from(["ping", "tools/call", "x", ""]) | VALUES,
        "params": st.dictionaries(st.text(max_size=5), VALUES, max_size=3) | VALUES,
        "result": VALUES,
        "error": VALUES,
        "other": VALUES,
    },
)
PIECES = [
    b"\xff",
    b"\x00",
    b"\\",
    b'"',
    b",",
    b"{",
    b"}",
    b"[",
    b"]",
    b"1",
    b"-",
    b".",
    b"e",
    b" ",
    b"\\ud800",
    b"\\u0041",
]


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """A message or what is nearly one, sometimes damaged at a place."""
    value: object = draw(MEMBERS | MEMBERS | MEMBERS | VALUES)
    text = json.dumps(
        value,
        ensure_ascii=draw(st.booleans()),
        separators=draw(st.sampled_from([None, (",", ":")])),
    )
    frame = text.encode("utf-8", "surrogatepass")
    damage = draw(st.sampled_from(["none", "none", "cut", "insert", "delete", "front"]))
    place = draw(st.integers(0, len(frame)))
    if damage == "cut":
        frame = frame[:place]
    elif damage == "insert":
        frame = frame[:place] + draw(st.sampled_from(PIECES)) + frame[place:]
    elif damage == "delete":
        frame = frame[:place] + frame[place + 1 :]
    elif damage == "front":
        frame = draw(st.sampled_from([BOM, b" ", b"\t", b"\r", b"\x0b"])) + frame
    return frame


@pytest.mark.no_cover
@pytest.mark.slow
@settings(RULES, max_examples=700)
@given(frames())
@example(b'{"jsonrpc":"2.0","id":null,"error":{}}')
@example(b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":-}}')
@example(b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":1e400}}')
@example(b'[1,2,"\\ud800"]')
def test_a_frame_means_what_json_and_the_specification_say(frame: bytes):
    found, wanted = actual(frame), expected_message(frame)
    # What cannot be read, but would be a response if it could, is not answered either. And a
    # response may follow other text.
    assert found == wanted or (
        found in (SILENT, expected_message(frame[frame.find(b'{"') :]))
        and wanted == (PARSE,)
        and (b'"result"' in frame or b'"error"' in frame)
    )


@RULES
@given(st.binary(max_size=40))
def test_random_bytes_mean_what_json_says(frame: bytes):
    assert actual(frame) == expected_message(frame)


@pytest.mark.no_cover
@RULES
@given(st.lists(frames(), max_size=4))
def test_a_batch_is_what_json_says_is_an_array(elements: list[bytes]):
    frame = b"[%b]" % b",".join(elements)
    try:
        value = strict(frame)
    except (ValueError, RecursionError):
        assert decode_batch(frame) is None
        return
    found = decode_batch(frame)
    assert found is not None
    assert [json.loads(bytes(each)) for each in found] == value


def test_an_overlong_frame_keeps_the_id_of_a_request_and_of_a_response():
    assert reject_oversize(b'{"id":7,"method":"x","par', "too long") == InvalidMessage(
        REQUEST, "Invalid Request: too long", 7
    )
    assert reject_oversize(b'{"id":7,"result":{"a":1,"b":', "too long") == InvalidMessage(
        0, "too long", answered_ids=(7,)
    )
    assert reject_oversize(b'{"id":7', "too long").id is UNSET


def test_without_a_descriptor_to_read_the_module_with_an_id_stays_unknown(
    monkeypatch: pytest.MonkeyPatch,
):
    # Python raises ImportError for a module that is None in sys.modules.
    monkeypatch.setitem(sys.modules, "concertino.jsonrpc.deep_frames", None)
    assert reject_oversize(b'{"id":7,"method":"x",', "too long").id is UNSET


def test_without_a_descriptor_to_read_the_module_with_a_response_that_is_no_json_is_no_answer(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setitem(sys.modules, "concertino.jsonrpc.deep_frames", None)
    found = decode(b'{"jsonrpc":"2.0","id":1,"result":undefined}')
    assert isinstance(found, InvalidMessage)
    assert (found.code, found.answered_ids) == (PARSE, ())


def test_without_a_descriptor_to_read_the_module_with_a_deep_batch_is_refused(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setitem(sys.modules, "concertino.jsonrpc.deep_frames", None)
    assert decode_batch(b'[{"a":%b}]' % (b"[" * 200_000 + b"]" * 200_000)) is None


def test_deep_nesting_leaves_no_id_that_is_none():
    deep = b"[" * 200_000 + b"]" * 200_000
    frame = b'{"jsonrpc":"2.0","id":%b,"method":"x","params":{"a":%b}}'
    assert bad(frame % (b"7", deep)) == (PARSE, 7)
    assert bad(frame % (b"1.5", deep)) == (PARSE, None)
    behind = b'{"jsonrpc":"2.0","method":"x","params":{"a":%b},"id":"%b"}'
    assert bad(behind % (deep, b"7")) == (PARSE, "7")
    assert bad(behind % (deep, b"\xff")) == (PARSE, None)
    assert bad(behind % (deep, b"\\ud800")) == (PARSE, None)
    assert bad(frame % (b'"\\ud800"', deep)) == (PARSE, None)
    assert bad(b'{"id":"\\udc00",' + frame[1:] % (b"[]", deep)) == (PARSE, None)
