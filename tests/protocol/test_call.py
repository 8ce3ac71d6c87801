"""call.py: the value that passes the seam.

Params are the spec's own example of tools/call, written out.
"""

from __future__ import annotations

import msgspec
import pytest
from msgspec import Raw

from concertino.errors import RpcError
from concertino.protocol.call import (
    Call,
    ClientFacts,
    ServerFeatures,
    read_text_arguments,
    read_text_param,
)
from concertino.types.results import Implementation


class WeatherCall(msgspec.Struct):
    name: str
    arguments: dict[str, str] = {}


def test_params_are_decoded_as_the_shape_asked_for():
    call = Call(
        "tools/call", {"name": Raw(b'"get_weather"'), "arguments": Raw(b'{"location": "New York"}')}
    )
    assert call.decode_params(WeatherCall) == WeatherCall("get_weather", {"location": "New York"})


def test_params_that_do_not_fit_the_shape_say_where():
    with pytest.raises(msgspec.ValidationError, match=r"Expected `str`, got `int` - at `\$.name`"):
        Call("tools/call", {"name": Raw(b"5")}).decode_params(WeatherCall)


def test_a_call_has_no_params_and_no_meta_unless_given():
    call = Call("tools/list")
    assert dict(call.params) == {}
    assert dict(call.meta) == {}
    with pytest.raises(msgspec.ValidationError, match="missing required field `name`"):
        call.decode_params(WeatherCall)


def test_what_crosses_the_seam_does_not_change():
    for value in (
        Call("x"),
        ClientFacts("n", "1", "2025-11-25", {}),
        ServerFeatures(Implementation("n", "1")),
    ):
        with pytest.raises(AttributeError):
            value.method = "other"  # type: ignore[attr-defined]


def test_an_offer_offers_nothing_by_itself():
    offer = ServerFeatures(Implementation("n", "1"))
    features = (offer.tools, offer.prompts, offer.resources, offer.completions, offer.logging)
    assert features == (False, False, False, False, False)
    assert offer.instructions is None
    assert dict(offer.experimental) == dict(offer.extensions) == {}


def test_a_call_has_a_readable_name_and_arguments():
    call = Call("tools/call", {"name": Raw(b'"add"'), "arguments": Raw(b'{"a": 1, "b": [true]}')})
    assert call.name == "add"
    assert call.arguments == {"a": 1, "b": [True]}


def test_the_name_of_a_resource_is_its_uri():
    assert Call("resources/read", {"uri": Raw(b'"notes://a"')}).name == "notes://a"


@pytest.mark.parametrize("value", [b"5", b"null", b'"\\ud800"', b'{"a": 1}'])
def test_what_is_no_string_is_no_name(value: bytes):
    assert Call("tools/call", {"name": Raw(value)}).name is None


@pytest.mark.parametrize("value", [b"5", b"null", b"[1]", b'"x"'])
def test_what_is_no_object_is_no_arguments(value: bytes):
    assert Call("tools/call", {"arguments": Raw(value)}).arguments == {}


def test_a_call_without_params_has_no_name_and_no_arguments():
    call = Call("tools/list")
    assert call.name is None
    assert call.arguments == {}


def test_a_param_that_must_be_a_text_is_decoded_or_named_in_the_error():
    assert read_text_param({"uri": Raw(b'"a:b"')}, "uri") == "a:b"
    for params, details in [
        ({}, "Missing required field: uri"),
        ({"uri": Raw(b"5")}, "uri: expected str"),
        ({"uri": Raw(b'"\xff"')}, "uri: expected str"),
        ({"uri": Raw(b'"\\ud800"')}, "uri: expected str"),
    ]:
        with pytest.raises(RpcError) as failure:
            read_text_param(params, "uri")
        assert (failure.value.code, failure.value.data) == (-32602, {"details": details})


def test_arguments_of_a_prompt_are_an_object_of_texts():
    assert read_text_arguments({}) == {}
    assert read_text_arguments({"arguments": Raw(b'{"a":"b"}')}) == {"a": "b"}
    for raw, details in [
        (b"null", "arguments: expected object, got null"),
        (b'{"a":5}', "arguments: expected str, got int - at $[...]"),
    ]:
        with pytest.raises(RpcError) as failure:
            read_text_arguments({"arguments": Raw(raw)})
        assert failure.value.data == {"details": details}
