from concertino.excerpts import shorten, shorten_name, shorten_repr


def test_a_text_within_the_limit_stays_whole() -> None:
    assert shorten("abc", 3) == "abc"


def test_a_longer_text_is_cut_and_marked() -> None:
    assert shorten("abcd", 3) == "abc..."


def test_a_value_is_quoted_before_it_is_cut() -> None:
    assert shorten_repr("abc", 5) == "'abc'"
    assert shorten_repr("abcd", 3) == "'ab..."


def test_a_name_is_cut_after_128_characters() -> None:
    assert shorten_name("a" * 128) == "a" * 128
    assert shorten_name("a" * 129) == "a" * 128 + "..."
