"""tool_actions.py: what a task does, and what a tool does."""

from __future__ import annotations

import pytest

from concertino.transforms.tool_actions import actions_of, rate_actions
from concertino.transforms.tool_words import terms_of


@pytest.mark.parametrize(
    ("name", "actions"),
    [
        ("github_get_issue", {"read"}),
        ("shop_delete_product", {"delete"}),
        # The first verb decides, since later ones are often things: a comment, a log.
        ("get_comments", {"read"}),
        ("cancel_build", {"delete", "stop"}),
        ("freebusy", set[str]()),
    ],
)
def test_the_first_verb_of_a_name_says_what_a_tool_does(name: str, actions: set[str]) -> None:
    assert actions_of(terms_of(name)) == actions


def test_the_words_of_a_task_say_what_it_does() -> None:
    rates = rate_actions(
        [{"delet": 1.0, "remov": 0.5}, {"renam": 0.5}, {"pric": 1.0}], read_rating=0.0
    )
    assert rates == {"delete": 1.0, "move": 0.5, "change": 0.5}


def test_a_question_asks_to_read() -> None:
    assert rate_actions([{"pric": 1.0}], read_rating=1.0) == {"read": 1.0}


def test_a_task_without_verbs_has_no_action() -> None:
    assert rate_actions([{"pric": 1.0}], read_rating=0.0) == {}
