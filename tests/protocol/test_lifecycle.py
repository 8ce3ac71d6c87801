"""lifecycle.py: the states of the legacy handshake. Rules: 2025-11-25 basic/lifecycle."""

from __future__ import annotations

from typing import get_args

import pytest

from concertino.protocol.lifecycle import LIFECYCLE, Lifecycle, State


def test_the_lifecycle_has_a_rule_for_every_state_and_event():
    assert set(LIFECYCLE) == set(get_args(State))
    assert all(
        set(events) == {"initialize", "initialized", "request"} for events in LIFECYCLE.values()
    )


@pytest.mark.parametrize("last", ["initialized", "request"])
def test_a_handshake_ends_with_initialized_or_with_the_first_request(last: str):
    opened = LIFECYCLE["fresh"]["initialize"]
    assert opened == "opened"
    assert LIFECYCLE[opened][last] == "ready"


@pytest.mark.parametrize("state", ["opened", "ready"])
def test_initialize_is_rejected_a_second_time(state: State):
    assert LIFECYCLE[state]["initialize"] is None


def test_requests_are_rejected_before_initialize():
    assert LIFECYCLE["fresh"]["request"] is None
    assert LIFECYCLE["fresh"]["initialized"] == "fresh"


def test_a_session_stays_in_operation():
    assert LIFECYCLE["ready"]["initialized"] == "ready"
    assert LIFECYCLE["ready"]["request"] == "ready"


def test_a_message_that_is_rejected_changes_nothing():
    lifecycle = Lifecycle()
    assert not lifecycle.allows("request")
    lifecycle.advance("request")
    assert lifecycle.state == "fresh"

    assert lifecycle.allows("initialize")
    lifecycle.advance("initialize")
    assert not lifecycle.allows("initialize")
    lifecycle.advance("initialize")
    assert lifecycle.state == "opened"
    lifecycle.advance("initialized")
    assert lifecycle.state == "ready"
