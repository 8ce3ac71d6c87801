"""message_peek.py: fields that are read without decoding. protobuf writes the messages."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from concertino.orchestra.message_peek import (
    is_chunk,
    is_stream_end,
    is_tool_response,
    join_id,
    peek_tool_call,
    split_id,
)
from concertino.orchestra.plugin_pb2 import (
    HealthRequest,
    PluginRequest,
    PluginResponse,
    ToolRequest,
    ToolResponse,
)

ID = "0190f3c4-0000-7000-8000-000000000001"
HEALTH = PluginRequest(health=HealthRequest()).SerializeToString()


def body(name: str, arguments: bytes | None = None) -> bytes:
    return PluginRequest(
        tool_call=ToolRequest(tool_name=name, arguments=arguments)
    ).SerializeToString()


def make_tool_call(*fields: bytes) -> bytes:
    """A tool call of these fields."""
    content = b"".join(fields)
    return b"\xa2\x01" + bytes((len(content),)) + content


def test_a_message_is_its_id_and_the_rest() -> None:
    request = PluginRequest(request_id=ID, tool_call=ToolRequest(tool_name="echo"))
    assert split_id(request.SerializeToString()) == (ID.encode(), body("echo"))


def test_the_id_can_be_another_one() -> None:
    request = PluginRequest.FromString(join_id(b"another", body("echo")))
    assert request == PluginRequest(request_id="another", tool_call=ToolRequest(tool_name="echo"))


def test_a_message_may_have_no_id() -> None:
    assert split_id(HEALTH) == (b"", HEALTH)
    assert split_id(b"") == (b"", b"")
    assert join_id(b"", HEALTH) == HEALTH


@pytest.mark.parametrize("payload", [b"\x0a", b"\x0a\x05abc", b"\x0a\x80\x01" + b"x" * 128])
def test_an_id_that_is_cut_off_or_too_long_is_for_the_decoder(payload: bytes) -> None:
    assert split_id(payload) is None


@pytest.mark.parametrize("size", [0, 1, 100, 200, 20_000, 3_000_000])
def test_the_tool_is_found_whatever_the_size(size: int) -> None:
    assert peek_tool_call(body("écho", bytes(size))) == ("écho", "")


@given(st.binary(max_size=80), st.text(max_size=20))
def test_the_names_are_those_which_a_decoder_reads_whatever_else_there_is(
    rest: bytes, name: str
) -> None:
    payload = (
        make_tool_call(b"\x0a" + bytes((len(name.encode()),)) + name.encode(), rest)
        if len(rest) < 40
        else rest
    )
    found = peek_tool_call(payload)
    if found is not None:
        try:
            decoded = PluginRequest.FromString(payload)
        except DecodeError:
            return  # the plugin refuses it
        assert found == (decoded.tool_call.tool_name, decoded.tool_call.caller_plugin)


def test_every_field_may_be_there_once_in_their_order() -> None:
    call = ToolRequest(
        tool_name="echo",
        arguments=bytes(300),
        caller_plugin="a" * 200,
        trace_parent="b",
        session_id="c",
        arguments_json=b"{}",
    )
    assert peek_tool_call(PluginRequest(tool_call=call).SerializeToString()) == ("echo", "a" * 200)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        HEALTH,
        body("echo") + HEALTH,  # the last of a oneof counts
        body("echo")[:-1],
        b"\xa2\x01",
        b"\xa2\x01\x00",
        b"\xa2\x01\x02\x0a\x05",
        b"\xa2\x01\x02\x12\x00",  # no name
        b"\xa2\x01\x03\x0a\x01\xff",  # no UTF-8
        b"\xa2\x01\xff\xff\xff\xff\xff\xff",
        body("x" * 128),
        make_tool_call(b"\x0a\x04echo", b"\x0a\x05other"),  # a decoder takes the last
        make_tool_call(b"\x0a\x04echo", b"\x12\x00", b"\x0a\x05other"),
        make_tool_call(b"\x0a\x04echo", b"\xc2\x3e\x00", b"\x0a\x05other"),  # behind field 1000
        make_tool_call(b"\x0a\x04echo", b"\x8a\x80\x00\x05other"),  # the number 1 in three bytes
        make_tool_call(b"\x0a\x04echo", b"\x12\x00", b"\x12\x01x"),
        make_tool_call(b"\x0a\x04echo", b"\x1a\x01a", b"\x1a\x01b"),  # two callers
        make_tool_call(b"\x0a\x04echo", b"\x1a\x01a", b"\xc2\x3e\x00", b"\x1a\x01b"),
        make_tool_call(b"\x0a\x04echo", b"\x1a\x01\xff"),  # no UTF-8
        make_tool_call(b"\x0a\x04echo", b"\x10\x01"),  # a number, where a Struct is expected
        make_tool_call(b"\x0a\x04echo", b"\x12\x05"),  # cut off
        make_tool_call(b"\x0a\x04echo", b"\x12\xff\xff\xff\xff\xff\x01"),
        make_tool_call(b"\x0a\x04echo", b"\xc2"),
        make_tool_call(b"\x0a\x04echo", b"\x2a\x06openai"),  # for one AI provider only
    ],
)
def test_anything_unusual_is_for_the_decoder(payload: bytes) -> None:
    assert peek_tool_call(payload) is None


@pytest.mark.parametrize("size", [0, 200, 20_000])
def test_the_response_to_a_tool_call_is_known_as_one(size: int) -> None:
    assert is_tool_response(
        PluginResponse(tool_call=ToolResponse(success=True, result=bytes(size))).SerializeToString()
    )
    assert not is_tool_response(HEALTH)


MINE = b"\x0a\x02id"
CHUNK = b"\xc2\x02\x03\x12\x01x"
END = b"\xca\x02\x02\x10\x01"


def test_chunks_and_ends_are_known_with_and_without_their_id() -> None:
    assert PluginResponse.FromString(CHUNK).stream_chunk.data == b"x"
    assert PluginResponse.FromString(END).stream_end.success
    assert is_chunk(CHUNK)
    assert is_chunk(MINE + CHUNK)
    assert is_stream_end(END)
    assert is_stream_end(MINE + END)
    assert not is_chunk(MINE + END)
    assert not is_stream_end(MINE + CHUNK)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        MINE,
        MINE[:-1],
        CHUNK[:-1],
        CHUNK + MINE,  # a decoder takes this id
        MINE + MINE + CHUNK,
        CHUNK + END,  # the last of a oneof counts
        CHUNK + CHUNK,
        MINE + b"\x12\x01x" + CHUNK,  # field 2, which nobody knows
        CHUNK + b"\xc2\x3e\x00",
        b"\xc2\x02",
        b"\xc2\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\xc2\x82\x00\x03\x12\x01x",  # the number 40 in three bytes
        b"\x0a\x82\x00id" + CHUNK,  # the length 2 in two bytes
    ],
)
def test_a_chunk_or_end_with_anything_unusual_is_for_the_decoder(payload: bytes) -> None:
    assert not is_chunk(payload)
    assert not is_stream_end(payload.replace(b"\xc2\x02", b"\xca\x02"))
