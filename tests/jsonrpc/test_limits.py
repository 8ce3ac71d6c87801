"""limits.py: the defaults are RELIABILITY's policies and DESIGN's "One request"; the environment
sets each of them.
"""

from __future__ import annotations

import msgspec
import pytest

from concertino.jsonrpc.limits import Limits


def test_the_defaults_are_the_policies_of_the_project():
    limits = Limits()
    assert limits.max_message_bytes == 10_485_760
    assert limits.high_water_bytes == 1_048_576
    assert limits.low_water_bytes == 262_144
    assert limits.max_in_flight == 1_024
    assert limits.max_waiting == 4_096
    assert limits.max_waiting_bytes == 16_777_216
    assert limits.garbage_answers_per_s == 10
    assert limits.drain_s == 2.0


def test_an_empty_environment_changes_nothing():
    assert Limits.from_environment({}) == Limits()


def test_other_variables_are_not_looked_at():
    assert (
        Limits.from_environment({"MAX_BATCH": "1", "CONCERTINO_STATE_KEY": "x", "PATH": "/bin"})
        == Limits()
    )


@pytest.mark.parametrize("name", Limits.__struct_fields__)
def test_every_limit_can_be_set_by_its_name_in_capitals(name: str):
    limits = Limits.from_environment({f"CONCERTINO_{name.upper()}": "7"})
    assert msgspec.structs.asdict(limits) == msgspec.structs.asdict(Limits()) | {name: 7}


def test_seconds_may_have_a_fraction():
    assert Limits.from_environment({"CONCERTINO_DRAIN_S": "0.25"}).drain_s == 0.25


@pytest.mark.parametrize(
    "text", ["", "x", "0", "-1", "1.5", "0x10", " 5", "1_000", "9" * 5000, "nan", "true", "null"]
)
def test_a_count_that_is_no_positive_integer_is_refused_by_name(text: str):
    with pytest.raises(
        ValueError, match=r"^CONCERTINO_MAX_BATCH: expected a positive integer, got "
    ) as refused:
        Limits.from_environment({"CONCERTINO_MAX_BATCH": text})
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize("text", ["", "x", "0", "-0.1", "nan", "inf", "-inf", "Infinity", "1e999"])
def test_a_time_that_is_no_positive_number_is_refused_by_name(text: str):
    with pytest.raises(ValueError, match=r"^CONCERTINO_DRAIN_S: expected a positive number, got "):
        Limits.from_environment({"CONCERTINO_DRAIN_S": text})


def test_limits_do_not_change_under_way():
    with pytest.raises(AttributeError):
        Limits().max_batch = 5  # type: ignore[misc]


def test_limits_made_in_code_are_looked_at_too() -> None:
    with pytest.raises(ValueError, match="max_in_flight: expected a positive number, got 0"):
        Limits(max_in_flight=0)
