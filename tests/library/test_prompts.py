"""library/prompt_files.py, and prompts as reading.py makes them: placeholders in one pass,
arguments, defaults, refusals.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concertino import RpcError
from concertino.library.file_parsing import parse_prompt
from concertino.library.folder import FoundFile
from concertino.library.prompt_files import MAX_FILLED, PromptFile, fill_prompt, to_list_entry
from concertino.types import TextContent


def of(text: str, path: str = "do-it.md") -> PromptFile:
    made, problems = parse_prompt(FoundFile(path, path, 0, 0), text.encode())
    assert made is not None
    assert problems == []
    return made


def text(of: PromptFile, **given: str) -> str:
    [message] = fill_prompt(of, given).messages
    assert isinstance(message.content, TextContent)
    assert message.role == "user"
    return message.content.text


HEAD = "---\narguments:\n- name: who\n  required: true\n- name: how\n  default: well\n- note\n---\n"


def test_the_three_placeholders_are_filled() -> None:
    assert (
        text(of(HEAD + "{{who}} {{ how }} ${note} [$ARGUMENTS]"), who="A", note="N")
        == "A well N [A well N]"
    )


def test_values_are_never_looked_at_again() -> None:
    value = "{{how}} ${who} $ARGUMENTS $& \\1 \\g<0>"
    assert text(of(HEAD + "<{{who}}|{{how}}>"), who=value) == f"<{value}|well>"


def test_a_placeholder_of_another_name_stays() -> None:
    assert (
        text(of(HEAD + "${HOME} {{other}} $ARGUMENTSX ${who"), who="x")
        == "${HOME} {{other}} $ARGUMENTSX ${who"
    )


def test_without_declared_arguments_there_is_one_for_all() -> None:
    made = of("Fix $ARGUMENTS now {{x}}")
    assert [(item.name, item.required) for item in to_list_entry(made).arguments or []] == [
        ("ARGUMENTS", False)
    ]
    assert text(made, ARGUMENTS="it") == "Fix it now {{x}}"
    assert text(made) == "Fix  now {{x}}"
    assert to_list_entry(of("Fix {{x}}")).arguments is None


def test_what_is_shown_is_what_is_written() -> None:
    made = to_list_entry(
        of(
            "---\nname: n\ntitle: T\ndescription: D\narguments:\n- name: a\n  description: what\n "
            " required: true\n---\n"
        )
    )
    assert (made.name, made.title, made.description) == ("n", "T", "D")
    assert [(item.name, item.description, item.required) for item in made.arguments or []] == [
        ("a", "what", True)
    ]
    assert to_list_entry(of("# Words\n\nSay this.")).description == "Say this."
    assert of("", "sub/folder/stem.md").name == "stem"


def test_a_default_stands_for_a_required_argument() -> None:
    made = of("---\narguments:\n- name: a\n  required: true\n  default: d\n---\n{{a}}")
    assert text(made) == "d"
    assert [item.required for item in to_list_entry(made).arguments or []] == [False]
    assert (
        text(of("---\narguments:\n- name: a\n  required: true\n  default:\n---\n[{{a}}]")) == "[]"
    )


@pytest.mark.parametrize(
    ("given", "details"),
    [
        ({}, "Missing required field: who"),
        ({"how": "x"}, "Missing required field: who"),
        (
            {"who": "x", "woh": "y"},
            "arguments: there is no 'woh' of prompt 'do-it'; it takes who, how, note",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_refused(given: dict[str, str], details: str) -> None:
    with pytest.raises(RpcError) as error:
        fill_prompt(of(HEAD + "{{who}}"), given)
    assert (error.value.code, error.value.data) == (-32602, {"details": details})


def test_a_long_value_in_many_places_is_refused_before_it_is_made() -> None:
    made = of(HEAD + "{{who}}" * 10_000)
    with pytest.raises(RpcError, match="Invalid params"):
        fill_prompt(made, {"who": "x" * 2**20})
    assert len(text(made, who="x" * (MAX_FILLED // 20_000))) == 10_000 * (MAX_FILLED // 20_000)


@pytest.mark.parametrize(
    ("head", "names", "problems"),
    [
        ("arguments: who", [], 1),
        ("arguments:\n- name: [a]\n- name: b", ["b"], 1),
        ("arguments:\n- name: a\n- name: a", ["a"], 1),
        ("arguments:\n- name: 'a b'", [], 1),
        ("arguments:\n- name: a\n  required: perhaps", ["a"], 1),
        ("arguments:\n- a: b\n-", [], 2),
        ("name: [a]", [], 1),
    ],
)
def test_what_is_wrong_with_a_prompt_leaves_the_rest(
    head: str, names: list[str], problems: int
) -> None:
    made, said = parse_prompt(FoundFile("p.md", "p.md", 0, 0), f"---\n{head}\n---\ntext".encode())
    assert made is not None
    assert [item.name for item in made.arguments] == names
    assert len(said) == problems


WORDS = st.text("ab }$\n", max_size=30)  # without what begins a placeholder


@given(WORDS, st.text("{}$ whoARGUMENTS", max_size=20), WORDS)
def test_what_is_between_placeholders_stays_as_it_is(before: str, value: str, after: str) -> None:
    made = of(HEAD + f"x{before}|{{{{who}}}}|{after}x")
    assert text(made, who=value) == f"x{before}|{value}|{after}x"
