"""cli/call_arguments.py: words of the command line become JSON values, by the schema of a tool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.json import encode

from concertino.cli import UsageError
from concertino.cli.call_arguments import (
    GivenArguments,
    Parameters,
    check_names,
    convert_texts,
    describe_schema,
    parse_arguments,
)


def convert_argument(schema: Any, text: str, definitions: dict[str, Any] | None = None) -> Any:
    """Return what `x=TEXT` becomes for an argument with this schema."""
    root = {"type": "object", "properties": {"x": schema}, "$defs": definitions or {}}
    return convert_texts("t", {"x": text}, root)["x"]


# Words


def test_words_are_texts_json_and_files(tmp_path: Path) -> None:
    (tmp_path / "all.json").write_text('{"a": 1, "b": 2}')
    (tmp_path / "word").write_text("7")
    words = [f"@{tmp_path}/all.json", "b:=3", "c=", "d:e=x", f"f=@{tmp_path}/word"]
    given = parse_arguments(words)
    assert given.values == {"a": 1, "b": 3}
    assert given.texts == {"c": "", "d:e": "x", "f": "7"}


def test_a_word_that_begins_with_a_brace_is_all_arguments() -> None:
    given = parse_arguments(['{"a": 1, "b": "x"}', "b=y"])
    assert (given.values, given.texts) == ({"a": 1}, {"b": "y"})


@pytest.mark.parametrize(
    ("words", "values", "texts"),
    [
        (["a=1", '{"a": 2}'], {"a": 2}, {}),
        (['{"a": 1}', "a:=2"], {"a": 2}, {}),
        (['{"a": 1}', '{"a": 2}'], {"a": 2}, {}),
    ],
)
def test_a_whole_object_and_single_arguments_override_each_other(
    words: list[str], values: dict[str, Any], texts: dict[str, str]
) -> None:
    given = parse_arguments(words)
    assert (given.values, given.texts) == (values, texts)


@pytest.mark.parametrize("words", [["a=1", "a=2"], ["a=1", "a:=2"], ["a:=1", "b=2", "a=2"]])
def test_an_argument_that_is_given_twice_is_refused(words: list[str]) -> None:
    with pytest.raises(UsageError) as raised:
        parse_arguments(words)
    assert str(raised.value) == f"a is given twice: {words[0]} and {words[-1]}"


@pytest.mark.parametrize(
    ("words", "has_json"), [([], False), (["a=1"], False), (["a:=1"], True), (["{}"], True)]
)
def test_arguments_remember_whether_there_was_json(words: list[str], has_json: bool) -> None:
    assert parse_arguments(words).has_json is has_json


NAMELESS = "write the name of the argument before it, as in %s; `concertino tools` lists the names"


@pytest.mark.parametrize(
    ("word", "text", "hint"),
    [
        (
            "nothing",
            "nothing: expected KEY=VALUE, KEY:=JSON, {JSON}, @FILE or -",
            NAMELESS % "NAME=nothing",
        ),
        ("=x", "=x: expected KEY=VALUE, KEY:=JSON, {JSON}, @FILE or -", NAMELESS % "NAME=x"),
        (":=1", ":=1: expected KEY=VALUE, KEY:=JSON, {JSON}, @FILE or -", NAMELESS % "NAME:=1"),
        ("b:=two", "b:=two: not JSON; for text write b=two", ""),
        ("a=@/no/such/file", "@/no/such/file: No such file or directory", ""),
        ("@/no/such/file", "@/no/such/file: No such file or directory", ""),
        ("a:=@/dev", "@/dev: Is a directory", ""),
    ],
)
def test_a_word_that_is_no_argument_is_refused(word: str, text: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_arguments([word])
    assert (str(refused.value), refused.value.hint) == (text, hint)


def test_json_that_is_no_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(UsageError, match="expected a JSON object, got an array"):
        parse_arguments([f"@{tmp_path}/list.json"])
    with pytest.raises(UsageError, match=r"\{a: 1\}: expected a JSON object: "):
        parse_arguments(["{a: 1}"])


def test_a_file_that_is_no_json_may_be_passed_as_text(tmp_path: Path) -> None:
    (tmp_path / "poem").write_text("roses")
    with pytest.raises(UsageError, match="not JSON") as refused:
        parse_arguments([f"p:=@{tmp_path}/poem"])
    assert refused.value.hint == f"for text write p=@{tmp_path}/poem"


# Values by their schemas


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "integer"}, "1", 1),
        ({"type": "integer"}, "-7", -7),
        ({"type": "integer"}, "2.0", 2),
        ({"type": "number"}, "1", 1),
        ({"type": "number"}, "1.5", 1.5),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "False", False),
        ({"type": "null"}, "null", None),
        ({"type": "array"}, '["a", 1]', ["a", 1]),
        ({"type": "object"}, '{"k": 1}', {"k": 1}),
        ({"type": "string"}, "1", "1"),
        ({"type": "string"}, "null", "null"),
        ({"type": "string"}, '{"k": 1}', '{"k": 1}'),
        ({"type": ["integer", "null"]}, "3", 3),
        ({"type": ["integer", "null"]}, "null", None),
        ({"type": ["integer", "string"]}, "3", "3"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "3", 3),
        ({"oneOf": [{"type": "boolean"}, {"type": "integer"}]}, "3", 3),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", "null"),
        ({"allOf": [{"$ref": "#/$defs/Count"}], "default": 3}, "4", 4),
        ({"$ref": "#/$defs/Count"}, "3", 3),
        ({"$ref": "#/$defs/Loop"}, "3", 3),
        ({"$ref": "#/$defs/None"}, "3", "3"),
        ({"enum": ["red", "green"]}, "red", "red"),
        ({"enum": [1, 2]}, "2", 2),
        ({"enum": ["1", 1]}, "1", "1"),
        ({"enum": [True, 1]}, "1", 1),
        ({"const": 5}, "5", 5),
        ({"properties": {"a": {}}}, '{"a": 1}', {"a": 1}),
        ({"items": {}}, "[1]", [1]),
        ({}, "1", "1"),
        (True, "1", "1"),
        (None, "1", "1"),
        ({"type": "no-such-type"}, "1", "1"),
        ({"type": 5, "enum": 6, "anyOf": 7, "$ref": 8}, "1", "1"),
    ],
)
def test_a_text_becomes_what_its_schema_says(schema: Any, text: str, value: Any) -> None:
    definitions = {
        "Count": {"type": "integer"},
        "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, {"type": "integer"}]},
    }
    found = convert_argument(schema, text, definitions)
    assert found == value
    assert type(found) is type(value)


def test_an_integer_keeps_all_its_digits() -> None:
    digits = "123456789012345678901234567890"
    assert encode(convert_argument({"type": "integer"}, digits)).decode() == digits


@pytest.mark.parametrize(
    ("schema", "text", "message", "hint"),
    [
        ({"type": "integer"}, "two", "x=two: expected an integer", ""),
        ({"type": "integer"}, "1.5", "x=1.5: expected an integer", ""),
        ({"type": "integer"}, "true", "x=true: expected an integer", ""),
        ({"type": "integer"}, "", "x=: expected an integer", ""),
        ({"type": "number"}, "NaN", "x=NaN: expected a number", ""),
        ({"type": "boolean"}, "1", "x=1: expected true or false", ""),
        ({"type": "array"}, "a", "x=a: expected a JSON array such as '[1, 2]'", ""),
        ({"type": "object"}, "a", "x=a: expected a JSON object such as '{\"key\": 1}'", ""),
        ({"type": ["integer", "null"]}, "a", "x=a: expected an integer or null", ""),
        (
            {"enum": ["red", "green"]},
            "gren",
            'x=gren: expected one of "red", "green"',
            "did you mean green?",
        ),
    ],
)
def test_a_text_of_another_type_is_refused(schema: Any, text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        convert_argument(schema, text)
    assert str(refused.value) == message
    assert refused.value.hint.splitlines()[:-1] == ([hint] if hint else [])
    assert refused.value.hint.splitlines()[-1].startswith("t takes optional: x (")


def test_references_that_multiply_take_no_time() -> None:
    # Each definition refers ten times to the next: 10 ** 20 paths.
    definitions: dict[str, Any] = {
        f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"} for _ in range(10)]} for n in range(20)
    }
    definitions["d20"] = {"type": "integer"}
    assert convert_argument({"$ref": "#/$defs/d0"}, "1", definitions) == 1


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer"}, "integer"),
        ({"type": ["integer", "null"]}, "integer or null"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string or null"),
        ({"enum": ["a", 1]}, 'one of "a", 1'),
        ({"const": "a"}, '"a"'),
        ({}, "anything"),
        (True, "anything"),
    ],
)
def test_a_schema_in_words(schema: Any, words: str) -> None:
    assert describe_schema(schema, {}) == words


# Names

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}, "note": {"type": "string"}},
    "required": ["a", "b"],
}
CLOSED = Parameters.of_schema({**SCHEMA, "additionalProperties": False})
OPEN = Parameters.of_schema(SCHEMA)


def names(given: GivenArguments, takes: Parameters) -> list[str]:
    return check_names("add", given, takes, ["call", "add", "a=1"], ["python", "my server.py"])


def test_the_parameters_of_a_tool_in_one_line() -> None:
    assert str(CLOSED) == "a (integer), b (integer), optional: note (string)"
    assert str(Parameters.of_schema({"type": "object"})) == "no arguments"
    assert str(Parameters.of_schema({"properties": 5, "required": 6})) == "no arguments"


def test_arguments_with_known_names_pass() -> None:
    assert names(GivenArguments({"a": "1", "b": "2"}), CLOSED) == []


def test_a_missing_argument_is_named_with_a_line_to_write() -> None:
    with pytest.raises(UsageError) as refused:
        names(GivenArguments({"a": "1"}), CLOSED)
    assert str(refused.value) == "add needs b (integer)"
    assert refused.value.hint == (
        "write: concertino call add a=1 b=INTEGER -- python 'my server.py'"
    )


def test_an_unknown_argument_is_refused_where_others_are_not_accepted() -> None:
    with pytest.raises(UsageError) as refused:
        names(GivenArguments({"a": "1", "b": "2", "nots": "x"}), CLOSED)
    assert str(refused.value) == "add has no argument 'nots'"
    assert refused.value.hint == f"did you mean note?\nadd takes {CLOSED}"


def test_an_unknown_argument_is_refused_if_another_one_is_missing() -> None:
    with pytest.raises(UsageError, match="add has no argument 'bb'"):
        names(GivenArguments({"a": "1", "bb": "2"}), OPEN)


def test_an_unknown_argument_passes_where_others_are_accepted() -> None:
    assert names(GivenArguments({"a": "1", "b": "2", "c": "3"}), OPEN) == ["c"]


def test_nothing_is_missing_where_json_was_given() -> None:
    assert names(GivenArguments({}, {"a": 1}, True), CLOSED) == []
