"""jsonrpc/token_bucket.py: a token bucket; the numbers by hand."""

from concertino.jsonrpc.token_bucket import TokenBucket


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_as_many_at_once_as_in_a_second_and_then_as_time_goes_on() -> None:
    clock = Clock()
    pace = TokenBucket(4, clock)
    assert [pace.take() for _ in range(5)] == [True] * 4 + [False]
    clock.now += 0.2
    assert not pace.take()  # 0.8 of one
    clock.now += 0.05
    assert [pace.take(), pace.take()] == [True, False]
    clock.now += 3600
    assert [pace.take() for _ in range(5)] == [True] * 4 + [False]  # no more is saved up
