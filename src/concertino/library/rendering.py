"""Renders search hits as a text that never exceeds its token budget.

full     whole fragments, best first. The first one that does not fit is cut before a heading, and
         a note with its URI is added. Later fragments that do not fit are left out, and so are
         those that have no heading to cut at. If nothing fits, the best fragment with a short
         enough beginning is cut: after its first section or, if that is too long, a paragraph
catalog  an entry of a few lines for each fragment: title, URI, length, purposes
index    one line for each fragment: URI, title, length
minimal  JSON: URI, title, length and score of each

Before anything is added, the tokens of the whole resulting text are counted, with headings,
separators and the closing line. This respects the budget with every counter, even if two joined
texts have more tokens than the sum of both. The closing line lists the fragments that were left
out, as far as there is space. No fragment is cut inside of a code block.
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
from concertino.token_estimate import estimate, round_up, weigh

# Returns the tokens of a document's body.
Length: TypeAlias = Callable[[Document], int]

MARKDOWN = "text/markdown"
JSON = "application/json"
SEPARATOR = "\n\n---\n\n"

# Share of the budget. A smaller part of a fragment is not worth its heading.
MIN_CUT_SHARE = 0.15

# Tokens that joining two texts may save.
SLACK = 16

# If no fragment fits as a whole: how many are tried in part.
MAX_TRIED = 5

# Capabilities and purposes in an entry of a catalog.
MAX_LISTED = 3

# Matches the blank line after a paragraph.
PARAGRAPH = re.compile(r"$")


class Hit(Struct, frozen=True):
    """A document that matches. score: higher is better; comparable within one query only."""

    document: Document
    score: float


class RenderedText(Struct, frozen=True):
    """A rendered search result.

    fragments: number of documents in it, whole or in part. uris: the URIs of these documents.
    tokens: length of the text by the index's token counter; never more than limit.
    """

    text: str
    mime_type: str
    fragments: int
    uris: tuple[str, ...]
    tokens: int
    limit: int


def render(
    query: Query,
    hits: Sequence[Hit],
    count: Counter,
    length: Length | None = None,
) -> RenderedText:
    """Render the hits, best first, in the mode and within the budget of the query.

    count: returns the number of tokens of a text. length: returns the number of tokens of a
    document's body, if they were counted before; None counts them now.
    """
    if length is None:
        return render(query, hits, count, lambda document: count(document.body))
    if query.mode == "minimal":
        return _render_json(query, hits, count, length)

    text = _BudgetedText(query.max_tokens, count)
    if not hits:
        text.add_first_fitting(
            f"No fragment matches {query.text[:80]!r}.",
            f"No fragment matches {query.text[:20]!r}.",
            "No match.",
        )
        return text.to_result(())
    if query.mode == "full":
        return _render_full(text, hits, length)
    return _render_entries(text, hits, length, catalog=query.mode == "catalog")


class _BudgetedText:
    """A text to which pieces are added as long as they fit."""

    def __init__(self, limit: int, count: Counter) -> None:
        self.limit = limit
        self.count = count
        self.text = ""
        self.tokens = 0
        # Of the text, for the estimate: see weigh().
        self._weight = 0

    def add(self, gap: str, piece: str) -> bool:
        """Add a piece if it fits, and return whether it did.

        gap: separates it from the text; begins with a newline.
        """
        tokens = self._count_with(gap, piece)
        if tokens > self.limit:
            return False
        if self.count is estimate:
            self._weight += weigh(gap + piece if self.text else piece)
        self.text, self.tokens = self._joined(gap, piece), tokens
        return True

    def fits(self, gap: str, piece: str) -> bool:
        """Return whether add() would succeed."""
        return self._count_with(gap, piece) <= self.limit

    def _count_with(self, gap: str, piece: str) -> int:
        """Return the tokens of the text with one more piece."""
        # The estimate need not look at the whole text again.
        if self.count is estimate and self.text:
            return round_up(self._weight + weigh(gap + piece))
        return self.count(self._joined(gap, piece))

    def _joined(self, gap: str, piece: str) -> str:
        return self.text + gap + piece if self.text else piece

    def add_first_fitting(self, *closings: str) -> None:
        """Add the first of the closings that fits; none if none does."""
        any(self.add(SEPARATOR, closing) for closing in closings)

    def to_result(self, uris: Sequence[str]) -> RenderedText:
        """Return the text as a RenderedText that shows the documents of these URIs."""
        return RenderedText(self.text, MARKDOWN, len(uris), tuple(uris), self.tokens, self.limit)


def _render_entries(
    text: _BudgetedText,
    hits: Sequence[Hit],
    length: Length,
    *,
    catalog: bool,
) -> RenderedText:
    make_entry = _catalog_entry if catalog else _index_line
    gap = "\n\n" if catalog else "\n"
    uris: list[str] = []
    for hit in hits:
        if not text.add(gap, make_entry(hit, length)):
            break
        uris.append(hit.document.uri)
    text.add_first_fitting(_closing(text, len(uris), len(hits)))
    return text.to_result(uris)


def _render_full(text: _BudgetedText, hits: Sequence[Hit], length: Length) -> RenderedText:
    uris: list[str] = []
    left_out: list[Hit] = []
    for hit in hits:
        # Do not add a part of a fragment if a better fragment is left out completely.
        if _add_whole(text, hit, length) or (not left_out and _add_part(text, hit, HEADING)):
            uris.append(hit.document.uri)
        else:
            left_out.append(hit)

    if not uris:
        attempts = ((hit, at) for hit in left_out[:MAX_TRIED] for at in (HEADING, PARAGRAPH))
        if part := next((hit for hit, at in attempts if _add_part(text, hit, at)), None):
            uris.append(part.document.uri)
            left_out.remove(part)

    if left_out:
        _add_left_out(text, len(uris), left_out, len(hits), length)
    else:
        text.add_first_fitting(_closing(text, len(uris), len(hits)))
    return text.to_result(uris)


def _add_left_out(
    text: _BudgetedText,
    added: int,
    left_out: Sequence[Hit],
    total: int,
    length: Length,
) -> None:
    """Add the closing line with as many of the fragments that are left out as fit."""
    closing = _closing(text, added, total)
    start = closing + " Left out for lack of space:"
    lines = [f"\n- {_index_line(hit, length)}" for hit in left_out]
    listed = _largest(
        len(lines), lambda number: text.fits(SEPARATOR, start + "".join(lines[:number]))
    )
    if not listed or not text.add(SEPARATOR, start + "".join(lines[:listed])):
        # If no fragment was added, the URI of the best one is more useful than numbers.
        best = left_out[0]
        names = () if added else (_index_line(best, length), best.document.uri)
        text.add_first_fitting(*names, closing)


def _closing(text: _BudgetedText, added: int, total: int) -> str:
    return f"{added} of {total} fragments, {text.tokens} of {text.limit} tokens up to here."


def _add_whole(text: _BudgetedText, hit: Hit, length: Length) -> bool:
    body = hit.document.body.strip()
    # If it is clearly too long, skip counting the joined text.
    stripped = len(hit.document.body) - len(body)
    if length(hit.document) > text.limit - text.tokens + SLACK + stripped:
        return False
    return text.add(SEPARATOR, _comment(hit) + body)


def _add_part(text: _BudgetedText, hit: Hit, at: re.Pattern[str]) -> bool:
    """Add the longest beginning that ends before a line that matches `at`, and fits.

    at: HEADING or PARAGRAPH. Returns whether there was any.
    """
    if text.limit - text.tokens < MIN_CUT_SHARE * text.limit:
        return False
    head, body, uri = _comment(hit), hit.document.body.strip(), hit.document.uri
    lines = body.split("\n")

    # A part has some text, not headings alone.
    first_text = next(
        (number for number, line in enumerate(lines) if line.strip() and not HEADING.match(line)),
        len(lines),
    )
    cuts = [
        number
        for number, line in lines_outside_fences(body)
        if number > first_text and at.match(line)
    ]

    def part(number: int) -> str:
        return head + _cut(lines, cuts[number - 1], uri)

    most = _largest(len(cuts), lambda number: text.fits(SEPARATOR, part(number)))
    return most > 0 and text.add(SEPARATOR, part(most))


def _largest(highest: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number from 1 to `highest` that fits; 0 if none does.

    Whenever a number fits, so must all lower ones.
    """
    # Doubling steps: nothing much longer than what fits is counted.
    reach = 1
    while reach <= highest and fits(reach):
        reach *= 2
    lowest, highest = reach // 2, min(reach - 1, highest)
    while lowest < highest:
        middle = (lowest + highest + 1) // 2
        lowest, highest = (middle, highest) if fits(middle) else (lowest, middle - 1)
    return lowest


def _comment(hit: Hit) -> str:
    return f"<!-- {hit.document.uri} -->\n\n"


def _cut(lines: Sequence[str], before: int, uri: str) -> str:
    return "\n".join(lines[:before]).rstrip() + f"\n\n[cut here to fit; the whole text: {uri}]"


def _index_line(hit: Hit, length: Length) -> str:
    document = hit.document
    return f"{document.uri} - {_one_line(document.title)} ({length(document)} tokens)"


def _catalog_entry(hit: Hit, length: Length) -> str:
    document = hit.document
    lines = [
        f"## {_one_line(document.title)}",
        f"{document.uri} ({length(document)} tokens, score {hit.score:.2f})",
    ]
    if document.description:
        lines.append(_one_line(document.description)[:240])
    if document.tags:
        lines.append(f"Tags: {', '.join(map(_one_line, document.tags))}")
    for label, values in (("Can", document.capabilities), ("For", document.use_when)):
        lines += [f"- {label}: {_one_line(value)}" for value in values[:MAX_LISTED]]
    return "\n".join(lines)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _render_json(
    query: Query,
    hits: Sequence[Hit],
    count: Counter,
    length: Length,
) -> RenderedText:
    """Return the mode `minimal`: entries are dropped from the end until the JSON text fits.

    Without any entries it may still be too long; then the text is `{}` or empty.
    """
    entries = [
        {
            "uri": hit.document.uri,
            "title": hit.document.title,
            "tokens": length(hit.document),
            "score": hit.score,
        }
        for hit in hits
    ]
    limit = query.max_tokens
    for number in range(len(entries), -1, -1):
        whole = {
            "query": query.text[:200],
            "found": len(hits),
            "limit": limit,
            "fragments": entries[:number],
        }
        text = msgspec.json.encode(whole).decode()
        tokens = count(text)
        if tokens <= limit:
            uris = tuple(hit.document.uri for hit in hits[:number])
            return RenderedText(text, JSON, number, uris, tokens, limit)
    text = "{}" if count("{}") <= limit else ""
    return RenderedText(text, JSON, 0, (), count(text), limit)
