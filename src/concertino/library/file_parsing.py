"""Parses the files of a library: a Markdown file becomes a Document or a PromptFile.

The functions return the defects of a file as LibraryProblems, together with the result. A file that
is not Markdown, or not UTF-8, becomes a PlainFile, which clients can read but not search.
"""

from __future__ import annotations

import re
from hashlib import blake2b

from msgspec import Struct

from concertino.library.document import Document
from concertino.library.folder import FoundFile
from concertino.library.front_matter import FrontMatter, Value, parse_front_matter
from concertino.library.outline import parse_outline
from concertino.library.problems import LibraryProblem
from concertino.library.prompt_files import Argument, PromptFile
from concertino.library.uris import key_of, uri_of

# RFC 7763.
MARKDOWN = "text/markdown"

# The largest number of items of a list in the front matter.
MAX_ITEMS = 256
# The largest number of characters of a list item, a title or a description.
MAX_TEXT = 1000
# The largest number of characters of a prompt's name.
MAX_NAME = 128

# A message quotes at most this many characters of a wrong value.
QUOTED = 40

ARGUMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")

# The booleans of YAML 1.1, in lower case.
BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


class PlainFile(Struct, frozen=True):
    """A file that clients can list and read but not search: an image, or text not in UTF-8.

    uri: the URI that follows from the path.
    category: the first directory of the path; "" for a file at the top.
    path: the path relative to the directory of resources, with `/` as separator.
    size: the size of the file, in bytes.
    mtime_ns: the modification time of the file, in nanoseconds.
    """

    uri: str
    category: str
    path: str
    size: int
    mtime_ns: int


def is_markdown(path: str) -> bool:
    """Return whether a path ends with `.md` or `.markdown`."""
    return path.lower().endswith((".md", ".markdown"))


def category_of(path: str) -> str:
    """Return the first directory of a path; "" for a file at the top."""
    return path.partition("/")[0] if "/" in path else ""


def mime_type_of(path: str) -> str | None:
    """Return the MIME type for the path's suffix; None for an unknown suffix.

    The type is the same on every machine.
    """
    if is_markdown(path):
        return MARKDOWN
    # Imported here because a library of Markdown does not need it.
    from mimetypes import MimeTypes

    # Without file names, only the standard library's own table is used, and none of the system's.
    kind, encoding = MimeTypes(filenames=()).guess_type(path, strict=False)
    return "application/octet-stream" if encoding else kind


def decode_text(data: bytes) -> str | None:
    """Decode the bytes of a file as UTF-8, and remove a byte order mark.

    Returns None if the file is no text: if it is not UTF-8 or contains a NUL.
    """
    try:
        return None if b"\0" in data else data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def parse_document(
    scheme: str, found: FoundFile, data: bytes
) -> tuple[Document | None, list[LibraryProblem]]:
    """Return the Document for a Markdown file, and the defects of the file.

    scheme: the scheme of the document's URI.
    found: the file as it was listed, with its path.
    data: the bytes of the file.
    Returns None in place of the Document if the file is no text in UTF-8. Raises ConcertinoError if
    the file has front matter and PyYAML is not installed.
    """
    text = decode_text(data)
    if text is None:
        return None, [_describe_undecodable(data)]
    head = parse_front_matter(text)
    fields = _Fields(head)

    # Take missing fields from headings and lists of the body.
    use_when, capabilities = fields.texts("useWhen"), fields.texts("capabilities")
    title, description = fields.text("title"), fields.text("description")
    if not (title and description and use_when and capabilities):
        outline = parse_outline(head.body, lists=not (use_when and capabilities))
        title, description = title or outline.title, description or outline.description
        use_when = use_when or outline.use_when
        capabilities = capabilities or outline.capabilities

    key = key_of(found.path)
    stem = _replace_invalid_bytes(found.path.rpartition("/")[2].rpartition(".")[0])
    document = Document(
        uri=uri_of(scheme, key),
        category=_replace_invalid_bytes(category_of(found.path)),
        id=fields.text("id") or stem,
        title=title or stem.replace("-", " ").replace("_", " "),
        description=description,
        tags=fields.texts("tags"),
        capabilities=capabilities,
        use_when=use_when,
        body=head.body,
        estimated_tokens=fields.number("estimatedTokens"),
        related=fields.texts("relatedResources"),
        path=found.path,
        size=len(data),
        mtime_ns=found.mtime_ns,
        digest=blake2b(data, digest_size=16).hexdigest(),
    )
    return document, fields.problems


def parse_prompt(found: FoundFile, data: bytes) -> tuple[PromptFile | None, list[LibraryProblem]]:
    """Return the PromptFile for a Markdown file, and the defects of the file.

    found: the file as it was listed, with its path.
    data: the bytes of the file.
    Returns None in place of the PromptFile if the file is no text in UTF-8. Raises ConcertinoError
    if the file has front matter and PyYAML is not installed.
    """
    text = decode_text(data)
    if text is None:
        return None, [_describe_undecodable(data)]
    head = parse_front_matter(text)
    fields = _Fields(head)

    stem = _replace_invalid_bytes(found.path.rpartition("/")[2].rpartition(".")[0])
    name = fields.text("name") or stem
    if len(name) > MAX_NAME or not name.isprintable():
        fields.add_problem(
            f"name: expected 1 to {MAX_NAME} printable characters, got {name[:QUOTED]!r}"
        )
        name = stem[:MAX_NAME]

    outline = parse_outline(head.body, lists=False)
    prompt = PromptFile(
        name=name,
        title=fields.text("title") or None,
        description=fields.text("description") or outline.description or None,
        arguments=tuple(_parse_arguments(fields)),
        body=head.body,
        path=found.path,
        digest=blake2b(data, digest_size=16).hexdigest(),
    )
    return prompt, fields.problems


def _parse_arguments(fields: _Fields) -> list[Argument]:
    """Return the arguments in the field `arguments`, a list of mappings or of names.

    Invalid items are left out and added to the problems of `fields`.
    """
    value = fields.values.get("arguments")
    if value is None:
        return []
    if not isinstance(value, list):
        fields.add_problem(f"arguments: expected a list, got {_kind(value)}")
        return []

    found: dict[str, Argument] = {}
    for number, item in enumerate(value[:MAX_ITEMS]):
        where = f"arguments[{number}]"
        # `- city` is short for `- name: city`.
        values: Value = {"name": item} if isinstance(item, str) else item
        name = values.get("name") if isinstance(values, dict) else None
        if (
            not isinstance(values, dict)
            or not isinstance(name, str)
            or ARGUMENT_NAME.fullmatch(name) is None
        ):
            fields.add_problem(
                f"{where}.name: expected a letter or _, then letters, digits and _ . -,"
                f" got {str(name)[:QUOTED]!r}: left out"
            )
        elif name in found:
            fields.add_problem(f"{where}.name: there is {name!r} already: left out")
        else:
            found[name] = _parse_argument(name, values, where, fields)
    return list(found.values())


def _parse_argument(
    name: str,
    values: dict[str, Value],
    where: str,
    fields: _Fields,
) -> Argument:
    """Return one argument of a prompt. An invalid `required` is added to the problems of `fields`.

    values: the mapping in the front matter.
    where: the place of the mapping, such as `arguments[0]`, for problems.
    """
    # In front matter, `required: true` has the text "true" as its value (front_matter.py).
    required = str(values.get("required") or "false").lower()
    if required not in BOOLEANS:
        fields.add_problem(
            f"{where}.required: expected true or false, got {required[:QUOTED]!r}: taken as false"
        )

    description, default = values.get("description"), values.get("default")
    # `default:` without a value is the empty text.
    if default is None and "default" in values:
        default = ""
    choices = values.get("values")
    if not isinstance(choices, list):
        choices = []
    return Argument(
        name=name,
        description=description[:MAX_TEXT] if isinstance(description, str) else None,
        required=BOOLEANS.get(required, False),
        default=default if isinstance(default, str) else None,
        values=tuple(choice for choice in choices if isinstance(choice, str)),
    )


class _Fields:
    """Reads the fields of front matter, in which every scalar is a text (front_matter.py).

    head: the parsed front matter.

    Attributes:
    values: the value of each field.
    problems: the defects of the front matter. The methods add a problem for each value of the wrong
        type.
    """

    def __init__(self, head: FrontMatter) -> None:
        self.values = head.values
        self.problems = list(head.problems)

    def text(self, name: str) -> str:
        """Return the string in a field, with single spaces between words.

        Returns "" if the field is missing or has a value of another type.
        """
        value = self.values.get(name)
        if isinstance(value, (list, dict)):
            self.add_problem(f"{name}: expected a text, got {_kind(value)}")
            return ""
        return " ".join((value or "").split())[:MAX_TEXT]

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the strings in a field that is a list; () if the field is missing.

        A single string counts as a list with one item. In `tags`, a single string is split at
        commas.
        """
        value = self.values.get(name)
        if isinstance(value, dict):
            self.add_problem(f"{name}: expected a list, got {_kind(value)}")
            return ()
        if isinstance(value, str):
            value = [*value.split(",")] if name == "tags" else [value]

        items = [
            " ".join(item.split())[:MAX_TEXT]
            for item in map(_join_mapping, value or ())
            if isinstance(item, str)
        ]
        if len(items) < len(value or ()):
            self.add_problem(f"{name}: expected a list of texts; other items are ignored")
        if len(items) > MAX_ITEMS:
            self.add_problem(f"{name}: has {len(items)} items; the first {MAX_ITEMS} count")
        return tuple(filter(None, items[:MAX_ITEMS]))

    def number(self, name: str) -> int | None:
        """Return the whole number of a field; None if it is missing or of the wrong type."""
        text = self.text(name)
        if not text:
            return None
        # A number of ten digits or more is a mistake.
        if text.isdecimal() and len(text) < 10:
            return int(text)
        self.add_problem(f"{name}: expected a whole number, got {text[:QUOTED]!r}")
        return None

    def add_problem(self, message: str) -> None:
        """Add a problem of a field. The message begins with the name of the field."""
        self.problems.append(LibraryProblem("field", line=0, message=message))


def _join_mapping(value: Value) -> Value:
    """Return `{"Caching": "when"}` as "Caching: when", and any other value unchanged.

    YAML reads the list item `- Caching: when` as a mapping, but its author meant a text.
    """
    if not isinstance(value, dict) or len(value) != 1:
        return value
    ((name, rest),) = value.items()
    if rest is None:
        return name
    return f"{name}: {rest}" if isinstance(rest, str) else value


def _kind(value: Value) -> str:
    if isinstance(value, list):
        return "a list"
    return "a mapping" if isinstance(value, dict) else "a text"


def _replace_invalid_bytes(name: str) -> str:
    """Return a file name with U+FFFD for each byte that is not UTF-8, so that JSON can hold it."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _describe_undecodable(data: bytes) -> LibraryProblem:
    """Return the problem of a file for which decode_text() returned None."""
    if b"\0" in data:
        return LibraryProblem("unreadable", 0, "holds a NUL: no text, so it is not searched")
    try:
        data.decode()
    except UnicodeDecodeError as exc:
        line = 1 + data.count(b"\n", 0, exc.start)
        message = f"is not UTF-8 at byte {exc.start}: not searched"
        return LibraryProblem("unreadable", line, message)
    return LibraryProblem("unreadable", 0, "is not a text file: not searched")
