"""tool_calls.py: encodes and reads messages exactly as protobuf's classes do."""

from __future__ import annotations

import pytest

from concertino.orchestra.plugin_pb2 import (
    HealthResult,
    PluginRequest,
    PluginResponse,
    ToolRequest,
    ToolResponse,
)
from concertino.orchestra.structs import NotAStruct, PackedObject, encode_struct, pack
from concertino.orchestra.tool_calls import (
    encode_caller,
    encode_result,
    encode_text_result,
    encode_tool_call,
    read_text_result,
)

ID = "0190f3c4-0000-7000-8000-000000000001"
SIZES = [0, 1, 100, 110, 111, 112, 120, 127, 128, 200, 16_350, 16_400, 3_000_000]


def protobuf_response(text: str, **more: object) -> bytes:
    """A response by protobuf."""
    said = ToolResponse(success=True, result=encode_struct({"text": text}), **more)  # type: ignore[arg-type]
    return PluginResponse(request_id=ID, tool_call=said).SerializeToString()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("json", [None, b"{}", b'{"n":12345678901234567890}' * 20])
def test_a_request_is_what_protobuf_reads(size: int, json: bytes | None) -> None:
    body = encode_tool_call(
        "écho", PackedObject(bytes(size), json), encode_caller("c", "s" * 200), "t"
    )
    request = ToolRequest(
        tool_name="écho",
        arguments=bytes(size),
        caller_plugin="c",
        trace_parent="t",
        session_id="s" * 200,
    )
    if json is not None:
        request.arguments_json = json
    assert PluginRequest.FromString(body) == PluginRequest(tool_call=request)


def test_what_is_empty_is_not_said_but_for_arguments() -> None:
    nothing = encode_tool_call("x", None, encode_caller("", ""))
    assert nothing == PluginRequest(tool_call=ToolRequest(tool_name="x")).SerializeToString()
    empty = encode_tool_call("x", pack({}), encode_caller("", ""))
    assert (
        empty
        == PluginRequest(tool_call=ToolRequest(tool_name="x", arguments=b"")).SerializeToString()
    )


@pytest.mark.parametrize("size", SIZES)
def test_a_success_is_as_protobuf_writes_it(size: int) -> None:
    assert (
        encode_result(bytes(size))
        == PluginResponse(
            tool_call=ToolResponse(success=True, result=bytes(size))
        ).SerializeToString()
    )


@pytest.mark.parametrize("size", SIZES)
def test_a_text_is_as_protobuf_writes_it_and_is_found(size: int) -> None:
    text = "é" * (size // 2) + "x" * (size % 2)
    payload = protobuf_response(text)
    assert payload.endswith(encode_text_result(text))
    assert read_text_result(payload) in (text, None)  # None: it is for the decoder
    assert read_text_result(payload) == text or size not in (0, 1, 100, 110, 111, 128, 200, 16_350)


def test_a_text_with_half_of_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(NotAStruct):
        encode_text_result("\ud800")


STRUCT = encode_struct({"text": "hello"})


@pytest.mark.parametrize(
    "response",
    [
        PluginResponse(),
        PluginResponse(health=HealthResult(message="well, as far as one can tell")),
        PluginResponse(tool_call=ToolResponse(error_code="x", error_message="y")),
        PluginResponse(tool_call=ToolResponse(success=True)),
        PluginResponse(tool_call=ToolResponse(success=False, result=STRUCT)),
        PluginResponse(tool_call=ToolResponse(success=True, result=STRUCT, result_json=b"{}")),
        PluginResponse(tool_call=ToolResponse(success=True, result=STRUCT, error_code="x")),
        PluginResponse(tool_call=ToolResponse(success=True, result=encode_struct({"text": 1}))),
        PluginResponse(
            tool_call=ToolResponse(success=True, result=encode_struct({"data": "hello"}))
        ),
        PluginResponse(
            tool_call=ToolResponse(success=True, result=encode_struct({"text": "a", "b": "c"}))
        ),
    ],
)
def test_any_other_response_is_for_the_decoder(response: PluginResponse) -> None:
    response.request_id = ID
    assert read_text_result(response.SerializeToString()) is None


@pytest.mark.parametrize("size", [5, 200])
def test_a_response_that_is_cut_off_or_goes_on_is_for_the_decoder(size: int) -> None:
    whole = protobuf_response("x" * size)
    assert read_text_result(whole) == "x" * size
    for end in range(len(whole)):
        assert read_text_result(whole[:end]) is None
    assert read_text_result(whole + b"\x00") is None
    assert (
        read_text_result(whole + PluginResponse(health=HealthResult()).SerializeToString()) is None
    )
    assert read_text_result(whole[:-1] + b"\xff") is None
    assert read_text_result(b"\x0a\x80\x01" + b"x" * 128 + whole) is None
