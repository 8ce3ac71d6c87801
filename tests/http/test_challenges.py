"""challenges.py: the header WWW-Authenticate, by the grammar of RFC 9110, section 5.6.4."""

from __future__ import annotations

import pytest

from concertino.errors import check_scopes
from concertino.http.challenges import Challenges


@pytest.mark.requirement("RS-27", side="authorization")
def test_values_are_quoted() -> None:
    refusal = Challenges("https://a.example/x", ()).invalid_token('a "b" \\ c')
    assert refusal.headers == (
        b'WWW-Authenticate: Bearer error="invalid_token", '
        b'error_description="a \\"b\\" \\\\ c", resource_metadata="https://a.example/x"\r\n'
    )


@pytest.mark.requirement("RS-27", side="authorization")
def test_a_value_cannot_end_the_line() -> None:
    refusal = Challenges(None, ()).invalid_token("a\r\nSet-Cookie: x\u2028\x00")
    assert refusal.headers == (
        b'WWW-Authenticate: Bearer error="invalid_token", error_description="aSet-Cookie: x"\r\n'
    )


@pytest.mark.requirement("RS-27", side="authorization")
@pytest.mark.parametrize("scope", ["", "a b", 'a"', "a\\", "ä", "a\n", "\x7f"])
def test_a_scope_has_the_characters_of_rfc_6749(scope: str) -> None:
    with pytest.raises(ValueError, match="scope"):
        check_scopes([scope])
    assert check_scopes(["!#[]~a"]) == {"!#[]~a"}


@pytest.mark.requirement("RS-27", side="authorization")
def test_malformed_scopes_of_an_error_are_not_sent() -> None:
    frame = b'{"jsonrpc":"2.0","id":1,"error":{"code":-31003,"data":{"scopes":["a\\"b"]}}}'
    line = Challenges(None, ["read"]).scope_challenge(frame)
    assert b'scope="read"' in line
