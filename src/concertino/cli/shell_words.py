"""The words of a line that is typed in the interactive session."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["Line", "split_line"]


class Line(Struct, frozen=True):
    """A line in words. last_start: where the last word begins. is_complete: no quote is open.

    A line that ends with a space, or is empty, has an empty last word.
    """

    words: list[str]
    last_start: int
    is_complete: bool


def split_line(text: str) -> Line:
    """Split a line into words, as a shell does.

    Quotes and backslashes protect spaces. A word that begins with `{` is a JSON object that lasts
    until the end of the line, so its quotes need no protection.
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
            return Line([*words, text[position:].rstrip()], start, True)
        else:
            word += char
        position += 1
    return Line([*words, word], start, not quote)
