"""call_hooks.py: the permits that calls take and give back."""

from __future__ import annotations

from concertino.protocol.call_hooks import Permits


def test_all_permits_are_free_at_first():
    permits = Permits(3)
    assert (permits.capacity, permits.free) == (3, 3)


def test_a_call_takes_a_permit_and_gives_it_back():
    permits = Permits(1)
    permits.free -= 1
    assert (permits.capacity, permits.free) == (1, 0)
    permits.free += 1
    assert permits.free == permits.capacity
