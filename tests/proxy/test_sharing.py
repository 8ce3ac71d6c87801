"""sharing.py: when a server gets a process for each client, and what the log says then."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from concertino.proxy.sharing import ServerSharing


class Session:
    """A client session. principal: its verified user."""

    def __init__(self, principal: bytes) -> None:
        self.principal = principal


FIRST, SECOND, OTHER = Session(b"ada"), Session(b"ada"), Session(b"bob")


def shares(sharing: ServerSharing, one: Any, two: Any) -> bool:
    return sharing.key_of(one) == sharing.key_of(two)


@pytest.mark.parametrize(
    ("is_modern", "has_log_levels", "asks", "reason"),
    [
        (False, True, False, "it has log levels"),
        (False, False, True, "it asks its client something"),
        # Each request to a modern server has its own level.
        (True, True, False, None),
        (False, False, False, None),
    ],
)
def test_sessions_of_one_user_get_their_own_process_if_the_server_cannot_tell_them_apart(
    is_modern: bool,
    has_log_levels: bool,
    asks: bool,
    reason: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sharing = ServerSharing("files", "auto", can_reopen=True)
    with caplog.at_level(logging.INFO, "concertino.proxy"):
        sharing.learn(is_modern=is_modern, has_log_levels=has_log_levels)
        for _ in range(2 if asks else 0):
            sharing.on_question()
    assert shares(sharing, FIRST, SECOND) is (reason is None)
    assert not shares(sharing, FIRST, OTHER)
    line = f"files: each client gets a server process of its own: {reason}"
    assert caplog.messages == ([] if reason is None else [line])


@pytest.mark.parametrize(
    ("isolation", "can_reopen", "shares_user", "shares_all"),
    [
        # What the user has chosen stays.
        ("shared", True, True, True),
        ("principal", True, True, False),
        # A connection that cannot be opened again is there for all.
        ("session", False, True, True),
        ("session", True, False, False),
    ],
)
def test_a_question_changes_nothing_else(
    isolation: Any,
    can_reopen: bool,
    shares_user: bool,
    shares_all: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sharing = ServerSharing("files", isolation, can_reopen)
    with caplog.at_level(logging.INFO, "concertino.proxy"):
        sharing.learn(is_modern=False, has_log_levels=True)
        sharing.on_question()
    assert shares(sharing, FIRST, SECOND) is shares_user
    assert shares(sharing, FIRST, OTHER) is shares_all
    assert caplog.messages == []
