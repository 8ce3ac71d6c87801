"""protocol/principal.py: who makes a call, and what of it is said in logs."""

from __future__ import annotations

import pytest
from session_rig import CALL, Rig, modern, opening, request

from concertino.protocol.principal import Principal, unix_principal

ALICE = Principal("alice", "editor", "https://issuer.example", frozenset({"read"}), 1e9)


def test_identity_is_issuer_client_and_subject_but_not_what_the_token_allows():
    later = Principal("alice", "editor", "https://issuer.example", frozenset({"write"}), 2e9)
    assert ALICE.identity == later.identity
    others = [
        Principal("bob", "editor", "https://issuer.example"),
        Principal("alice", "browser", "https://issuer.example"),
        Principal("alice", "editor", "https://other.example"),
        # The parts are not simply joined.
        Principal("aliceeditor", "", "https://issuer.example"),
    ]
    assert len({ALICE.identity, *(other.identity for other in others)}) == 5


def test_the_user_of_a_unix_socket_is_no_subject_of_an_issuer():
    assert unix_principal(1000).identity == b"1000"
    assert Principal("1000").identity != b"1000"


def test_a_principal_without_a_token_lacks_no_scope():
    assert ALICE.lacks({"write"})
    assert ALICE.lacks({"read", "write"})
    assert not ALICE.lacks({"read"})
    assert not ALICE.lacks(frozenset())
    assert not unix_principal(0).lacks({"read"})


@pytest.mark.parametrize("show", [repr, str])
def test_logs_name_no_person(show):
    text = show(ALICE)
    assert "alice" not in text
    assert "editor" not in text
    assert "https://issuer.example" in text
    assert text != show(Principal("bob", "editor", "https://issuer.example"))


def test_requests_keep_the_principal_that_they_came_with():
    rig = Rig().opened()
    rig.session.identify(ALICE)
    first = rig.call(1, "tools/call", CALL)
    newer = Principal("alice", "editor", "https://issuer.example", frozenset({"write"}))
    rig.session.identify(newer)
    second = rig.call(2, "tools/call", {**CALL, "_meta": {"progressToken": 1}})

    assert first.profile.principal is ALICE
    assert second.profile.principal is newer


def test_requests_without_a_session_have_the_principal_too():
    rig = Rig()
    rig.session.identify(ALICE)
    first = rig.call(1, "tools/call", modern(CALL))
    bob = Principal("bob")
    rig.session.identify(bob)
    second = rig.call(2, "tools/call", modern(CALL))

    assert [item.profile.principal for item in (first, second)] == [ALICE, bob]


def test_the_handshake_and_the_log_level_do_not_change_the_principal():
    rig = Rig()
    rig.session.identify(ALICE)
    rig.feed(request("hello", "initialize", opening("2025-11-25")))
    rig.feed({"jsonrpc": "2.0", "method": "notifications/initialized"})
    rig.feed(request(1, "logging/setLevel", {"level": "error"}))

    assert rig.call(2, "tools/call", CALL).profile.principal is ALICE
