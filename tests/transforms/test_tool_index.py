"""tool_index.py and tool_words.py: which tools fit a task."""

from __future__ import annotations

import pytest

from concertino.transforms.tool_index import ToolIndex, ToolText
from concertino.transforms.tool_words import related_terms, stem_of, terms_of, words_of_query

TOOLS = [
    ToolText("github_create_issue", summary="Create a new issue in a repository"),
    ToolText("github_delete_file", summary="Delete a file"),
    ToolText("jira_get_issue", summary="Get details of an issue"),
    ToolText("jira_list_projects", summary="List all projects"),
    ToolText("calendar_freebusy", summary="Query when people have time", arguments="attendees"),
]


def best(query: str) -> str:
    found = ToolIndex(TOOLS).search(query, 1)
    return TOOLS[found[0]].name if found else ""


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("create issue", "github_create_issue"),
        # Verbs and things of the same meaning.
        ("open a ticket", "github_create_issue"),
        ("erase the document", "github_delete_file"),
        ("get rid of notes.txt", "github_delete_file"),
        # A question changes nothing.
        ("what is the issue about", "jira_get_issue"),
        ("issues on GitHub", "github_create_issue"),
        # A word that no tool has, but one that is spelled alike.
        ("calendars freebussy", "calendar_freebusy"),
        ("attendees", "calendar_freebusy"),
        ("xylophone", ""),
        ("", ""),
        ("the of and", ""),
    ],
)
def test_the_tool_that_fits_is_first(query: str, name: str) -> None:
    assert best(query) == name


def test_no_more_tools_are_found_than_wanted() -> None:
    assert len(ToolIndex(TOOLS).search("issue", 1)) == 1


def test_an_index_of_nothing_finds_nothing() -> None:
    assert ToolIndex([]).search("issue", 5) == []


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("createPullRequest", ["creat", "pull", "request"]),
        ("jira_get_all_issues", ["jira", "get", "all", "issu"]),
        ("list of the files", ["list", "fil"]),
        ("GitHub", ["github"]),
        ("k8s", ["kubernet"]),
    ],
)
def test_a_text_becomes_terms(text: str, terms: list[str]) -> None:
    assert terms_of(text) == terms


@pytest.mark.parametrize(
    "words",
    [
        ("create", "creates", "created", "creating", "creation"),
        ("copy", "copies", "copied", "copying"),
        ("run", "runs", "running"),
        ("search", "searches", "searching"),
        ("delete", "deletes", "deleted", "deletion"),
        ("write", "writes", "writing", "wrote", "written"),
    ],
)
def test_the_forms_of_a_word_have_one_stem(words: tuple[str, ...]) -> None:
    assert len({stem_of(word) for word in words}) == 1


@pytest.mark.parametrize("pair", [("note", "notion"), ("status", "state"), ("post", "position")])
def test_other_words_have_other_stems(pair: tuple[str, str]) -> None:
    assert stem_of(pair[0]) != stem_of(pair[1])


def test_related_terms_count_less_than_the_word_itself() -> None:
    related = related_terms(stem_of("add"))
    assert related[stem_of("add")] == 1.0
    assert 0 < related[stem_of("create")] < 1
    assert stem_of("delete") not in related


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("what is in logo.png", ["image", "file"]),
        ("who follows ABC-1", ["follows", "issue"]),
        ("open https://example.com/a?b", ["open", "url"]),
        ("how many rows", ["many", "rows"]),
        # Only the beginning of a query counts.
        ("x" * 1000 + " rows", ["x" * 1000]),
        ("please show me the A1:B2", ["cell", "range"]),
    ],
)
def test_data_becomes_words_that_tools_use(query: str, words: list[str]) -> None:
    assert [word for word in words_of_query(query) if word != "show"] == words


@pytest.mark.parametrize("piece", ["a-", "1.", "x@", "./", "Z1:"])
def test_a_long_query_takes_no_longer_than_its_beginning(piece: str) -> None:
    # The patterns for data take time that grows with the square of the length: a megabyte of these
    # would take hours.
    assert ToolIndex(TOOLS).search("list projects " + piece * 500_000, 1) == [3]


def test_phrases_and_the_server_that_a_task_is_for_decide() -> None:
    tools = [
        *(ToolText(f"shop_{name}", summary=f"{name} in the shop") for name in "abcd"),
        *(ToolText(f"mail_{name}", summary=f"{name} of a letter") for name in "efgh"),
        ToolText("shop_delete", summary="Delete it"),
        ToolText("mail_delete", summary="Delete it"),
        ToolText("mail_create", summary="Create it"),
    ]
    found = ToolIndex(tools).search("throw it away in the mail", 1)
    assert [tools[number].name for number in found] == ["mail_delete"]


SHOP_AND_MAIL = [
    *(ToolText(f"shop_{name}") for name in ("add_price", "list_prices", "get_price", "drop_price")),
    *(ToolText(f"mail_{name}") for name in ("add_rule", "list_rules", "get_rule", "drop_rule")),
]


def test_tools_of_a_server_that_a_task_names_come_first() -> None:
    found = ToolIndex(SHOP_AND_MAIL).search("some price, by mail", 4)
    assert all(SHOP_AND_MAIL[number].name.startswith("mail_") for number in found)


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("a new price", "shop_add_price"),
        ("look at the price", "shop_get_price"),
        ("remove the price", "shop_drop_price"),
    ],
)
def test_a_tool_that_does_what_the_task_does_comes_first(query: str, name: str) -> None:
    assert SHOP_AND_MAIL[ToolIndex(SHOP_AND_MAIL).search(query, 1)[0]].name == name
