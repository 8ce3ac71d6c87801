"""tool_families.py: which server's tools a task is for."""

from __future__ import annotations

from concertino.transforms.tool_families import LEAST_SIZE, ToolFamilies

# Four tools of each of two servers, a verb that is no server, and a family that is too small.
NAMES = [
    *(f"maps_{name}" for name in ("route", "place", "height", "distance")),
    *(f"shop_{name}" for name in ("order", "cart", "price", "customer")),
    *(f"get_{name}" for name in ("a", "b", "c", "d")),
    "tiny_one",
]
POSTINGS = {"place": {1: 1.0, 2: 1.0}, "price": {6: 2.0}, "get": {8: 1.0}, "tini": {12: 1.0}}


def test_the_tools_of_the_server_that_has_the_words_are_rated_highest() -> None:
    families = ToolFamilies(NAMES, POSTINGS)
    rates = families.rate([{"place": 1.0}, {"place": 1.0}, {"price": 0.2}])
    assert len(set(rates[:4])) == len(set(rates[4:8])) == 1
    assert rates[0] > rates[4] > 0
    # A verb names no server, and one tool is no family.
    assert rates[8:] == [0.0] * 5
    assert max(rates) <= 1.0


def test_weak_hints_stay_weak_and_no_words_say_nothing() -> None:
    families = ToolFamilies(NAMES, POSTINGS)
    assert families.rate([{"place": 0.1}])[0] < 0.1
    assert families.rate([]) == [0.0] * len(NAMES)
    assert families.rate([{"unknown": 1.0}]) == [0.0] * len(NAMES)


def test_of_several_words_for_one_thing_the_best_counts() -> None:
    families = ToolFamilies(NAMES, POSTINGS)
    assert families.rate([{"place": 0.5, "price": 0.5}])[0] == families.rate([{"place": 0.5}])[0]


def test_a_part_of_a_server_is_a_family_of_its_own() -> None:
    names = [f"jira_sprint_{n}" for n in range(LEAST_SIZE)] + [f"jira_{n}" for n in range(4)]
    rates = ToolFamilies(names, {"iteration": {0: 1.0}}).rate([{"iteration": 1.0}] * 9)
    assert rates[0] == rates[3] > 0
    assert rates[4] <= rates[3]


def test_there_may_be_no_tools() -> None:
    assert ToolFamilies([], {}).rate([{"a": 1.0}]) == []


def test_a_server_is_found_by_its_name_or_the_beginning_of_it() -> None:
    names = [f"argocd_{n}" for n in range(4)] + [f"two-words_{n}" for n in range(4)]
    postings = {"argocd": dict.fromkeys(range(4), 1.0), "two": dict.fromkeys(range(4, 8), 1.0)}
    families = ToolFamilies(names, postings)
    assert families.tools_of_named_servers("what does Argo do") == {0, 1, 2, 3}
    assert families.tools_of_named_servers("ask Two Words") == {4, 5, 6, 7}
    assert families.tools_of_named_servers("argue with two people") == set()


def test_a_word_that_other_servers_use_names_no_server() -> None:
    names = [f"word_{n}" for n in range(4)] + [f"shop_{n}" for n in range(4)]
    families = ToolFamilies(names, {"word": dict.fromkeys(range(8), 1.0)})
    assert families.tools_of_named_servers("the word TODO") == set()
