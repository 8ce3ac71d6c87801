"""Renders search hits as a text that never exceeds its token budget.

A *fragment* is a document in such a text, whole or in part. The mode of the query decides what the
text shows:

    full     whole documents, best first. The first one that does not fit is cut before a heading,
             with a note that has its URI. Later documents that do not fit are left out.
    catalog  a few lines for each document: title, URI, length, purposes
    index    one line for each document: URI, title, length
    minimal  JSON: URI, title, length and score of each document

If no document fits as a whole in mode `full`, the best one with a short enough beginning is cut
before a heading, or else between two paragraphs. No document is cut inside a code block. A closing
line has the number of fragments, and as many URIs of documents that were left out as fit.

Before a piece of text is added, the tokens of the whole text with this piece are counted, because
two joined texts may have more tokens than the sum of both.
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
from concertino.token_estimate import estimate, to_tokens, weigh

# Returns the number of tokens of a document's body.
CountBody: TypeAlias = Callable[[Document], int]

MARKDOWN = "text/markdown"
JSON = "application/json"
SEPARATOR = "\n\n---\n\n"

# A part of a document is added only if at least this share of the token budget is left.
MIN_CUT_SHARE = 0.15

# Two joined texts may also have fewer tokens than the sum of both, by at most this number. So a
# document is tried even if it exceeds the rest of the budget by this number.
SLACK = 16

# If no document fits as a whole, this many documents are tried in part.
MAX_TRIED = 5

# An entry of a catalog shows at most this many capabilities and at most this many purposes.
MAX_LISTED = 3

# Matches an empty line, if the match begins at the start of a line.
PARAGRAPH = re.compile(r"$")


class Hit(Struct, frozen=True):
    """A document that matches a query.

    score: how well the document matches; higher is better. Scores of different queries cannot be
        compared.
    """

    document: Document
    score: float


class RenderedText(Struct, frozen=True):
    """The result of a search as a text for the client.

    text: the text, in Markdown or JSON.
    mime_type: the MIME type of the text.
    fragments: how many documents the text shows, whole or in part.
    uris: the URIs of these documents.
    tokens: the number of tokens of the text; never more than `limit`.
    limit: the largest number of tokens that the query allows.
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
    count_body: CountBody | None = None,
) -> RenderedText:
    """Write search hits as a text, in the mode and within the token budget of the query.

    If the documents do not fit into the budget, the text has fewer of them, or a part of one.

    query: the query, for its `mode`, `max_tokens` and `text`.
    hits: the documents that match the query, best first.
    count: returns the number of tokens of a text.
    count_body: returns the number of tokens of a document's body, for example from a cache; None to
        count them with `count`.
    """
    if count_body is None:
        return render(query, hits, count, lambda document: count(document.body))
    if query.mode == "minimal":
        return _render_json(query, hits, count, count_body)

    text = _BudgetedText(query.max_tokens, count)
    if not hits:
        text.add_first_fitting(
            f"No fragment matches {query.text[:80]!r}.",
            f"No fragment matches {query.text[:20]!r}.",
            "No match.",
        )
        return text.to_result(())
    if query.mode == "full":
        return _render_full(text, hits, count_body)
    return _render_entries(text, hits, count_body, catalog=query.mode == "catalog")


class _BudgetedText:
    """A text with a token budget. add() adds a piece of text if it fits into the budget.

    limit: the budget, in tokens.
    count: returns the number of tokens of a text.

    Attributes:
    text: the text so far.
    tokens: the number of tokens of the text so far.
    """

    def __init__(self, limit: int, count: Counter) -> None:
        self.limit = limit
        self.count = count
        self.text = ""
        self.tokens = 0
        # The weight of the text, if `count` is the estimate: a number that to_tokens() converts to
        # tokens. The weights of two texts can be added, so the old text is not counted again.
        self._weight = 0

    def add(self, gap: str, piece: str) -> bool:
        """Add a piece of text if it fits into the budget. Returns whether it was added.

        gap: the text between the present text and the piece; it begins with a newline. It is left
            out if there is no text yet.
        """
        tokens = self._count_with(gap, piece)
        if tokens > self.limit:
            return False
        if self.count is estimate:
            self._weight += weigh(gap + piece if self.text else piece)
        self.text, self.tokens = self._joined(gap, piece), tokens
        return True

    def fits(self, gap: str, piece: str) -> bool:
        """Return whether add() would add the piece."""
        return self._count_with(gap, piece) <= self.limit

    def _count_with(self, gap: str, piece: str) -> int:
        """Return the tokens of the text with one more piece."""
        # With the estimate, only the new piece must be counted.
        if self.count is estimate and self.text:
            return to_tokens(self._weight + weigh(gap + piece))
        return self.count(self._joined(gap, piece))

    def _joined(self, gap: str, piece: str) -> str:
        return self.text + gap + piece if self.text else piece

    def add_first_fitting(self, *closings: str) -> None:
        """Add the first of these closing lines that fits into the budget, if any of them does."""
        for closing in closings:
            if self.add(SEPARATOR, closing):
                return

    def to_result(self, uris: Sequence[str]) -> RenderedText:
        """Return the text as a RenderedText.

        uris: the URIs of the documents in the text.
        """
        return RenderedText(
            text=self.text,
            mime_type=MARKDOWN,
            fragments=len(uris),
            uris=tuple(uris),
            tokens=self.tokens,
            limit=self.limit,
        )


def _render_entries(
    text: _BudgetedText,
    hits: Sequence[Hit],
    count_body: CountBody,
    *,
    catalog: bool,
) -> RenderedText:
    """Render the mode `catalog` or `index`: as many entries as fit, and a closing line.

    text: an empty text with the budget.
    catalog: True for the mode `catalog`, False for `index`.
    """
    make_entry = _catalog_entry if catalog else _index_line
    gap = "\n\n" if catalog else "\n"
    uris: list[str] = []
    for hit in hits:
        if not text.add(gap, make_entry(hit, count_body)):
            break
        uris.append(hit.document.uri)
    text.add_first_fitting(_closing(text, len(uris), len(hits)))
    return text.to_result(uris)


def _render_full(text: _BudgetedText, hits: Sequence[Hit], count_body: CountBody) -> RenderedText:
    """Render the mode `full`: whole documents, best first.

    The first document that does not fit is cut before a heading. If no document fits as a whole,
    one is cut before a heading or between two paragraphs.
    """
    uris: list[str] = []
    left_out: list[Hit] = []
    for hit in hits:
        # Do not add a part of a document if a better document is left out completely.
        if _add_whole(text, hit, count_body) or (not left_out and _add_part(text, hit, HEADING)):
            uris.append(hit.document.uri)
        else:
            left_out.append(hit)

    if not uris:
        added = _add_first_part(text, left_out[:MAX_TRIED])
        if added is not None:
            uris.append(added.document.uri)
            left_out.remove(added)

    if left_out:
        _add_left_out(text, len(uris), left_out, len(hits), count_body)
    else:
        text.add_first_fitting(_closing(text, len(uris), len(hits)))
    return text.to_result(uris)


def _add_first_part(text: _BudgetedText, hits: Sequence[Hit]) -> Hit | None:
    """Add a part of the first document of which a part fits. Returns its hit; None if none fits."""
    for hit in hits:
        if _add_part(text, hit, HEADING) or _add_part(text, hit, PARAGRAPH):
            return hit
    return None


def _add_left_out(
    text: _BudgetedText,
    added: int,
    left_out: Sequence[Hit],
    total: int,
    count_body: CountBody,
) -> None:
    """Add the closing line, and lines about left-out documents while they fit.

    added: the number of documents in the text.
    total: the number of hits.
    """
    closing = _closing(text, added, total)
    start = closing + " Left out for lack of space:"
    lines = [f"\n- {_index_line(hit, count_body)}" for hit in left_out]
    line_count = _largest(
        len(lines), lambda number: text.fits(SEPARATOR, start + "".join(lines[:number]))
    )
    if not line_count:
        # No line fits. If the text has no document, the URI of the best one is more useful than
        # numbers.
        best = left_out[0]
        names = () if added else (_index_line(best, count_body), best.document.uri)
        text.add_first_fitting(*names, closing)
        return
    text.add(SEPARATOR, start + "".join(lines[:line_count]))


def _closing(text: _BudgetedText, added: int, total: int) -> str:
    return f"{added} of {total} fragments, {text.tokens} of {text.limit} tokens up to here."


def _add_whole(text: _BudgetedText, hit: Hit, count_body: CountBody) -> bool:
    """Add a whole document if it fits. Returns whether it was added."""
    body = hit.document.body.strip()
    # Skip counting the joined text if the document is clearly too long. Each character that strip()
    # has removed may have been a token.
    stripped = len(hit.document.body) - len(body)
    if count_body(hit.document) > text.limit - text.tokens + SLACK + stripped:
        return False
    return text.add(SEPARATOR, _comment(hit) + body)


def _add_part(text: _BudgetedText, hit: Hit, boundary: re.Pattern[str]) -> bool:
    """Add the longest beginning of a document that fits. Returns False if no beginning fits.

    boundary: HEADING or PARAGRAPH. The beginning ends before a line that matches this pattern.
    """
    if text.limit - text.tokens < MIN_CUT_SHARE * text.limit:
        return False
    head, body, uri = _comment(hit), hit.document.body.strip(), hit.document.uri
    lines = body.split("\n")

    # A beginning must contain text, not only headings.
    first_text = next(
        (number for number, line in enumerate(lines) if line.strip() and not HEADING.match(line)),
        len(lines),
    )
    # The numbers of the lines before which the document may be cut.
    cuts = [
        number
        for number, line in lines_outside_fences(body)
        if number > first_text and boundary.match(line)
    ]

    def part_before(before: int) -> str:
        return head + _cut(lines, before, uri)

    # How many of the cuts come so early that the part before them fits.
    fitting = _largest(
        len(cuts), lambda number: text.fits(SEPARATOR, part_before(cuts[number - 1]))
    )
    return fitting > 0 and text.add(SEPARATOR, part_before(cuts[fitting - 1]))


def _largest(highest: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number from 1 to `highest` for which fits() is true; 0 if there is none.

    fits: if fits() is true for a number, it must be true for all lower numbers.
    """
    # Double the number first, then bisect. So the tokens of a text that is more than twice as long
    # as the result are never counted, which would take long.
    reach = 1
    while reach <= highest and fits(reach):
        reach *= 2
    # From now on, the result is one of the numbers from `lowest` to `highest`.
    lowest, highest = reach // 2, min(reach - 1, highest)
    while lowest < highest:
        middle = (lowest + highest + 1) // 2
        lowest, highest = (middle, highest) if fits(middle) else (lowest, middle - 1)
    return lowest


def _comment(hit: Hit) -> str:
    return f"<!-- {hit.document.uri} -->\n\n"


def _cut(lines: Sequence[str], before: int, uri: str) -> str:
    return "\n".join(lines[:before]).rstrip() + f"\n\n[cut here to fit; the whole text: {uri}]"


def _index_line(hit: Hit, count_body: CountBody) -> str:
    document = hit.document
    return f"{document.uri} - {_one_line(document.title)} ({count_body(document)} tokens)"


def _catalog_entry(hit: Hit, count_body: CountBody) -> str:
    document = hit.document
    lines = [
        f"## {_one_line(document.title)}",
        f"{document.uri} ({count_body(document)} tokens, score {hit.score:.2f})",
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
    count_body: CountBody,
) -> RenderedText:
    """Render the mode `minimal`: entries are dropped from the end until the JSON text fits.

    If it does not fit even without entries, the text is `{}` or empty.
    """
    entries = [
        {
            "uri": hit.document.uri,
            "title": hit.document.title,
            "tokens": count_body(hit.document),
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
            return RenderedText(
                text=text, mime_type=JSON, fragments=number, uris=uris, tokens=tokens, limit=limit
            )
    text = "{}" if count("{}") <= limit else ""
    return RenderedText(
        text=text, mime_type=JSON, fragments=0, uris=(), tokens=count(text), limit=limit
    )
