"""protocol/wanted_updates.py: who hears of what, and of nothing else.

Rules: 2026-07-28 basic/patterns/subscriptions (REQUIREMENTS A.7, SU-1 to SU-12); 2025-11-25
server/resources "Subscriptions".
"""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from concertino.errors import RpcError
from concertino.jsonrpc.batches import Batch
from concertino.jsonrpc.incoming_requests import IncomingRequest
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.peer import Peer
from concertino.protocol.call import ServerFeatures
from concertino.protocol.wanted_updates import WantedUpdates
from concertino.types.results import Implementation

ALL = ServerFeatures(
    Implementation("n", "1"), tools=True, prompts=True, resources=True, subscriptions=True
)
ID = "io.modelcontextprotocol/subscriptionId"
URI = "notes://a"
EVERYTHING: dict[str, Any] = {
    "toolsListChanged": True,
    "promptsListChanged": True,
    "resourcesListChanged": True,
    "resourceSubscriptions": [URI],
}


def encode_closing(meta: Any) -> bytes:
    """The result that ends a subscription, as a session's encoder writes it."""
    return json.dumps({"resultType": "complete", "_meta": meta}).encode()


class Rig:
    def __init__(self, **limits: Any) -> None:
        self.lines: list[Any] = []
        self.watches = 0
        given = Limits(**limits)
        self.held = 0
        self.peer = Peer(self._send, given, lambda: 0.0)
        self.subscriptions = WantedUpdates(self.peer, given, self._watch)

    def _send(self, frame: bytes, about: object) -> int:
        line = json.loads(frame)
        meta = line.get("params", {}).get("_meta", {})
        assert meta.get(ID) in (about, None)  # HTTP routes by it
        self.lines.append(line)
        return self.held

    def _watch(self) -> None:
        self.watches += 1

    def take_sent(self) -> list[Any]:
        lines, self.lines = self.lines, []
        return lines

    def listen(self, id: int | str, wanted: Any, offer: ServerFeatures = ALL) -> Any:
        """Returns the acknowledgement."""
        params = {"notifications": Raw(json.dumps(wanted).encode())}
        incoming = IncomingRequest(id, "subscriptions/listen", params, 100)
        self.subscriptions.listen(incoming, offer, encode_closing)
        [told] = self.take_sent()
        return told

    def get_refusal(
        self, params: dict[str, Raw], id: int = 9, batch: Batch | None = None
    ) -> RpcError:
        with pytest.raises(RpcError) as error:
            self.subscriptions.listen(
                IncomingRequest(id, "subscriptions/listen", params, 1, batch=batch),
                ALL,
                encode_closing,
            )
        assert self.take_sent() == []
        return error.value

    def take_notifications(self) -> list[tuple[Any, str]]:
        return [
            (each["params"].get("_meta", {}).get(ID), each["method"]) for each in self.take_sent()
        ]


@pytest.mark.requirement("SU-2")
def test_the_acknowledgement_comes_first_and_has_the_id_of_the_subscription() -> None:
    for id in (7, "7"):
        told = Rig().listen(id, EVERYTHING)
        assert told == {
            "jsonrpc": "2.0",
            "method": "notifications/subscriptions/acknowledged",
            "params": {"_meta": {ID: id}, "notifications": EVERYTHING},
        }
        assert type(told["params"]["_meta"][ID]) is type(id)


@pytest.mark.requirement("SU-1")
@pytest.mark.parametrize(
    ("offer", "wanted", "honoured"),
    [
        (ServerFeatures(Implementation("n", "1")), EVERYTHING, {}),
        (
            ServerFeatures(Implementation("n", "1"), tools=True),
            EVERYTHING,
            {"toolsListChanged": True},
        ),
        (
            ServerFeatures(Implementation("n", "1"), resources=True),
            EVERYTHING,
            {"resourcesListChanged": True},
        ),
        (ALL, {"toolsListChanged": False, "unheardOf": True}, {}),
        (ALL, {}, {}),
        (ALL, {"resourceSubscriptions": []}, {"resourceSubscriptions": []}),
    ],
)
def test_only_what_there_is_and_was_asked_for_is_honoured(
    offer: ServerFeatures, wanted: Any, honoured: Any
) -> None:
    assert Rig().listen(1, wanted, offer)["params"]["notifications"] == honoured


@pytest.mark.requirement("SU-1")
def test_what_was_not_honoured_is_not_told() -> None:
    rig = Rig()
    rig.listen(1, EVERYTHING, ServerFeatures(Implementation("n", "1"), tools=True))
    for what in ("prompts", "resources", "tools", "features"):
        rig.subscriptions.report_change(what)
    rig.subscriptions.report_update(URI)
    assert rig.take_notifications() == [(1, "notifications/tools/list_changed")]
    assert rig.subscriptions.subscribed_uris == frozenset()


@pytest.mark.requirement("SU-3", "SU-11")
def test_several_at_once_each_hear_what_they_asked_for() -> None:
    rig = Rig()
    rig.listen(1, {"toolsListChanged": True})
    rig.listen("1", {"resourceSubscriptions": [URI]})
    rig.listen(2, {"toolsListChanged": True, "resourceSubscriptions": [URI, "notes://b"]})
    rig.subscriptions.subscribe(URI)
    assert rig.subscriptions.open_count == 3
    rig.subscriptions.report_change("tools")
    assert rig.take_notifications() == [
        (1, "notifications/tools/list_changed"),
        (2, "notifications/tools/list_changed"),
    ]
    rig.subscriptions.report_update(URI)
    told = rig.take_sent()
    assert [each["params"].get("_meta", {}).get(ID) for each in told] == [None, "1", 2]
    assert {each["params"]["uri"] for each in told} == {URI}
    assert rig.subscriptions.subscribed_uris == {URI, "notes://b"}
    rig.subscriptions.unsubscribe(URI)
    rig.peer.cancel(2, "")
    assert rig.subscriptions.subscribed_uris == {URI}


def test_nothing_follows_a_cancel_not_even_what_waits_for_a_slow_reader() -> None:
    rig = Rig(high_water_bytes=10)
    rig.listen(1, EVERYTHING)
    rig.listen(2, EVERYTHING)
    rig.peer.buffered_bytes = 10
    for _ in range(3):
        rig.subscriptions.report_update(URI)
    assert rig.take_sent() == []
    rig.peer.cancel(1, "enough")
    rig.peer.on_drain(0)
    assert rig.take_notifications() == [(2, "notifications/resources/updated")]
    rig.subscriptions.report_update(URI)
    assert rig.take_notifications() == [(2, "notifications/resources/updated")]


@pytest.mark.requirement("SU-8", "SU-9", "CA-2")
def test_the_end_is_the_result_and_then_the_notice() -> None:
    """REQUIREMENTS SU-8, SU-9."""
    rig = Rig()
    rig.listen("a", EVERYTHING)
    rig.subscriptions.close_all()
    result, notice = rig.take_sent()
    assert (result["id"], result["result"]) == ("a", {"resultType": "complete", "_meta": {ID: "a"}})
    assert notice["method"] == "notifications/cancelled"
    assert notice["params"]["requestId"] == "a"
    rig.subscriptions.report_update(URI)
    rig.subscriptions.close_all()
    assert rig.take_sent() == []
    assert rig.peer.running == {}


@pytest.mark.requirement("SU-12")
def test_an_open_one_takes_no_room_of_the_calls_and_its_id_is_in_use() -> None:
    rig = Rig(max_in_flight_bytes=1)
    rig.listen(1, EVERYTHING)
    assert rig.peer.admit(IncomingRequest(2, "tools/call", {}, 5))
    assert 1 in rig.peer.running


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({}, "missing required field"),
        ({"notifications": Raw(b"5")}, "notifications"),
        ({"notifications": Raw(b'{"toolsListChanged":1}')}, "toolsListChanged"),
        ({"notifications": Raw(b'{"resourceSubscriptions":[""]}')}, "1 to 8192"),
        ({"notifications": Raw(b'{"resourceSubscriptions":["%b"]}' % (b"x" * 8193))}, "1 to 8192"),
    ],
)
def test_what_is_malformed_is_refused(params: dict[str, Raw], said: str) -> None:
    error = Rig().get_refusal(params)
    assert error.code == -32602
    assert said in error.message


def test_one_in_a_batch_is_refused_since_the_batch_would_never_be_answered() -> None:
    assert Rig().get_refusal({"notifications": Raw(b"{}")}, batch=Batch()).code == -32600


def test_there_are_at_most_so_many_and_of_so_many_resources() -> None:
    rig = Rig(max_listening=2, max_subscriptions=3)
    rig.listen(1, {"resourceSubscriptions": ["a", "b"]})
    assert (
        rig.get_refusal({"notifications": Raw(b'{"resourceSubscriptions":["c","d"]}')}).code
        == -31001
    )
    rig.listen(2, {"resourceSubscriptions": ["c"]})
    error = rig.get_refusal({"notifications": Raw(b"{}")})
    assert (error.code, error.data) == (-31001, {"maxListening": 2})
    rig.peer.cancel(1, "")
    rig.listen(3, {})
    for uri in ("a", "b", "c", "c"):
        rig.subscriptions.subscribe(uri)
    with pytest.raises(RpcError, match="busy: 3 resources"):
        rig.subscriptions.subscribe("d")
    with pytest.raises(RpcError, match="uri: expected 1 to 8192"):
        rig.subscriptions.unsubscribe("")


def test_the_backend_is_told_whenever_somebody_watches_something_else() -> None:
    rig = Rig()
    rig.listen(1, EVERYTHING)
    rig.subscriptions.subscribe(URI)
    rig.subscriptions.unsubscribe(URI)
    rig.peer.cancel(1, "")
    assert rig.watches == 4


@pytest.mark.requirement("SU-1")
@given(st.lists(st.sampled_from(["listen", "cancel", "tools", "update"]), max_size=30), st.data())
def test_beside_a_model(acts: list[str], data: st.DataObject) -> None:
    """Whoever is open, and asked, hears; nobody else."""
    rig = Rig()
    model: dict[int, tuple[bool, bool]] = {}
    next_id = 0
    for act in acts:
        if act == "listen":
            tools, uri = data.draw(st.tuples(st.booleans(), st.booleans()))
            wanted: dict[str, Any] = {"toolsListChanged": tools}
            rig.listen(next_id, wanted | ({"resourceSubscriptions": [URI]} if uri else {}))
            model[next_id] = tools, uri
            next_id += 1
        elif act == "cancel" and next_id:
            id = data.draw(st.integers(0, next_id - 1))
            rig.peer.cancel(id, "")
            model.pop(id, None)
        elif act == "tools":
            rig.subscriptions.report_change("tools")
            assert [id for id, _ in rig.take_notifications()] == [
                id for id, (tools, _) in model.items() if tools
            ]
        elif act == "update":
            rig.subscriptions.report_update(URI)
            assert [id for id, _ in rig.take_notifications()] == [
                id for id, (_, uri) in model.items() if uri
            ]
    assert rig.subscriptions.subscribed_uris == (
        {URI} if any(uri for _, uri in model.values()) else set()
    )
    assert cast("Any", rig.peer).running.keys() == model.keys()
