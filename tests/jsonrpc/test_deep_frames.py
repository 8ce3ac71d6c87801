"""deep_frames.py: what is found of frames that no decoder reads.

`json` with a high limit of recursion is the judge.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concertino.jsonrpc.deep_frames import (
    MAX_TOKENS,
    find_objects,
    read_outer_members,
    split_array,
    split_batch,
)
from concertino.jsonrpc.messages import is_response

DEEP = "[" * 5000 + "]" * 5000
MEMBERS = ('"jsonrpc":"2.0"', '"method":"x"', f'"params":{{"a":{DEEP}}}', '"id":@')


@pytest.mark.parametrize("id", ["7", "-1", '"x"', '"a\\"b"', '"\\u00e9"', '"]{,:"'])
def test_the_id_is_found_wherever_it_stands(id: str) -> None:
    for members in permutations(MEMBERS):
        for space in ("", " \t"):
            frame = "{" + f"{space},{space}".join(members).replace("@", space + id) + "}"
            assert read_outer_members(frame.encode()).id == id.encode()


@pytest.mark.parametrize(
    "frame",
    [
        "[" * 5000,
        f'[{{"id":1}},{DEEP}]',
        f'{{"method":"x","params":{DEEP}}}',
        f'{{"id":null,"method":"x","params":{DEEP}}}',
        f'{{"id":1.5,"method":"x","params":{DEEP}}}',
        f'{{"id":1e3,"method":"x","params":{DEEP}}}',
        f'{{"id":[1],"method":"x","params":{DEEP}}}',
        f'{{"params":{{"id":1,"a":{DEEP}}}}}',
        f'{{"a":"\\"id\\":1","b":{DEEP}}}',
        f'{{"\\"id":1,"b":{DEEP}}}',
        '"' + "[" * 5000,
        "",
    ],
)
def test_what_is_no_id_of_the_message_is_not_found(frame: str) -> None:
    assert read_outer_members(frame.encode()).id is None


def test_of_two_ids_the_last_one_counts() -> None:
    assert read_outer_members(f'{{"id":1,"a":{DEEP},"id":2}}'.encode()).id == b"2"


def test_behind_a_byte_order_mark_the_id_is_found() -> None:
    assert read_outer_members(b"\xef\xbb\xbf" + f'{{"id":1,"a":{DEEP}}}'.encode()).id == b"1"


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ('"id":1,"result":@', True),
        ('"error":@,"id":1', True),
        ('"id":1,"params":@', False),
        ('"id":1,"method":"x","params":@', False),
        ('"id":1,"method":"x","result":@', False),
        ('"id":1,"params":{"result":@}', False),
        ('"jsonrpc":"2.0","id":1,"level":"x","error":@', True),
        ('"id":1,"level":"x","error":@', False),
    ],
)
def test_a_response_has_no_method_and_is_no_line_of_a_log(members: str, expected: bool) -> None:
    frame = "{" + members.replace("@", DEEP) + "}"
    assert is_response(read_outer_members(frame.encode()).names) is expected


@pytest.mark.parametrize("unit", ['{"id":', '{"id":"', '{"id":1}', '{"id":"\\'])
def test_a_line_of_many_objects_costs_a_limited_time(unit: str) -> None:
    line = unit.encode() * 200_000
    began = time.process_time()
    assert len(find_objects(line)) <= 10
    assert time.process_time() - began < 0.25


def test_no_object_is_found_inside_of_another_one() -> None:
    for inner in ("", "{}," * 100_000):
        line = f'{{"jsonrpc":"2.0","method":"x","params":[{inner}{{"id":1,"result":2}},'
        assert [members.names for members in find_objects(line.encode())] == [
            {"jsonrpc", "method", "params"}
        ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"id":5,', ""),
        ("", ',"id":5'),
        ("", ',"jsonrpc":"2.0" , "id" : 5 '),
        ("", ',"id":5,"method":"x"'),
    ],
)
def test_a_frame_of_many_brackets_costs_a_limited_time(before: str, after: str) -> None:
    frame = b"{" + before.encode() + b'"params":[' + b"{}," * 2_000_000 + b"{}]"
    frame += after.encode() + b"}"
    assert len(frame) > 6_000_000
    began = time.process_time()
    assert read_outer_members(frame).id == b"5"
    # 2,000,000 of them take more than half a second.
    assert time.process_time() - began < 0.25


@pytest.mark.parametrize(
    "text", ['"' + '\\\\"' * 1_000_000, '{"' + '\\\\"' * 1_000_000, '{"a' * 200_000]
)
def test_strings_without_an_end_cost_a_linear_time(text: str) -> None:
    began = time.process_time()
    read_outer_members(b"{" + text.encode())
    assert time.process_time() - began < 1.0


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.sampled_from(['"', "\\", "}"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "method", "result", 'i"d', "x"]), inner, max_size=3
        )
    ),
    max_leaves=10,
)


@pytest.mark.no_cover
@given(st.lists(JSON, max_size=4), st.sampled_from([None, 1]))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_any_array_is_split_as_json_reads_it(values: list[object], indent: int | None) -> None:
    elements = split_array(json.dumps(values, indent=indent).encode())
    assert elements is not None
    assert [json.loads(element) for element in elements] == values


@pytest.mark.parametrize(
    "frame", ["[", "[1", "[1,", "[1,]", "[,1]", "[1]]", "[1] 2", '["]', "{}", ""]
)
def test_what_is_no_array_is_not_split(frame: str) -> None:
    assert split_array(frame.encode()) is None


def test_a_batch_is_split_if_one_of_its_elements_may_be_a_message() -> None:
    deep = f'{{"id":2,"params":{DEEP}}}'
    assert split_batch(f' [ {{"id":1}} ,{deep}, 3 ]'.encode()) == [
        b'{"id":1}',
        deep.encode(),
        b"3",
    ]
    assert split_batch(f"[1,{DEEP}]".encode()) is None
    assert split_batch(b"[]") is None
    assert split_batch(b"[1") is None


def test_an_array_of_many_brackets_costs_a_limited_time() -> None:
    frame = b"[" + b"[]," * 2_000_000 + b"1]"
    began = time.process_time()
    assert split_array(frame) is None
    assert time.process_time() - began < 0.25


@pytest.mark.parametrize("between", [b"1,", b"1", b" \n", b"-"])
def test_bytes_between_strings_and_brackets_cost_little_time(between: bytes) -> None:
    frame = b'{"id":1,"a":[' + between * (10_000_000 // len(between))
    began = time.process_time()
    assert read_outer_members(frame).id == b"1"
    assert time.process_time() - began < 0.12


@pytest.mark.no_cover
@given(JSON, st.booleans(), st.sampled_from([None, 1]))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_any_json_is_read_as_json_reads_it(value: object, ascii: bool, indent: int | None) -> None:
    members = read_outer_members(json.dumps(value, ensure_ascii=ascii, indent=indent).encode())
    if not isinstance(value, dict):
        assert (members.id, members.names) == (None, set())
        return
    id = value.get("id")  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    if type(id) in (int, str):  # pyright: ignore[reportUnknownArgumentType]
        assert members.id is not None
        assert json.loads(members.id) == id
    else:
        assert members.id is None
    assert {json.loads(f'"{name}"') for name in members.names} == set(value)  # pyright: ignore[reportUnknownArgumentType]


def test_the_limit_is_far_above_usual_messages() -> None:
    assert sys.getrecursionlimit() * 10 < MAX_TOKENS
