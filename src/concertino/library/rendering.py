"""What was found, written as a text that never exceeds its budget.

full     whole fragments, best first. The first that does not fit is cut before a heading, with a mark that names its URI;
         what cannot be cut so, and what comes after it and does not fit either, is left out. Where that leaves nothing,
         the first section or, failing that, the first paragraphs of the best one that has any short enough
catalog  an entry of a few lines for each: title, URI, length, what it is for
index    a line for each: URI, title, length
minimal  JSON: URI, title, length and score of each

A budget is kept by counting: nothing is added before the whole text with it was counted, headings, separators and the
closing line included. So it holds for any counter, also for one where a text and another together have more tokens
than each alone. What is left out for lack of space is named at the end, as far as there is space for that. No
fragment is cut inside of a code block.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Struct

from concertino.library.document import Document
from concertino.library.outline import HEADING, lines_outside_fences
from concertino.library.query import Query
from concertino.library.tokens import Counter

__all__ = ["Hit", "RenderedText", "assemble"]

Length: TypeAlias = Callable[[Document], int]
MARKDOWN = "text/markdown"
JSON = "application/json"
SEPARATOR = "\n\n---\n\n"
MIN_CUT_SHARE = 0.15  # of the budget; less of a fragment than that is not worth its heading
SLACK = 16  # tokens that two texts may have less as one
MAX_TRIED = 5  # fragments that are looked at for a part, rather than show nothing
PARAGRAPH = re.compile(r"$")  # the blank line behind it
MAX_LISTED = 3  # of what a document can do and is for, in a catalog


class Hit(Struct, frozen=True):
    """A document that was found, and how well it fits: the higher the better, comparable within one query only."""

    document: Document
    score: float


class RenderedText(Struct, frozen=True):
    """text: what is answered, of mime_type. fragments: how many documents it shows, whole or in part; uris: which.
    tokens: what the text has, by the counter of the index; never more than limit."""

    text: str
    mime_type: str
    fragments: int
    uris: tuple[str, ...]
    tokens: int
    limit: int


def assemble(
    query: Query, hits: Sequence[Hit], count: Counter, length: Length | None = None
) -> RenderedText:
    """The text of what was found, best first, in the mode and within the budget of the query.

    count: the tokens of a text. length: those of a document's body, if somebody has counted them before.
    """
    if length is None:
        return assemble(query, hits, count, lambda document: count(document.body))
    if query.mode == "minimal":
        return _json(query, hits, count, length)
    text = _Text(query.max_tokens, count)
    if not hits:
        text.end(
            f"No fragment matches {query.text[:80]!r}.",
            f"No fragment matches {query.text[:20]!r}.",
            "No match.",
        )
        return text.assembled(())
    if query.mode == "full":
        return _full(text, hits, length)
    write = _entry if query.mode == "catalog" else _line
    gap = "\n\n" if query.mode == "catalog" else "\n"
    shown: list[str] = []
    for hit in hits:
        if not text.add(gap, write(hit, length)):
            break
        shown.append(hit.document.uri)
    text.end(_closing(text, len(shown), len(hits)))
    return text.assembled(shown)


class _Text:
    """A text that grows while it fits."""

    def __init__(self, limit: int, count: Counter) -> None:
        self.limit = limit
        self.count = count
        self.text = ""
        self.tokens = 0

    def add(self, gap: str, piece: str) -> bool:
        """Whether it fitted; if not, nothing was added."""
        longer = self._with(gap, piece)
        tokens = self.count(longer)
        if tokens > self.limit:
            return False
        self.text, self.tokens = longer, tokens
        return True

    def fits(self, gap: str, piece: str) -> bool:
        return self.count(self._with(gap, piece)) <= self.limit

    def _with(self, gap: str, piece: str) -> str:
        return self.text + gap + piece if self.text else piece

    def end(self, *closings: str) -> None:
        """Add the first of them that fits."""
        any(self.add(SEPARATOR, closing) for closing in closings)

    def assembled(self, uris: Sequence[str]) -> RenderedText:
        return RenderedText(self.text, MARKDOWN, len(uris), tuple(uris), self.tokens, self.limit)


def _full(text: _Text, hits: Sequence[Hit], length: Length) -> RenderedText:
    shown: list[str] = []
    left_out: list[Hit] = []
    for hit in hits:
        # Part of something is not shown where something better is not shown at all.
        if _add_whole(text, hit, length) or (not left_out and _add_part(text, hit, HEADING)):
            shown.append(hit.document.uri)
        else:
            left_out.append(hit)
    if not shown:
        tries = ((hit, at) for hit in left_out[:MAX_TRIED] for at in (HEADING, PARAGRAPH))
        if part := next((hit for hit, at in tries if _add_part(text, hit, at)), None):
            shown.append(part.document.uri)
            left_out.remove(part)
    if not left_out:
        text.end(_closing(text, len(shown), len(hits)))
        return text.assembled(shown)
    closing = _closing(text, len(shown), len(hits)) + " Left out for lack of space:"
    lines = [f"\n- {_line(hit, length)}" for hit in left_out]
    listed = _most(
        len(lines), lambda number: text.fits(SEPARATOR, closing + "".join(lines[:number]))
    )
    if not listed or not text.add(SEPARATOR, closing + "".join(lines[:listed])):
        # Where nothing is shown, the best one's URI says more than how much there is.
        names = () if shown else (_line(left_out[0], length), left_out[0].document.uri)
        text.end(*names, _closing(text, len(shown), len(hits)))
    return text.assembled(shown)


def _closing(text: _Text, shown: int, of: int) -> str:
    return f"{shown} of {of} fragments, {text.tokens} of {text.limit} tokens up to here."


def _add_whole(text: _Text, hit: Hit, length: Length) -> bool:
    body = hit.document.body.strip()
    if length(hit.document) > text.limit - text.tokens + SLACK + len(hit.document.body) - len(body):
        return False  # without counting it again
    return text.add(SEPARATOR, _head(hit) + body)


def _add_part(text: _Text, hit: Hit, at: re.Pattern[str]) -> bool:
    """Whether as much of it fitted as ends before a line of that kind. at: HEADING or PARAGRAPH."""
    if text.limit - text.tokens < MIN_CUT_SHARE * text.limit:
        return False
    head, body, uri = _head(hit), hit.document.body.strip(), hit.document.uri
    lines = body.split("\n")
    # There is some text before a cut, not only headings.
    text_from = next(
        (number for number, line in enumerate(lines) if line.strip() and not HEADING.match(line)),
        len(lines),
    )
    cuts = [
        number
        for number, line in lines_outside_fences(body)
        if number > text_from and at.match(line)
    ]

    def part(number: int) -> str:
        return head + _cut(lines, cuts[number - 1], uri)

    most = _most(len(cuts), lambda number: text.fits(SEPARATOR, part(number)))
    return most > 0 and text.add(SEPARATOR, part(most))


def _most(highest: int, fits: Callable[[int], bool]) -> int:
    """The highest number that fits, if whatever is lower than one that fits does, too; 0 if none does."""
    reach = 1  # steps that double: nothing much longer than what fits is counted
    while reach <= highest and fits(reach):
        reach *= 2
    lowest, highest = reach // 2, min(reach - 1, highest)
    while lowest < highest:
        middle = (lowest + highest + 1) // 2
        lowest, highest = (middle, highest) if fits(middle) else (lowest, middle - 1)
    return lowest


def _head(hit: Hit) -> str:
    return f"<!-- {hit.document.uri} -->\n\n"


def _cut(lines: Sequence[str], before: int, uri: str) -> str:
    return "\n".join(lines[:before]).rstrip() + f"\n\n[cut here to fit; the whole text: {uri}]"


def _line(hit: Hit, length: Length) -> str:
    document = hit.document
    return f"{document.uri} - {_one_line(document.title)} ({length(document)} tokens)"


def _entry(hit: Hit, length: Length) -> str:
    document = hit.document
    lines = [
        f"## {_one_line(document.title)}",
        f"{document.uri} ({length(document)} tokens, score {hit.score:.2f})",
    ]
    if document.description:
        lines.append(_one_line(document.description)[:240])
    if document.tags:
        lines.append(f"Tags: {', '.join(map(_one_line, document.tags))}")
    for what, values in (("Can", document.capabilities), ("For", document.use_when)):
        lines += [f"- {what}: {_one_line(value)}" for value in values[:MAX_LISTED]]
    return "\n".join(lines)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _json(query: Query, hits: Sequence[Hit], count: Counter, length: Length) -> RenderedText:
    """Entries are left out from the end until it fits; where not even an empty list does, there is no text."""
    entries = [
        {
            "uri": hit.document.uri,
            "title": hit.document.title,
            "tokens": length(hit.document),
            "score": hit.score,
        }
        for hit in hits
    ]
    for shown in range(len(entries), -1, -1):
        whole = {
            "query": query.text[:200],
            "found": len(hits),
            "limit": query.max_tokens,
            "fragments": entries[:shown],
        }
        text = msgspec.json.encode(whole).decode()
        if count(text) <= query.max_tokens:
            uris = tuple(hit.document.uri for hit in hits[:shown])
            return RenderedText(text, JSON, shown, uris, count(text), query.max_tokens)
    text = "{}" if count("{}") <= query.max_tokens else ""
    return RenderedText(text, JSON, 0, (), count(text), query.max_tokens)
