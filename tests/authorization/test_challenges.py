"""WWW-Authenticate as servers write it. Expected values by the grammar of RFC 9110."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concertino.authorization.challenges import bearer_challenge, parse_challenges


@pytest.mark.requirement("DS-1", side="authorization")
@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        ("Bearer", {}),
        ('Bearer realm="a", scope="x y"', {"realm": "a", "scope": "x y"}),
        ('bearer SCOPE = "x" ,error=e', {"scope": "x", "error": "e"}),
        (r'Bearer error_description="a, \"b\" \\, Basic realm=x", scope="y"',
         {"error_description": 'a, "b" \\, Basic realm=x', "scope": "y"}),
        ('Basic realm="r", Bearer scope="x"', {"scope": "x"}),
        ('Negotiate abc==, Bearer scope="x", Digest nonce="n"', {"scope": "x"}),
        ("Bearer resource_metadata=https://a.example/.well-known/x?a=b, scope=y",
         {"resource_metadata": "https://a.example/.well-known/x?a=b", "scope": "y"}),
        ('Bearer scope="first", scope="second"', {"scope": "first"}),
        ('Basic realm="Bearer scope=x"', {}),
        ("", {}),
        ('Bearer scope="unfinished', {"scope": ""}),
    ],
)  # fmt: skip
def test_the_parameters_of_bearer(text: str, parameters: dict[str, str]) -> None:
    assert bearer_challenge(text) == parameters


@pytest.mark.requirement("DS-1", side="authorization")
@given(st.text(max_size=200))
def test_anything_is_read_to_its_end(text: str) -> None:
    parse_challenges(text)


def test_a_long_header_takes_linear_time() -> None:
    assert len(parse_challenges("a " * 30_000)) == 16
    parse_challenges('Bearer x="' + "\\" * 60_000)
    assert len(parse_challenges("Bearer " + "a=b," * 10_000)[0].parameters) == 1
