"""split_line(): splits a line of the interactive session into words."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["Line", "split_line"]


class Line(Struct, frozen=True):
    """A line, split into words.

    words: the words, without their quotes and backslashes. The last word is empty if the line is
        empty or ends with a space.
    last_start: index of the character at which the last word begins.
    is_complete: False if a quote is still open at the end of the line.
    """

    words: list[str]
    last_start: int
    is_complete: bool


def split_line(text: str) -> Line:
    """Split a line into words, like a shell.

    A space inside quotes or after a backslash does not end a word. There is one addition: a word
    that begins with `{`, unless it is the first, is a JSON object. It extends to the end of the
    line, and keeps its quotes and backslashes.
    """
    words: list[str] = []
    word, start, quote = "", 0, ""
    position = 0
    while position < len(text):
        char = text[position]
        if quote:
            if char == quote:
                quote = ""
            elif char == "\\" and quote == '"' and text[position + 1 : position + 2] in ('"', "\\"):
                # Inside double quotes, a backslash escapes only these two characters.
                position += 1
                word += text[position]
            else:
                word += char
        elif char in "'\"":
            quote = char
        elif char == "\\" and position + 1 < len(text):
            position += 1
            word += text[position]
        elif char.isspace():
            if position > start:
                words.append(word)
            word, start = "", position + 1
        elif char == "{" and position == start and words:
            # A JSON object. It ends with the line, and stays as it is.
            return Line([*words, text[position:].rstrip()], start, True)
        else:
            word += char
        position += 1
    return Line([*words, word], start, not quote)
