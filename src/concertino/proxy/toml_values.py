"""parse_toml(): parses TOML and returns its values with their lines and columns, for errors.

The standard library's parser, tomllib, does not return positions. So the text is split into its
statements: lines are added until tomllib can parse them alone. Each statement is then parsed by
itself, and its values get the line and column (the "place") at which the statement begins.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any, cast

from concertino.proxy.file_values import FileMember, FileValue, InvalidText

__all__ = ["parse_toml"]

# The longest statement in lines. The time for parsing grows with the square of this.
MAX_STATEMENT_LINES = 500
PLACE = re.compile(r" \(at line (\d+), column (\d+)\)$")
AT_END = " (at end of document)"

# The names of members and the indexes of items that lead to a value.
KeyPath = tuple[str | int, ...]
# Path of a value -> line and column, from 1.
Places = dict[KeyPath, tuple[int, int]]


def parse_toml(text: str) -> FileValue:
    """Parse a TOML document, and return its value. Dates and times become strings.

    Each value gets the line and column at which its statement begins.
    Raises InvalidText with the position of the first error.
    """
    text = text.removeprefix("\ufeff")
    lines = text.split("\n")
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        problem = str(exc)
        if (place := PLACE.search(problem)) is not None:
            line, column = int(place[1]), int(place[2])
            raise InvalidText(problem[: place.start()], line, column) from None
        raise InvalidText(problem.removesuffix(AT_END), len(lines), len(lines[-1]) + 1) from None
    except RecursionError:
        problem = "expected fewer levels of lists and tables"
        raise InvalidText(problem, _find_unparsable(lines), 1) from None
    except ValueError:
        # Not a TOMLDecodeError, which is handled above: int() has refused the digits of a number.
        problem = "expected a number of fewer digits"
        raise InvalidText(problem, _find_unparsable(lines), 1) from None
    return _locate(document, (), _find_places(lines), (1, 1))


def _find_unparsable(lines: list[str]) -> int:
    """Return the number of the line for which tomllib raises another error than TOMLDecodeError.

    Returns 1 if there is no such line, which happens if the value spans several lines.
    """
    for number, line in enumerate(lines, 1):
        try:
            tomllib.loads(line)
        except tomllib.TOMLDecodeError:
            continue
        except (RecursionError, ValueError):
            return number
    return 1


def _find_places(lines: list[str]) -> Places:
    """Return path of a value -> its place, for all values of a valid document."""
    places: Places = {}
    # Path of a list of tables -> the index of its last table so far.
    counts: dict[KeyPath, int] = {}
    table: KeyPath = ()
    start = 0
    for number in range(1, len(lines) + 1):
        if number - start > MAX_STATEMENT_LINES:
            raise InvalidText(
                f"expected at most {MAX_STATEMENT_LINES} lines in one statement", start + 1, 1
            )
        # A statement ends at the first line at which it is valid: the lines of an unfinished list
        # or text are never valid. Empty lines and comments are statements without values.
        statement = "\n".join(lines[start:number])
        try:
            parsed = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue
        place = start + 1, len(lines[start]) - len(lines[start].lstrip()) + 1
        start = number
        if statement.lstrip().startswith("["):
            table = _read_header(parsed, counts)
            places.setdefault(table, place)
        else:
            _add_places(parsed, table, place, places)
    return places


def _read_header(parsed: Mapping[str, Any], counts: dict[KeyPath, int]) -> KeyPath:
    """Return the path of the table that a header opens, with an index for each list of tables.

    parsed: the header alone, as tomllib returns it: `[a.b]` is {"a": {"b": {}}}, and `[[a.b]]` is
        {"a": {"b": [{}]}}.
    counts: path of a list -> the index of its last table; updated if the header opens another.
    """
    path: KeyPath = ()
    value: Any = parsed
    # Each dict has one member, so this loop follows the names in the header.
    while value:
        if isinstance(value, list):
            # The header `[[...]]` opens another table of the list.
            counts[path] = counts.get(path, -1) + 1
            return (*path, counts[path])
        path = _add_index(path, counts)
        name, value = next(iter(cast("dict[str, Any]", value).items()))
        path = (*path, name)
    return _add_index(path, counts)


def _add_index(path: KeyPath, counts: Mapping[KeyPath, int]) -> KeyPath:
    """Return a path unchanged; for the path of a list of tables, the path of its last table.

    With the counts {("a",): 1}, ("a",) becomes ("a", 1), the second table after `[[a]]`.
    """
    return (*path, counts[path]) if path in counts else path


def _add_places(
    value: Any,
    path: KeyPath,
    place: tuple[int, int],
    places: Places,
) -> None:
    """Set the place of everything in the value of one statement."""
    places.setdefault(path, place)
    # A key such as `a.b` makes nested dicts. The items of a list get the place of the list.
    if isinstance(value, dict):
        for name, item in cast("dict[str, Any]", value).items():
            _add_places(item, (*path, name), place, places)


def _locate(
    value: Any,
    path: KeyPath,
    places: Places,
    container: tuple[int, int],
) -> FileValue:
    """Return a value with its place. A value without a place gets the place of its container."""
    here = places.get(path, container)
    line, column = here
    if isinstance(value, dict):
        members: dict[str, FileMember] = {}
        for name, item in cast("dict[str, Any]", value).items():
            located = _locate(item, (*path, name), places, here)
            members[name] = FileMember(located, located.line, located.column)
        return FileValue(members, line, column)
    if isinstance(value, list):
        items = enumerate(cast("list[Any]", value))
        return FileValue(
            tuple(_locate(item, (*path, index), places, here) for index, item in items),
            line,
            column,
        )
    if isinstance(value, (str, int, float)):
        return FileValue(value, line, column)
    # A date or a time.
    return FileValue(str(value), line, column)
