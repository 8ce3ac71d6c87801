"""part_names.py: names that clients see, and the way back."""

from __future__ import annotations

import re
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concertino.composition.part_names import BoundedNames, PrefixNames


def test_a_prefix_name_is_the_parts_name_and_an_underscore() -> None:
    names = PrefixNames(["a", "b_c"])
    assert names.show("b_c", "d_e") == "b_c_d_e"
    assert names.find("b_c_d_e") == ("b_c", "d_e")
    assert names.find("a_") == ("a", "")
    assert names.find("b_d") is None
    assert names.find("a") is None


@pytest.mark.parametrize(
    ("part", "prefix"),
    [
        ("github", "github"),
        ("GitHub", "GitHub"),
        ("my_server", "my-server"),
        ("@scope/my server", "scope-my-server"),
        ("a.b", "a-b"),
        ("Größe", "Gr-e"),
        ("日本", "server"),
        ("x" * 32, "x" * 32),
        ("x" * 33, "x" * 27 + "-" + sha256(b"x" * 33).hexdigest()[:4]),
    ],
)
def test_a_prefix_has_letters_digits_and_dashes(part: str, prefix: str) -> None:
    assert BoundedNames([part]).prefixes == {part: prefix}


def test_a_second_part_with_the_same_prefix_gets_a_number() -> None:
    names = BoundedNames(["a b", "a_b", "A-B", "a-b-2"])
    assert names.prefixes == {"a b": "a-b", "a_b": "a-b-2", "A-B": "A-B-3", "a-b-2": "a-b-2-2"}


def test_a_prefix_with_a_number_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    names = BoundedNames(["a-b", "a_b"])
    names.set_parts(["a-b", "a_b", "c"])
    assert caplog.messages == [
        "a_b: its tools are named a-b-2_..., because those of a-b are named a-b_...; rename one of "
        "the two"
    ]


def test_no_name_of_one_part_can_be_that_of_another() -> None:
    names = BoundedNames(["a", "a_b"])
    assert names.show("a", "b_c") == "a_b_c"
    assert names.show("a_b", "c") == "a-b_c"
    assert names.find("a_b_c") == ("a", "b_c")
    assert names.find("a-b_c") == ("a_b", "c")


def test_a_name_of_64_characters_stays_and_a_longer_one_is_cut_with_a_hash() -> None:
    names = BoundedNames(["a"])
    assert names.show("a", "t" * 62) == "a_" + "t" * 62
    assert names.find("a_" + "t" * 62) == ("a", "t" * 62)
    long = "a_" + "t" * 63
    shown = names.show("a", "t" * 63)
    assert shown == long[:55] + "_" + sha256(long.encode()).hexdigest()[:8]
    assert len(shown) == 64
    assert names.find(shown) == ("a", "t" * 63)


def test_a_shortened_name_of_an_earlier_run_is_known_once_its_part_has_listed_it() -> None:
    shown = BoundedNames(["a"]).show("a", "t" * 80)
    names = BoundedNames(["a"])
    assert not names.can_find(shown)
    names.show("a", "t" * 80)
    assert names.can_find(shown)
    assert names.find(shown) == ("a", "t" * 80)


def test_parts_that_are_gone_have_no_names() -> None:
    names = BoundedNames(["a", "b"])
    shown = names.show("a", "t" * 80)
    names.set_parts(["b"])
    assert names.find(shown) is None
    assert names.find("a_x") is None
    assert names.find("b_x") == ("b", "x")


@pytest.mark.parametrize(
    ("part", "prefix"), [("Git_Hub", "git-hub"), ("1st", "s1st"), ("-", "server")]
)
def test_the_prefix_of_a_uri_is_a_scheme(part: str, prefix: str) -> None:
    assert BoundedNames([part]).uri_prefix(part) == prefix


PARTS = st.lists(
    st.text(st.sampled_from("aB1_-. é"), min_size=1, max_size=40), unique=True, min_size=1
)


@given(PARTS, st.lists(st.text(st.sampled_from("aB_-.1"), max_size=70), min_size=1))
def test_every_name_leads_back_to_its_part_and_hosts_take_it(
    parts: list[str], own_names: list[str]
) -> None:
    names = BoundedNames(parts)
    shown = {(part, own): names.show(part, own) for part in parts for own in own_names}
    assert len(set(shown.values())) == len(shown)
    for home, name in shown.items():
        assert names.find(name) == home
        assert re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name)
