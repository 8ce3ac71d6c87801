"""runtime/thread_trials.py: how many calls of a tool begin while its results are not known."""

from __future__ import annotations

import pytest

from concertino.runtime.thread_trials import SLOW_S, WAIT_S, ThreadTrials

KIND = ("tools/call", b'"a"')


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def on_trial(clock: Clock, running: int = 0) -> ThreadTrials:
    trials = ThreadTrials(32, clock)
    trials.begin(KIND, running)
    return trials


def start_all(trials: ThreadTrials) -> int:
    started = 0
    while started < 100 and trials.try_start(KIND):
        started += 1
    return started


def test_eight_calls_run_at_once_with_those_that_have_begun_before() -> None:
    assert start_all(on_trial(Clock())) == 8
    assert start_all(on_trial(Clock(), running=5)) == 3


def test_calls_that_began_during_a_trial_without_being_counted_are_counted_later() -> None:
    trials = on_trial(Clock(), running=2)
    trials.begin(KIND, 5)
    assert start_all(trials) == 1


def test_after_as_many_small_results_as_threads_each_one_lets_one_more_call_run() -> None:
    trials = on_trial(Clock())
    start_all(trials)
    for _ in range(32 + 8):
        trials.end(KIND, False)
        assert start_all(trials) == 1
    trials.end(KIND, False)
    assert start_all(trials) == 2


@pytest.mark.parametrize("is_large", [True, False])
def test_a_trial_ends_with_a_large_result_or_with_two_small_ones_for_each_thread(
    is_large: bool,
) -> None:
    trials = on_trial(Clock())
    for _ in range(1 if is_large else 64):
        assert not trials.is_known(KIND)
        assert trials.try_start(KIND)
        trials.end(KIND, is_large)
    assert trials.is_known(KIND)
    assert not trials.is_on_trial(KIND)
    # A call that was counted before ends later.
    trials.end(KIND, False)


def test_a_cancelled_call_makes_room_and_is_no_result() -> None:
    trials = on_trial(Clock())
    start_all(trials)
    for _ in range(40):
        trials.end(KIND, None)
        assert start_all(trials) == 1


def test_calls_that_wait_for_others_get_twice_as_many_after_a_moment() -> None:
    clock = Clock()
    trials = on_trial(clock)
    start_all(trials)
    clock.now = WAIT_S / 2
    trials.grow(lambda kind: True)
    assert start_all(trials) == 0
    clock.now = WAIT_S
    trials.grow(lambda kind: False)
    assert start_all(trials) == 0
    trials.grow(lambda kind: kind == KIND)
    # Not again at once.
    trials.grow(lambda kind: True)
    assert start_all(trials) == 8


def test_slow_calls_get_twice_as_many_after_a_long_time_without_a_result() -> None:
    clock = Clock()
    trials = on_trial(clock)
    start_all(trials)
    clock.now = SLOW_S - 1
    trials.end(KIND, False)
    start_all(trials)
    clock.now = 2 * SLOW_S - 2
    trials.grow(lambda kind: False)
    assert start_all(trials) == 0
    clock.now = 2 * SLOW_S - 1
    trials.grow(lambda kind: False)
    assert start_all(trials) == 8


def test_the_number_of_remembered_kinds_is_limited() -> None:
    trials = ThreadTrials(32, Clock())
    trials.begin(KIND, 1)
    for number in range(10_000):
        kind = ("tools/call", b"%d" % number)
        trials.begin(kind, 0)
        if number % 2:
            trials.try_start(kind)
            trials.end(kind, True)
    assert trials.is_on_trial(KIND)
    assert len(trials._trials) <= 4096
    assert len(trials._known) <= 4096
