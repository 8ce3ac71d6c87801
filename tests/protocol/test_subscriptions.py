"""subscriptions.py: what a client has subscribed to, and calls that are held open."""

from __future__ import annotations

import pytest
import wire
from catalogue import INFO
from msgspec.structs import replace
from session_rig import (
    EVERYTHING,
    B,
    D,
    Rig,
    modern,
    opening,
    request,
)

from concertino.errors import RpcError
from concertino.jsonrpc.limits import Limits
from concertino.protocol.session import Session


@pytest.mark.parametrize("version", wire.LEGACY)
def test_who_subscribed_hears_of_updates_until_it_unsubscribes(version: str):
    rig = Rig().opened(version)
    assert rig.ask(1, "resources/subscribe", {"uri": "a:b"})["result"] == {}
    assert rig.ask(2, "resources/subscribe", {"uri": "a:b"})["result"] == {}
    for uri in ("a:b", "a:c"):
        rig.session.subscriptions.report_update(uri)
    assert rig.take_sent() == [
        {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": "a:b"}}
    ]
    assert rig.ask(3, "resources/unsubscribe", {"uri": "a:b"})["result"] == {}
    assert rig.ask(4, "resources/unsubscribe", {"uri": "a:b"})["result"] == {}
    rig.session.subscriptions.report_update("a:b")
    assert rig.take_sent() == []
    assert rig.started == []


def test_what_is_watched_is_told_whenever_it_may_have_changed():
    told: list[frozenset[str]] = []
    rig = Rig()
    rig.session = Session(
        lambda: EVERYTHING,
        rig._send,
        rig.started.append,
        Limits(),
        lambda: 0.0,
        on_subscriptions_changed=lambda: told.append(rig.session.subscriptions.uris),
    )
    assert rig.session.subscriptions.uris == frozenset()
    rig.opened()
    rig.ask(1, "resources/subscribe", {"uri": "a:b"})
    rig.ask(2, "resources/subscribe", {"uri": "a:c"})
    rig.ask(3, "resources/unsubscribe", {"uri": "a:b"})
    assert told == [{"a:b"}, {"a:b", "a:c"}, {"a:c"}]


def test_a_client_that_forgets_initialized_hears_of_changes_once_it_has_subscribed():
    rig = Rig()
    rig.ask(0, "initialize", opening(D))
    rig.ask(1, "resources/subscribe", {"uri": "a:b"})
    rig.session.subscriptions.report_update("a:b")
    rig.session.report_change("tools")
    assert [line["method"] for line in rig.take_sent()] == [
        "notifications/resources/updated",
        "notifications/tools/list_changed",
    ]
    assert rig.session.lifecycle.state == "ready"


def test_nobody_hears_of_an_update_before_the_handshake_is_complete():
    rig = Rig()
    rig.ask(0, "initialize", opening(D))
    rig.session.subscriptions.report_update("a:b")
    rig.session.subscriptions.report_change("tools")
    assert rig.take_sent() == []


@pytest.mark.requirement("SU-12")
def test_subscriptions_are_counted_apart_and_ended_in_order():
    rig = Rig()
    assert rig.session.subscriptions.open_count == 0
    rig.session.subscriptions.end_all()
    rig.feed(
        request(
            7, "subscriptions/listen", modern({"notifications": {"resourceSubscriptions": ["a:b"]}})
        )
    )
    assert (rig.session.subscriptions.open_count, rig.session.subscriptions.uris) == (1, {"a:b"})
    rig.session.subscriptions.report_update("a:b")
    [told] = rig.take_sent()
    assert told["params"]["uri"] == "a:b"
    rig.session.subscriptions.end_all()
    result, notice = rig.take_sent()
    assert result["result"]["resultType"] == "complete"
    assert result["result"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == 7
    assert result["result"]["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == INFO.name
    assert notice["method"] == "notifications/cancelled"
    assert rig.session.subscriptions.open_count == 0


@pytest.mark.requirement("SU-11")
def test_a_list_that_changes_is_told_to_those_who_listen():
    rig = Rig()
    rig.feed(
        request(7, "subscriptions/listen", modern({"notifications": {"toolsListChanged": True}}))
    )
    rig.session.report_change("tools")
    rig.session.report_change("prompts")
    assert [line["method"] for line in rig.take_sent()] == ["notifications/tools/list_changed"]


@pytest.mark.parametrize("is_running", [False, True])
def test_a_call_that_is_held_open_ends_with_the_server_like_a_subscription(
    is_running: bool,
) -> None:
    rig = Rig(replace(EVERYTHING, other_methods=True))
    rig.onlooker = None
    session = rig.session
    ends: list[str] = []
    for id in (1, 2):
        rig.feed(request(id, "example.com/watch", modern()))
        incoming = rig.started.pop()
        incoming.on_cancel = ends.append
        if is_running:
            session.peer.add_running(incoming)
        session.subscriptions.hold_open(incoming)
        # Nothing of the request is kept or counted.
        assert (incoming.params, session.peer.running.size) == ({}, 0)
    # No memory is reserved for their results, and they do not count as calls.
    assert (session.subscriptions.open_count, len(session.peer.running)) == (2, 2)
    assert not session.peer.unread.budget.unknown.total()
    assert not session.peer.unread.budget.expected

    # One whose handler has not waited for anything yet.
    session.subscriptions.hold_open(rig.call(3, "example.com/watch", modern()))
    session.peer.cancel(1, "enough")
    assert (session.subscriptions.open_count, ends) == (2, ["enough"])
    session.subscriptions.end_all()
    answers = [(answer["id"], answer["result"]["resultType"]) for answer in rig.take_sent()]
    assert answers == [(2, "complete"), (3, "complete")]
    assert ends == ["enough", "the server ends the subscription"]
    assert (session.subscriptions.open_count, len(session.peer.running)) == (0, 0)


def test_a_call_that_was_cancelled_is_not_held_open() -> None:
    rig = Rig(replace(EVERYTHING, other_methods=True))
    incoming = rig.call(1, "example.com/watch", modern())
    rig.session.peer.add_running(incoming)
    rig.session.peer.cancel(1, "enough")
    rig.session.subscriptions.hold_open(incoming)
    assert (rig.session.subscriptions.open_count, len(rig.session.peer.running)) == (0, 0)


def test_a_call_in_a_batch_cannot_be_held_open() -> None:
    rig = Rig(replace(EVERYTHING, other_methods=True)).opened(B)
    rig.onlooker = None
    assert rig.feed([request(1, "example.com/watch", {})]) == []
    incoming = rig.started.pop()
    with pytest.raises(RpcError, match="watch in a batch"):
        rig.session.subscriptions.hold_open(incoming)
