"""request_profile.py: a request before the session has read it."""

from __future__ import annotations

from concertino.protocol.request_profile import SessionRequest


def test_a_new_request_has_no_call_no_dialogue_and_no_hooks():
    incoming = SessionRequest(1, "tools/call", {}, 10)
    assert incoming.open
    assert incoming.call.method == ""
    assert incoming.profile.methods == frozenset()
    assert incoming.profile.client.name == ""
    assert incoming.dialogue is incoming.hooks is incoming.timer is None


def test_requests_are_compared_by_identity():
    assert SessionRequest(1, "x", {}, 10) != SessionRequest(1, "x", {}, 10)
