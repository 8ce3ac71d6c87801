"""request_profile.py: members of params, and the texts of errors about them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder

from concertino.errors import RpcError
from concertino.protocol.request_profile import QUOTED_CHARS, describe_with_path, pop_member

BAD_PARAMS = -32602


class Inner(Struct):
    name: str


class Outer(Struct):
    client: Inner


def decode_error(type: Any, text: bytes) -> DecodeError:
    with pytest.raises(DecodeError) as raised:
        Decoder(type).decode(text)
    return raised.value


def test_a_member_is_removed_and_decoded():
    members = {"uri": Raw(b'"a:b"'), "other": Raw(b"1")}
    assert pop_member(members, "uri", str) == "a:b"
    assert members.keys() == {"other"}


def test_a_missing_member_is_none():
    assert pop_member({}, "uri", str) is None


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"5", "Invalid params: uri: expected str, got int"),
        (b"null", "Invalid params: uri: expected str, got null"),
    ],
)
def test_a_member_of_another_type_is_invalid(raw: bytes, text: str):
    with pytest.raises(RpcError) as raised:
        pop_member({"uri": Raw(raw)}, "uri", str)
    assert (raised.value.code, raised.value.message) == (BAD_PARAMS, text)


def test_the_path_stands_in_front():
    exc = decode_error(Outer, b'{"client":{"name":5}}')
    assert describe_with_path(exc) == "client.name: expected str, got int"


def test_a_long_text_is_cut():
    exc = DecodeError("X" + "y" * 10_000)
    assert describe_with_path(exc) == "x" + "y" * (3 * QUOTED_CHARS - 1)
