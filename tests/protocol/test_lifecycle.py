"""lifecycle.py: the states of the legacy handshake. Rules: 2025-11-25 basic/lifecycle."""

from __future__ import annotations

import pytest

from concertino.protocol.lifecycle import LIFECYCLE, State


def test_the_lifecycle_has_a_rule_for_every_state_and_event():
    assert set(LIFECYCLE) == set(State)
    assert all(
        set(events) == {"initialize", "initialized", "request"} for events in LIFECYCLE.values()
    )


@pytest.mark.parametrize("last", ["initialized", "request"])
def test_a_handshake_ends_with_initialized_or_with_the_first_request(last: str):
    opened = LIFECYCLE[State.FRESH]["initialize"]
    assert opened is State.OPENED
    assert LIFECYCLE[opened][last] is State.READY


@pytest.mark.parametrize("state", [State.OPENED, State.READY])
def test_initialize_is_rejected_a_second_time(state: State):
    assert LIFECYCLE[state]["initialize"] is None


def test_requests_are_rejected_before_initialize():
    assert LIFECYCLE[State.FRESH]["request"] is None
    assert LIFECYCLE[State.FRESH]["initialized"] is State.FRESH


def test_a_session_stays_in_operation():
    assert LIFECYCLE[State.READY]["initialized"] is State.READY
    assert LIFECYCLE[State.READY]["request"] is State.READY
