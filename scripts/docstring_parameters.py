"""An extension of griffe for the documentation site: parameters in docstrings become a list.

The docstrings of this project describe parameters in lines such as `path: the file to read.`
Markdown would join these lines into one paragraph.
"""

from __future__ import annotations

import re

import griffe

# One or more names at the beginning of a line or a sentence, then a colon and a space.
PARAMETER = re.compile(r"(?:^|(?<=\. ))(\*{0,2}\w+(?:, \*{0,2}\w+)*): (?=\S)", re.MULTILINE)


class Parameters(griffe.Extension):
    """Rewrites the docstrings of functions and classes."""

    def on_function(self, *, func: griffe.Function, **kwargs: object) -> None:
        names = {parameter.name.lstrip("*") for parameter in func.parameters}
        change(func, names)

    def on_class(self, *, cls: griffe.Class, **kwargs: object) -> None:
        names = set(cls.attributes)
        if isinstance(init := cls.members.get("__init__"), griffe.Function):
            names |= {parameter.name.lstrip("*") for parameter in init.parameters}
        change(cls, names)


def change(item: griffe.Function | griffe.Class, names: set[str]) -> None:
    """Make a list of what describes these names."""
    if item.docstring is not None:
        item.docstring.value = as_list(item.docstring.value, names)


def as_list(text: str, names: set[str]) -> str:
    """Return a docstring whose descriptions of parameters are the items of a list.

    Such a description begins at the beginning of a line, or behind a full stop, and ends before the
    next one, a line that says what is returned or raised, or an empty line.
    """
    blocks: list[str] = []
    for block in re.split(r"\n(?=\n|Returns? |Raises )", text):
        starts = [
            found.start()
            for found in PARAMETER.finditer(block)
            if names.issuperset(re.findall(r"\w+", found[1]))
        ]
        if not starts:
            blocks.append(block)
            continue
        before = block[: starts[0]].rstrip()
        parts = zip(starts, [*starts[1:], None], strict=True)
        items = [" ".join(block[start:end].split()) for start, end in parts]
        listed = "\n".join(f"- {PARAMETER.sub(mark, item, count=1)}" for item in items)
        blocks.append(f"{before}\n\n{listed}\n")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(blocks))


def mark(found: re.Match[str]) -> str:
    """Return the names of a description as code."""
    return ", ".join(f"`{name}`" for name in found[1].split(", ")) + ": "
