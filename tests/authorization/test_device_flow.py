"""device_flow.py: the wait for a user at another device. Sections of RFC 8628 in parentheses."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest
from loops import on_a_loop

from concertino.authorization import device_flow
from concertino.authorization.device_flow import request_by_device
from concertino.authorization.fetcher import FetchedResponse
from concertino.authorization.metadata import IssuerMetadata
from concertino.authorization.token_endpoint import TokenEndpoint, TokenError, TokenResponse
from concertino.errors import AuthorizationError

METADATA = IssuerMetadata(
    issuer="https://as.example", device_authorization_endpoint="https://as.example/device"
)
FIELDS = {"resource": "https://a.example/mcp"}
TOKENS = TokenResponse(access_token="access", token_type="Bearer")


class Endpoint:
    """A token endpoint that gives these answers to polls; errors are raised."""

    def __init__(self, *answers: Exception | TokenResponse, **members: Any) -> None:
        self.answers = list(answers)
        self.members = {
            "device_code": "d",
            "user_code": "ABCD",
            "verification_uri": "https://as.example/pair",
            "interval": 5,
            **members,
        }
        self.polls: list[Any] = []

    async def post(self, url: str, fields: Any) -> FetchedResponse:
        assert url == METADATA.device_authorization_endpoint
        assert fields == FIELDS
        return FetchedResponse(url, 200, {}, json.dumps(self.members).encode())

    async def request(self, fields: Any) -> TokenResponse:
        self.polls.append(fields)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between polls, which take no time; only a clock of the test goes on."""
    made: list[float] = []

    class Time:
        @staticmethod
        def monotonic() -> float:
            return sum(made)

    class Asyncio:
        @staticmethod
        async def sleep(seconds: float) -> None:
            made.append(seconds)

    monkeypatch.setattr(device_flow, "time", Time)
    monkeypatch.setattr(device_flow, "asyncio", Asyncio)
    return made


async def log_in(endpoint: Endpoint) -> tuple[TokenResponse, list[tuple[str, str]]]:
    shown: list[tuple[str, str]] = []
    tokens = await request_by_device(
        cast(TokenEndpoint, endpoint), METADATA, FIELDS, lambda *words: shown.append(words)
    )
    return tokens, shown


def pending(code: str = "authorization_pending") -> TokenError:
    return TokenError("", code)


@pytest.mark.requirement("AU-19", side="authorization")
@on_a_loop
async def test_polls_get_slower_when_the_server_asks_for_it(pauses: list[float]) -> None:
    # (3.5) 5 s more for this and all later polls; twice as long after a failed connection.
    endpoint = Endpoint(pending(), pending("slow_down"), pending(), ConnectionError(), TOKENS)

    tokens, shown = await log_in(endpoint)

    assert tokens is TOKENS
    assert shown == [("https://as.example/pair", "ABCD")]
    assert pauses == [5, 5, 10, 10, 20]
    assert endpoint.polls[0] == {
        "grant_type": "urn:ietf:params:oauth:grant-type:device_code",
        "device_code": "d",
        **FIELDS,
    }


@pytest.mark.requirement("AU-19", side="authorization")
@pytest.mark.parametrize("code", ["access_denied", "expired_token", "invalid_grant"])
@on_a_loop
async def test_a_refusal_is_final(code: str, pauses: list[float]) -> None:
    endpoint = Endpoint(pending(), pending(code), TOKENS)
    with pytest.raises(TokenError) as caught:
        await log_in(endpoint)
    assert caught.value.code == code
    assert len(endpoint.polls) == 2


@pytest.mark.requirement("AU-19", side="authorization")
@on_a_loop
async def test_nobody_types_the_code_in_time(pauses: list[float]) -> None:
    endpoint = Endpoint(*[pending()] * 100, expires_in=20)
    with pytest.raises(AuthorizationError, match="in time"):
        await log_in(endpoint)
    assert pauses == [5, 5, 5, 5]


@on_a_loop
async def test_the_server_chooses_neither_an_endless_wait_nor_a_flood(
    pauses: list[float],
) -> None:
    endpoint = Endpoint(*[pending()] * 2000, expires_in=1e9, interval=0)
    with pytest.raises(AuthorizationError, match="in time"):
        await log_in(endpoint)
    assert set(pauses) == {1.0}
    assert sum(pauses) == 1800


@on_a_loop
async def test_no_pause_is_longer_than_the_code_is_valid(pauses: list[float]) -> None:
    with pytest.raises(AuthorizationError, match="in time"):
        await log_in(Endpoint(pending(), expires_in=20, interval=1e9))
    assert pauses == [20]


@pytest.mark.parametrize(
    "failure", [TimeoutError("no response within 5 s"), OSError("Connection refused")]
)
@on_a_loop
async def test_a_server_that_cannot_be_reached_is_asked_again(
    failure: OSError, pauses: list[float]
) -> None:
    """(3.5) A poll that is lost ends no login, but the code does."""
    tokens, _ = await log_in(Endpoint(pending(), failure, TOKENS))
    assert tokens is TOKENS
    assert pauses == [5, 5, 10]

    pauses.clear()
    with pytest.raises(OSError, match=str(failure)):
        await log_in(Endpoint(pending(), failure, failure, expires_in=20))
    assert pauses == [5, 5, 10]


@pytest.mark.requirement("CA-I", side="authorization")
@pytest.mark.parametrize("page", ["javascript:alert(1)", "file:///etc/passwd", "http://a.example/"])
@on_a_loop
async def test_a_page_that_must_not_be_opened_is_not_shown(page: str, pauses: list[float]) -> None:
    with pytest.raises(AuthorizationError, match="verification_uri"):
        await log_in(Endpoint(TOKENS, verification_uri=page))
    assert pauses == []


@on_a_loop
async def test_a_code_cannot_control_the_terminal(pauses: list[float]) -> None:
    _, [(_, code)] = await log_in(Endpoint(TOKENS, user_code="A\x1b[2J\nB" + "x" * 100))
    assert code == "A[2JB" + "x" * 57


@on_a_loop
async def test_a_server_without_this_login_is_named() -> None:
    with pytest.raises(AuthorizationError, match="no login by another device"):
        await request_by_device(
            cast(TokenEndpoint, Endpoint()),
            IssuerMetadata(issuer="https://as.example"),
            FIELDS,
            lambda page, code: asyncio.get_running_loop(),
        )
