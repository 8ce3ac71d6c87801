"""worker_places.py: which requests a worker refuses because of those that it has."""

from __future__ import annotations

from concertino.orchestra.worker_places import MAX_BYTES_IN_FLIGHT, MAX_IN_FLIGHT, WorkerPlaces

MIB = 2**20


def fill(places: WorkerPlaces, caller: str, size: int = 0) -> int:
    """Take places for a caller until it is refused. Returns how many."""
    count = 0
    while not places.find_refusal(caller, size):
        places.take(caller, size)
        count += 1
    return count


def test_one_caller_gets_three_quarters_and_there_is_always_a_place_for_another() -> None:
    assert MAX_IN_FLIGHT == 1024
    places = WorkerPlaces()
    counts = [fill(places, f"caller {number}") for number in range(4)]
    assert counts == [768, 192, 48, 12]
    assert places.find_refusal("caller 0", 0) == "no place for more requests of this caller"
    # There are 4 places left, for callers that have none.
    assert [fill(places, f"one more {number}") > 0 for number in range(5)] == [True] * 2 + [
        False
    ] * 3
    assert places.find_refusal("the last", 0) == "busy"


def test_callers_that_call_at_the_same_time_get_equal_shares() -> None:
    places = WorkerPlaces()
    counts = {"a": 0, "b": 0}
    while open_ := [name for name in counts if not places.find_refusal(name, 0)]:
        for name in open_:
            places.take(name, 0)
            counts[name] += 1
    # 1024 * 3 / 7 each.
    assert counts == {"a": 439, "b": 439}


def test_a_place_is_free_again_when_its_request_has_ended() -> None:
    places = WorkerPlaces()
    count = fill(places, "a")
    for _ in range(count):
        places.release("a", 0)
    assert fill(places, "a") == count
    assert not places.find_refusal("b", 0)


def test_bytes_are_shared_in_the_same_way() -> None:
    assert MAX_BYTES_IN_FLIGHT == 256 * MIB
    places = WorkerPlaces()
    assert fill(places, "a", 16 * MIB) == 12
    assert places.find_refusal("a", 16 * MIB) == "no place for more requests of this caller"
    assert not places.find_refusal("a", 0)
    assert fill(places, "b", 16 * MIB) == 3
    # The first request of a caller only needs room.
    assert places.find_refusal("c", 16 * MIB) == ""
    assert places.find_refusal("c", 17 * MIB) == "busy"
