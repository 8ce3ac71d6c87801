"""What a hub reads of a message that it does not decode. Messages are written by protobuf itself."""

from __future__ import annotations

import pytest

from concertino.orchestra.envelope import called, is_of_a_tool, opened, sealed
from concertino.orchestra.plugin_pb2 import HealthRequest, PluginRequest, PluginResponse, ToolRequest, ToolResponse

ID = "0190f3c4-0000-7000-8000-000000000001"
HEALTH = PluginRequest(health=HealthRequest()).SerializeToString()


def body(name: str, arguments: bytes | None = None) -> bytes:
    return PluginRequest(tool_call=ToolRequest(tool_name=name, arguments=arguments)).SerializeToString()


def test_a_message_is_its_id_and_the_rest() -> None:
    request = PluginRequest(request_id=ID, tool_call=ToolRequest(tool_name="echo"))
    assert opened(request.SerializeToString()) == (ID.encode(), body("echo"))


def test_the_id_can_be_another_one() -> None:
    request = PluginRequest.FromString(sealed(b"another", body("echo")))
    assert request == PluginRequest(request_id="another", tool_call=ToolRequest(tool_name="echo"))


def test_a_message_may_have_no_id() -> None:
    assert opened(HEALTH) == (b"", HEALTH)
    assert opened(b"") == (b"", b"")
    assert sealed(b"", HEALTH) == HEALTH


@pytest.mark.parametrize("payload", [b"\x0a", b"\x0a\x05abc", b"\x0a\x80\x01" + b"x" * 128])
def test_an_id_that_is_cut_off_or_too_long_is_for_the_decoder(payload: bytes) -> None:
    assert opened(payload) is None


@pytest.mark.parametrize("size", [0, 1, 100, 200, 20_000, 3_000_000])
def test_the_tool_is_found_whatever_the_size(size: int) -> None:
    assert called(body("écho", bytes(size))) == "écho"


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
    ],
)
def test_anything_unusual_is_for_the_decoder(payload: bytes) -> None:
    assert called(payload) is None


@pytest.mark.parametrize("size", [0, 200, 20_000])
def test_the_response_to_a_tool_call_is_known_as_one(size: int) -> None:
    assert is_of_a_tool(PluginResponse(tool_call=ToolResponse(success=True, result=bytes(size))).SerializeToString())
    assert not is_of_a_tool(HEALTH)
