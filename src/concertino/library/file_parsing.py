"""From a file's bytes to what a library holds: a Document, a Prompt, or a File that is only read.

What a file gets wrong is a Problem beside what could be made of it; one file never takes another away.
"""

from __future__ import annotations

import re
from hashlib import blake2b

from msgspec import Struct

from concertino.library.document import Document
from concertino.library.folder import FoundFile
from concertino.library.front_matter import FrontMatter, Value, front_matter
from concertino.library.outline import outline
from concertino.library.problems import LibraryProblem
from concertino.library.prompt_files import Argument, PromptFile
from concertino.library.uris import key_of, uri_of

__all__ = [
    "MARKDOWN",
    "ParsedFile",
    "category_of",
    "document",
    "is_markdown",
    "mime_type_of",
    "prompt",
    "text_of",
]

MARKDOWN = "text/markdown"  # RFC 7763
MAX_ITEMS = 256  # in a list of the front matter
MAX_ITEM = 1000  # characters of an item, a title, a description
MAX_NAME = 128  # characters of a prompt's name
ARGUMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


class ParsedFile(Struct, frozen=True):
    """A file that is listed and read and not searched: a picture, a table, Markdown that is not UTF-8."""

    uri: str
    category: str
    path: str
    size: int
    mtime_ns: int


def is_markdown(path: str) -> bool:
    return path.lower().endswith((".md", ".markdown"))


def category_of(path: str) -> str:
    """The first folder; empty for a file in none."""
    return path.partition("/")[0] if "/" in path else ""


def mime_type_of(path: str) -> str | None:
    """By the name's ending, as the standard library's own table has it; what a machine knows besides differs from the next."""
    if is_markdown(path):
        return MARKDOWN
    from mimetypes import MimeTypes  # only for files that are no Markdown

    kind, encoding = MimeTypes(filenames=()).guess_type(path, strict=False)
    return "application/octet-stream" if encoding else kind


def text_of(data: bytes) -> str | None:
    """UTF-8 without its byte order mark; None for what is no text: other encodings, and whatever holds a NUL."""
    try:
        return None if b"\0" in data else data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def document(
    scheme: str, found: FoundFile, data: bytes
) -> tuple[Document | None, list[LibraryProblem]]:
    """A Markdown file as a document; None if it is not UTF-8."""
    text = text_of(data)
    if text is None:
        return None, [_not_text(data)]
    head = front_matter(text)
    problems = list(head.problems)
    values = _Values(head, problems)
    use_when, capabilities = values.texts("useWhen"), values.texts("capabilities")
    title, description = values.text("title"), values.text("description")
    if not (title and description and use_when and capabilities):
        said = outline(head.body, lists=not (use_when and capabilities))
        title, description = title or said.title, description or said.description
        use_when, capabilities = use_when or said.use_when, capabilities or said.capabilities
    key = key_of(found.path)
    stem = _shown(found.path.rpartition("/")[2].rpartition(".")[0] or key)
    tokens = values.number("estimatedTokens")
    return Document(
        uri=uri_of(scheme, key),
        category=_shown(category_of(found.path)),
        id=values.text("id") or stem,
        title=title or stem.replace("-", " ").replace("_", " "),
        description=description,
        tags=values.texts("tags"),
        capabilities=capabilities,
        use_when=use_when,
        body=head.body,
        estimated_tokens=tokens,
        related=values.texts("relatedResources"),
        path=found.path,
        size=len(data),
        mtime_ns=found.mtime_ns,
        digest=blake2b(data, digest_size=16).hexdigest(),
    ), problems


def prompt(found: FoundFile, data: bytes) -> tuple[PromptFile | None, list[LibraryProblem]]:
    """A Markdown file as a prompt; None if it is not UTF-8."""
    text = text_of(data)
    if text is None:
        return None, [_not_text(data)]
    head = front_matter(text)
    problems = list(head.problems)
    values = _Values(head, problems)
    stem = _shown(found.path.rpartition("/")[2].rpartition(".")[0])
    name = values.text("name") or stem
    if len(name) > MAX_NAME or not name.isprintable():
        problems.append(
            LibraryProblem(
                "field",
                0,
                f"name: expected 1 to {MAX_NAME} printable characters, got {name[:40]!r}",
            )
        )
        name = stem[:MAX_NAME]
    said = outline(head.body, lists=False)
    return PromptFile(
        name=name,
        title=values.text("title") or None,
        description=values.text("description") or said.description or None,
        arguments=tuple(_arguments(head.values.get("arguments"), problems)),
        body=head.body,
        path=found.path,
        digest=blake2b(data, digest_size=16).hexdigest(),
    ), problems


def _arguments(value: Value, problems: list[LibraryProblem]) -> list[Argument]:
    """`arguments:` as a list of mappings, or of names alone."""
    found: dict[str, Argument] = {}
    if value is not None and not isinstance(value, list):
        problems.append(
            LibraryProblem("field", 0, f"arguments: expected a list, got {_kind(value)}")
        )
        return []
    for number, each in enumerate((value or [])[:MAX_ITEMS]):
        where = f"arguments[{number}]"
        given = {"name": each} if isinstance(each, str) else each
        name = given.get("name") if isinstance(given, dict) else None
        if (
            not isinstance(given, dict)
            or not isinstance(name, str)
            or ARGUMENT.fullmatch(name) is None
        ):
            text = f"{where}.name: expected a letter, then letters, digits and _ . -, got {str(name)[:40]!r}: left out"
            problems.append(LibraryProblem("field", 0, text))
            continue
        if name in found:
            problems.append(
                LibraryProblem("field", 0, f"{where}.name: there is {name!r} already: left out")
            )
            continue
        required = str(given.get("required") or "false").lower()
        if required not in TRUTH:
            text = (
                f"{where}.required: expected true or false, got {required[:40]!r}: taken as false"
            )
            problems.append(LibraryProblem("field", 0, text))
        description, default = given.get("description"), given.get("default")
        choices = given.get("values")
        found[name] = Argument(
            name,
            description[:MAX_ITEM] if isinstance(description, str) else None,
            TRUTH.get(required, False),
            # `default:` with nothing behind it is the empty text
            ("" if default is None else default if isinstance(default, str) else None)
            if "default" in given
            else None,
            tuple(each for each in choices if isinstance(each, str))
            if isinstance(choices, list)
            else (),
        )
    return list(found.values())


TRUTH = {
    "true": True,
    "yes": True,
    "on": True,
    "false": False,
    "no": False,
    "off": False,
}  # YAML 1.1


class _Values:
    """Fields of a front matter. problems: is told of those that are something else than they should be."""

    def __init__(self, head: FrontMatter, problems: list[LibraryProblem]) -> None:
        self._values = head.values
        self._problems = problems

    def text(self, name: str) -> str:
        value = self._values.get(name)
        if isinstance(value, (list, dict)):
            self._problems.append(
                LibraryProblem("field", 0, f"{name}: expected a text, got {_kind(value)}")
            )
            return ""
        return " ".join((value or "").split())[:MAX_ITEM]

    def texts(self, name: str) -> tuple[str, ...]:
        """A list; a text alone is a list of one, or of several between commas if they are tags."""
        value = self._values.get(name)
        if isinstance(value, dict):
            self._problems.append(
                LibraryProblem("field", 0, f"{name}: expected a list, got {_kind(value)}")
            )
            return ()
        if isinstance(value, str):
            value = [*value.split(",")] if name == "tags" else [value]
        items = [
            " ".join(each.split())[:MAX_ITEM]
            for each in map(_item, value or ())
            if isinstance(each, str)
        ]
        if len(items) < len(value or ()):
            self._problems.append(
                LibraryProblem(
                    "field", 0, f"{name}: expected a list of texts; what is none is left out"
                )
            )
        if len(items) > MAX_ITEMS:
            self._problems.append(
                LibraryProblem(
                    "field", 0, f"{name}: has {len(items)} items; the first {MAX_ITEMS} count"
                )
            )
        return tuple(filter(None, items[:MAX_ITEMS]))

    def number(self, name: str) -> int | None:
        text = self.text(name)
        if not text:
            return None
        if text.isdecimal() and len(text) < 10:
            return int(text)
        self._problems.append(
            LibraryProblem("field", 0, f"{name}: expected a whole number, got {text[:40]!r}")
        )
        return None


def _item(value: Value) -> Value:
    """A text with a colon and a space in it is a mapping to YAML, and was meant as a text: `- Caching: when and where`."""
    if isinstance(value, dict) and len(value) == 1:
        ((name, rest),) = value.items()
        return f"{name}: {rest}" if isinstance(rest, str) else name if rest is None else value
    return value


def _kind(value: Value) -> str:
    return (
        "a list"
        if isinstance(value, list)
        else "a mapping"
        if isinstance(value, dict)
        else "a text"
    )


def _shown(name: str) -> str:
    """A name of the file system as a text that JSON can hold: bytes that are no UTF-8 become U+FFFD."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _not_text(data: bytes) -> LibraryProblem:
    if b"\0" in data:
        return LibraryProblem("unreadable", 0, "holds a NUL: no text, so it is not searched")
    try:
        data.decode()
    except UnicodeDecodeError as why:
        return LibraryProblem(
            "unreadable",
            1 + data.count(b"\n", 0, why.start),
            f"is not UTF-8 at byte {why.start}: not searched",
        )
    return LibraryProblem("unreadable", 0, "is no text: not searched")
