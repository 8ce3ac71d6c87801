"""The arguments of `concertino call` and `prompt`: converts words to JSON values.

    concertino call add a=1 b:=2 -- python server.py

Each word before `--` gives an argument of the tool or prompt. The TEXT of KEY=TEXT is converted by
the schema of the tool's argument: to a number, a boolean, null, a value of an enum, an array, an
object, or the text itself. KEY:=JSON and whole JSON objects are sent unchanged, so that a user can
also send arguments that do not fit the schema.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

from msgspec import Raw, Struct
from msgspec.json import decode, encode

from concertino.cli import UsageError
from concertino.decode_errors import DECODE_ERRORS

__all__ = [
    "GivenArguments",
    "Parameters",
    "check_names",
    "convert_texts",
    "describe_schema",
    "example_command",
    "list_values",
    "parse_arguments",
    "properties_of",
]

# Limit for _list_alternatives(): schemas are untrusted, and may have long chains of references.
MAX_SCHEMAS = 1000
INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
# JSON type -> the words for a value of this type in messages.
NOUNS = {
    "string": "a text",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
    "array": "a JSON array such as '[1, 2]'",
    "object": "a JSON object such as '{\"key\": 1}'",
}
# JSON type -> the Python types of its values. Compared exactly, because bool derives from int. Raw
# has the digits of an integer of more than 64 bits: see _read_json().
PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int, Raw),
    "number": (int, float, Raw),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}
# A JSON Schema, decoded.
Schema = Mapping[str, Any]


# Words of the command line


class GivenArguments(Struct):
    """The arguments for a tool or prompt on the command line. Each is in `texts` or in `values`.

    texts: name -> text, for the arguments in the form KEY=TEXT.
    values: name -> decoded value, for the arguments given as JSON.
    has_json: whether any JSON was given, even an empty object.
    """

    texts: dict[str, str] = {}
    values: dict[str, Any] = {}
    has_json: bool = False


def parse_arguments(words: Sequence[str]) -> GivenArguments:
    """Parse the words that give arguments on the command line.

    A word has one of these forms:
    - KEY=TEXT and KEY=@FILE: the value is a text.
    - KEY:=JSON and KEY:=@FILE: the value is JSON.
    - {JSON}, @FILE or - (stdin): a JSON object with any number of arguments.

    If an argument is given both in an object and in a word with KEY, the later one counts.
    Raises UsageError for any other word, and if two words have the same KEY.
    """
    given = GivenArguments()
    # The name of each argument -> the word that gave it, to report an argument that comes twice.
    word_of: dict[str, str] = {}
    for word in words:
        if word == "-" or word.startswith(("@", "{")):
            given.has_json = True
            for key, value in _read_object(word).items():
                given.texts.pop(key, None)
                given.values[key] = value
            continue
        # KEY:=JSON is split at the equals sign, so that `key` ends with the colon.
        key, equals, value = word.partition("=")
        name = key.removesuffix(":")
        if not equals or not name:
            expected = "expected KEY=VALUE, KEY:=JSON, {JSON}, @FILE or -"
            raise UsageError(f"{word}: {expected}", _suggest_key(word))
        if name in word_of:
            raise UsageError(
                f"{name} is given twice: {word_of[name][:100]} and {word[:100]}",
                f"for several values of one argument write a JSON array: {name}:='[1, 2]'",
            )
        word_of[name] = word
        from_file = value.startswith("@")
        text = _read_file(value[1:]) if from_file else value
        # Replace a value from an object in an earlier word.
        given.values.pop(name, None)
        if key.endswith(":"):
            given.has_json = True
            given.values[name] = _parse_value(word, text, from_file=from_file)
        else:
            given.texts[name] = text
    return given


def _suggest_key(word: str) -> str:
    """Return a hint for a word without `KEY=`, which is therefore not an argument."""
    if word.endswith(":") and len(word) > 1:
        return f"write {shlex.quote(word[:-1])}=VALUE"
    separator = "" if word.startswith(("=", ":=")) else "="
    example = shlex.quote(f"NAME{separator}{word}")
    return (
        f"write the name of the argument before it, as in {example}; "
        "`concertino tools` lists the names"
    )


def _read_object(word: str) -> dict[str, Any]:
    """Return the JSON object in a word, in a file or on stdin."""
    if word == "-":
        source, text = "stdin", _read_stdin()
    elif word.startswith("@"):
        source, text = word, _read_file(word[1:])
    else:
        source, text = word[:100], word
    try:
        value = decode(text)
    except DECODE_ERRORS as exc:
        raise UsageError(f"{source}: expected a JSON object: {exc}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{source}: expected a JSON object, got {_describe_type(value)}")
    return cast("dict[str, Any]", value)


def _parse_value(word: str, text: str, *, from_file: bool) -> Any:
    """Return the value of KEY:=JSON. Raises UsageError.

    word: the whole word, for messages.
    text: the JSON.
    from_file: whether the JSON comes from a file.
    """
    try:
        return decode(text)
    except DECODE_ERRORS as exc:
        as_text = word.replace(":=", "=", 1)[:100]
        if from_file:
            raise UsageError(f"{word}: not JSON: {exc}", f"for text write {as_text}") from None
        raise UsageError(f"{word[:100]}: not JSON; for text write {as_text}") from None


def _read_stdin() -> bytes:
    # sys.stdin is None if descriptor 0 is closed.
    if cast("object", sys.stdin) is None:
        raise UsageError("-: stdin is closed")
    return sys.stdin.buffer.read()


def _read_file(name: str) -> str:
    try:
        with open(name, encoding="utf-8") as file:
            return file.read()
    except OSError as exc:
        raise UsageError(f"@{name}: {exc.strerror or exc}") from None
    except UnicodeDecodeError as exc:
        raise UsageError(f"@{name}: {exc}") from None


# Arguments by the schema of a tool


class Parameters(Struct, frozen=True):
    """The arguments that a tool or a prompt accepts.

    types: name of an argument -> its type in words, such as `integer`.
    required: the names of the arguments without which a call fails.
    is_closed: whether arguments that are not in `types` are errors.
    """

    types: Mapping[str, str]
    required: Sequence[str] = ()
    is_closed: bool = False

    def __str__(self) -> str:
        """Return the arguments as one line: `a (integer), b (integer), optional: c (string)`."""
        words = {name: f"{name} ({kind})" for name, kind in self.types.items()}
        required = [words[name] for name in words if name in self.required]
        optional = [words[name] for name in words if name not in self.required]
        if optional:
            optional[0] = f"optional: {optional[0]}"
        return ", ".join(required + optional) or "no arguments"

    @classmethod
    def of_schema(cls, schema: Schema) -> Parameters:
        """Return the parameters of a tool.

        schema: the input schema of the tool.
        """
        properties = properties_of(schema)
        names = _as_list(schema.get("required"))
        # With one of these keywords, names outside of `properties` may be allowed.
        opening_keywords = {"patternProperties", "allOf", "anyOf", "oneOf", "$ref"}
        return cls(
            types={name: describe_schema(item, schema) for name, item in properties.items()},
            required=[name for name in names if isinstance(name, str) and name in properties],
            is_closed=schema.get("additionalProperties") is False
            and opening_keywords.isdisjoint(schema),
        )


def check_names(
    subject: str,
    given: GivenArguments,
    accepted: Parameters,
    command: Sequence[str],
    server: Sequence[str],
) -> list[str]:
    """Check the names of arguments of the form KEY=TEXT, and return the unknown ones, for a note.

    Names of arguments that are given as JSON are not checked.
    Raises UsageError
    - if required arguments are missing and no JSON was given,
    - for an unknown argument, if `accepted.is_closed` or if a required argument is missing, whose
      name the user has probably misspelled.

    subject: the name of the tool or prompt, for messages.
    given: the arguments of the command line.
    accepted: the arguments that the tool or prompt accepts.
    command: the words before `--`, for an example of a correct command.
    server: the words after `--`, for the same example.
    """
    unknown = [name for name in given.texts if name not in accepted.types]
    missing = [name for name in accepted.required if name not in given.texts]
    # JSON is sent unchecked, so that a user can also send arguments that do not fit.
    if given.has_json:
        missing = []
    if unknown and (accepted.is_closed or missing):
        from concertino.cli.suggestions import did_you_mean

        others = [name for name in accepted.types if name not in given.texts]
        hint = did_you_mean(unknown[0], others)
        raise UsageError(
            f"{subject} has no argument {unknown[0]!r}",
            f"{hint}\n{subject} takes {accepted}".strip(),
        )
    if missing:
        raise _explain_missing(subject, missing, accepted, command, server)
    return unknown


def _explain_missing(
    subject: str,
    missing: Sequence[str],
    accepted: Parameters,
    command: Sequence[str],
    server: Sequence[str],
) -> UsageError:
    """Return the error for missing arguments.

    If the user has written the arguments, but after `--` or with commas between them, the error
    says so.

    subject: the name of the tool or prompt.
    missing: the names of the missing arguments.
    accepted: the arguments that the tool or prompt accepts.
    command: the words before `--`, in which the arguments should stand.
    server: the words after `--`.
    """
    names = "|".join(map(re.escape, missing))
    # A shell passes `a=1,b=2` as one word. Split at the commas before the missing names.
    parts = [part for word in command for part in re.split(f",(?=(?:{names}):?=)", word)]
    if len(parts) > len(command):
        return UsageError(
            f"{subject}: arguments are separated by spaces, not by commas",
            f"write: {example_command(shlex.join(parts), server)}",
        )
    misplaced = [word for word in server if re.match(f"(?:{names}):?=", word)]
    if misplaced:
        line = shlex.join([*command, *misplaced])
        others = [word for word in server if word not in misplaced]
        return UsageError(
            f"{subject}: its arguments go before --, and the server after it",
            f"write: {example_command(line, others)}",
        )
    words = ", ".join(f"{name} ({accepted.types[name]})" for name in missing)
    additions = " ".join(f"{name}={_placeholder(accepted.types[name])}" for name in missing)
    line = f"{shlex.join(command)} {additions}"
    return UsageError(f"{subject} needs {words}", f"write: {example_command(line, server)}")


def example_command(line: str, server: Sequence[str]) -> str:
    """Return a command line that a user can type, as an example in a hint.

    line: the command and its arguments, without `concertino`.
    server: the words after `--`; empty in an interactive session. Then the result is `line`.
    """
    return f"concertino {line} -- {shlex.join(server)}" if server else line


def _placeholder(description: str) -> str:
    """Return a word that stands for a value in an example, such as `INTEGER`.

    description: the type of the value, from describe_schema(). If it is more than one word, the
        result is `VALUE`.
    """
    return description.upper() if description.isalpha() else "VALUE"


def convert_texts(tool: str, texts: Mapping[str, str], schema: Schema) -> dict[str, Any]:
    """Convert each text to a value that the schema of its argument allows.

    A text stays a text if the schema allows a text, or does not mention the argument.
    tool: the tool's name, for messages.
    texts: name of an argument -> its text on the command line.
    schema: the tool's input schema.
    Returns name -> value. Raises UsageError for a text that the schema does not allow.
    """
    properties = properties_of(schema)
    hint = f"{tool} takes {Parameters.of_schema(schema)}"
    return {
        name: _convert(name, text, _list_alternatives(properties.get(name), schema), hint)
        for name, text in texts.items()
    }


def properties_of(schema: Schema) -> dict[str, Any]:
    """Return name -> schema of each argument of a tool; {} if the tool's schema lists none.

    schema: the input schema of the tool. Servers are untrusted, so an argument may have any value
        as its schema.
    """
    properties = schema.get("properties")
    return cast("dict[str, Any]", properties) if isinstance(properties, dict) else {}


def describe_schema(schema: Any, root: Schema) -> str:
    """Return the type of a value in a few words, such as `integer` or `one of "a", "b"`.

    schema: the JSON Schema of the value.
    root: the whole schema that contains it, to which its references (`$ref`) point.
    """
    words: list[str] = []
    for alternative in _list_alternatives(schema, root):
        values = _list_enum_values(alternative)
        words += [_describe_values(values)] if values else _list_types(alternative)
    return " or ".join(dict.fromkeys(words)) or "anything"


def list_values(schema: Schema, name: str) -> list[str]:
    """Return the values that a schema lists for an argument, as the user would type them.

    For a boolean they are true and false.
    schema: the input schema of a tool.
    name: the name of the argument.
    Returns [] if the schema lists no values for it.
    """
    values: list[Any] = []
    for alternative in _list_alternatives(properties_of(schema).get(name), schema):
        values += _list_enum_values(alternative)
        if "boolean" in _list_types(alternative):
            values += [True, False]
    return [value if isinstance(value, str) else encode(value).decode() for value in values]


def _convert(name: str, text: str, alternatives: list[Schema], hint: str) -> Any:
    """Return the value that a text stands for. Raises UsageError if no alternative allows it.

    name: the name of the argument, for messages.
    alternatives: the schemas of the argument, from _list_alternatives().
    hint: the last line of the error.
    """
    values = [value for alternative in alternatives for value in _list_enum_values(alternative)]
    without_values = [item for item in alternatives if not _list_enum_values(item)]
    types = {kind for item in without_values for kind in _list_types(item)}
    # Whether an alternative restricts neither the type nor the value.
    allows_any = any(not _list_types(item) for item in without_values)
    if not alternatives or allows_any or "string" in types or text in values:
        return text

    value = _read_json(text)
    # The types are compared, too, because 1 == True in Python.
    if any(type(value) is type(item) and value == item for item in values):
        return value
    if any(type(value) in PYTHON_TYPES.get(kind, ()) for kind in types):
        return value
    # In JSON Schema, the number 2.0 is an integer.
    if "integer" in types and isinstance(value, float) and value.is_integer():
        return int(value)
    nouns = [_describe_values(values)] if values else []
    nouns += [NOUNS[kind] for kind in NOUNS if kind in types]
    from concertino.cli.suggestions import did_you_mean

    suggestion = did_you_mean(text, [item for item in values if isinstance(item, str)])
    if text.endswith(","):
        suggestion = f"arguments are separated by spaces, not by commas: {name}={text[:-1]}"
    raise UsageError(
        f"{name}={text[:100]}: expected {' or '.join(nouns)}", f"{suggestion}\n{hint}".strip()
    )


def _read_json(text: str) -> Any:
    """Parse a text as JSON. Returns the text itself if it is not JSON.

    `True` and `False` are accepted too. An integer of more than 64 bits becomes a Raw with its
    digits, because the decoder would make a rounded float of it.
    """
    if text in ("True", "False"):
        return text == "True"
    try:
        value = decode(text)
    except DECODE_ERRORS:
        return text
    if isinstance(value, float) and INTEGER.fullmatch(text):
        return Raw(text.encode())
    return value


def _list_alternatives(schema: Any, root: Schema) -> list[Schema]:
    """Return the alternatives in the schema of an argument, with references resolved.

    The items of allOf count as alternatives, as those of anyOf and oneOf do: the result only tells
    how to read a text, and the server validates the value. A schema that allows everything becomes
    {}. Returns [] for an argument without a schema.

    root: the schema in which references are looked up.
    """
    alternatives: list[Schema] = []
    unvisited: list[Any] = [] if schema is None else [schema]
    # Visit each schema once, because references may form cycles.
    visited: set[int] = set()
    while unvisited and len(visited) < MAX_SCHEMAS:
        item = unvisited.pop(0)
        if not isinstance(item, dict):
            alternatives.append({})
            continue
        if id(cast("object", item)) in visited:
            continue
        visited.add(id(cast("object", item)))
        item = cast("dict[str, Any]", item)
        parts = [part for key in ("anyOf", "oneOf", "allOf") for part in _as_list(item.get(key))]
        if isinstance(item.get("$ref"), str):
            parts.append(_resolve(item["$ref"], root))
        # Visit the parts next, so that the alternatives have the order of the schema.
        unvisited[:0] = parts
        # A schema that has only parts restricts nothing itself, so it is no alternative.
        if not parts or _list_types(item) or _list_enum_values(item):
            alternatives.append(item)
    return alternatives


def _resolve(reference: str, root: Schema) -> Any:
    """Return the schema to which a reference such as `#/$defs/Color` points.

    Returns True, which is the schema that allows everything, if the reference points to nothing.
    root: the schema that contains the reference.
    """
    if not reference.startswith("#/"):
        return True
    place: Any = root
    for step in reference[2:].split("/"):
        key = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(place, dict) or key not in place:
            return True
        place = cast("dict[str, Any]", place)[key]
    return place


def _list_types(schema: Schema) -> list[str]:
    """Return the JSON types that a schema names in `type`, or that its keywords imply."""
    named = schema.get("type")
    if named is None:
        implied = {"properties": "object", "items": "array"}
        return [kind for key, kind in implied.items() if key in schema]
    kinds = [named] if isinstance(named, str) else _as_list(named)
    return [kind for kind in kinds if isinstance(kind, str) and kind in NOUNS]


def _list_enum_values(schema: Schema) -> list[Any]:
    """Return the values that a schema lists in `enum` or `const`; [] if it lists none."""
    return [schema["const"]] if "const" in schema else _as_list(schema.get("enum"))


def _as_list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _describe_values(values: list[Any]) -> str:
    """Return the values of an enum for a message, such as `one of "a", "b"`; at most 20 of them."""
    texts = [encode(value).decode() for value in values[:20]]
    texts += ["..."] if len(values) > 20 else []
    return texts[0] if len(texts) == 1 else f"one of {', '.join(texts)}"


def _describe_type(value: Any) -> str:
    """Return a noun for a JSON value that is not an object."""
    kinds: dict[Any, str] = {str: "a text", list: "an array", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")
