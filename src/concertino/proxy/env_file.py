"""read_env_file(): reads a file of variables (`envFile`) with a line `NAME=value` for each."""

from __future__ import annotations

import re
from pathlib import Path

from concertino.proxy.value_reader import InvalidServerFile
from concertino.user_files import read_regular_file

__all__ = ["read_env_file"]

# The largest file, in bytes.
MAX_BYTES = 2**18
LINE_END = re.compile(r"\r\n?|\n")
LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_.]*)\s*=\s*(.*)")
ESCAPE = re.compile(r"\\(.)")
ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


def read_env_file(path: Path) -> dict[str, str]:
    """Return the variables in a file: name -> value.

    - Each line is `NAME=value`. Empty lines, and lines that begin with `#`, are skipped.
    - A line may begin with `export`, as in a shell script.
    - A value may be in single quotes, or in double quotes with escapes such as `\\n`.
    - After a value without quotes, ` #` begins a comment.
    - References such as `${VAR}` are not replaced.

    Raises InvalidServerFile with the number of the first wrong line, or if the file cannot be read,
    is too large or is not UTF-8.
    """
    try:
        data = read_regular_file(path, MAX_BYTES)
    except OSError as exc:
        raise InvalidServerFile(f"{path}: {exc.strerror}") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidServerFile(f"{path}: expected UTF-8") from None
    variables: dict[str, str] = {}
    # Not str.splitlines(), which would also split values at other characters, such as U+2028.
    for number, line in enumerate(map(str.strip, LINE_END.split(text)), 1):
        if not line or line.startswith("#"):
            continue
        match = LINE.fullmatch(line)
        # match[1] is the name, and match[2] the value with its quotes and a comment.
        value = None if match is None else _read_value(match[2])
        if match is None or value is None or "\0" in value:
            raise InvalidServerFile(f"{path}:{number}: expected NAME=value")
        variables[match[1]] = value
    return variables


def _read_value(text: str) -> str | None:
    """Return a value without its quotes; None if the closing quote is missing."""
    quote = text[:1]
    if quote not in ("'", '"'):
        return re.split(r"(?:^|\s)#", text, maxsplit=1)[0].rstrip()
    match = re.match(r'"((?:[^"\\]|\\.)*)"' if quote == '"' else r"'([^']*)'", text)
    if match is None or not re.fullmatch(r"\s*(?:#.*)?", text[match.end() :]):
        return None
    if quote == "'":
        return match[1]
    return ESCAPE.sub(lambda escape: ESCAPES.get(escape[1], escape[1]), match[1])
