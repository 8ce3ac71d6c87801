"""listener_places.py: who a client is, and how many places there are."""

from __future__ import annotations

import os
import resource

import pytest

from concertino.runtime.listener_places import ListenerPlaces, client_identity, places_per_listener


@pytest.mark.parametrize(
    ("facts", "identity"),
    [
        ({"uid": os.geteuid(), "address": "/run/s"}, ""),
        ({"uid": os.geteuid() + 1, "address": "/run/s"}, f"uid {os.geteuid() + 1}"),
        ({"address": "127.0.0.1:80"}, "127.0.0.1"),
        ({"address": "192.0.2.7:1"}, "192.0.2.7"),
        ({"address": "[::1]:80"}, "::1"),
        ({"address": "[::ffff:192.0.2.7]:80"}, "192.0.2.7"),
        # RFC 3849 addresses; a host owns the lower 64 bits.
        ({"address": "[2001:db8:1:2:3:4:5:6]:80"}, "2001:db8:1:2::/64"),
        ({"address": "[2001:db8:1:2:ffff::1]:80"}, "2001:db8:1:2::/64"),
        ({"address": "[fe80::1%eth0]:80"}, "fe80::/64"),
    ],
)
def test_who_a_client_is(facts: dict[str, object], identity: str) -> None:
    assert client_identity(facts) == identity


@pytest.mark.parametrize(
    ("descriptors", "max_connections", "listeners", "places"),
    [
        (1024, 512, 1, 512),
        (1024, 5000, 1, 5000),
        (1024, 512, 2, 256),
        (1024, 512, 4, 128),
        (1024, 100, 2, 100),
        (1_000_000, 512, 4, 512),
        (8, 512, 8, 1),
        (resource.RLIM_INFINITY, 512, 3, 512),
    ],
)
def test_places_of_several_listeners_leave_half_of_the_descriptors(
    monkeypatch: pytest.MonkeyPatch,
    descriptors: int,
    max_connections: int,
    listeners: int,
    places: int,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (descriptors, descriptors))
    assert places_per_listener(max_connections, listeners) == places


@pytest.mark.parametrize(("limit", "of_one"), [(1, 1), (2, 2), (3, 3), (4, 3), (8, 6), (512, 384)])
def test_a_stranger_gets_three_quarters(limit: int, of_one: int) -> None:
    places = ListenerPlaces(limit)
    for _ in range(of_one):
        assert places.find_refusal("x") == ""
        places.take("x")
    assert places.find_refusal("x")
    assert bool(places.find_refusal("y")) == (of_one == limit)
    places.release("x")
    assert places.find_refusal("x") == ""


@pytest.mark.parametrize(("limit", "crowded_at"), [(1, 1), (2, 2), (3, 2), (4, 3), (512, 257)])
def test_more_than_half_is_crowded(limit: int, crowded_at: int) -> None:
    places = ListenerPlaces(limit)
    for _ in range(crowded_at - 1):
        places.take("x")
    assert not places.is_crowded
    places.take("y")
    assert places.is_crowded
