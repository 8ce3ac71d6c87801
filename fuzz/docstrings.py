"""docstrings.parse_docstring: any text gives a description and parameters, which are words of the
text
itself, in order, and nothing raises.

Input: a docstring as UTF-8; what is no UTF-8 is replaced.
"""

from __future__ import annotations

from inspect import cleandoc

from concertino.schema.docstrings import parse_docstring

__all__ = ["MAX_BYTES", "TOKENS", "one"]

MAX_BYTES = 512
TOKENS = (
    *(
        b"Args:\n    ",
        b"a: text",
        b"a (int): text",
        b"Returns:\n    ",
        b"Raises:\n",
        b"\n\n",
        b"Parameters\n----------\n",
        b"a : int\n    ",
    ),
    *(
        b":param a: ",
        b":param int a: ",
        b":returns: ",
        b":type a: ",
        b"**kwargs: ",
        b"\\*args: ",
        b"a, b: ",
        b"Note:\n",
        b"\t",
        b"=====",
    ),
)


def one(data: bytes) -> None:
    """See the head of this file."""
    text = data.decode("utf-8", "replace")
    doc = parse_docstring(text)
    clean = cleandoc(text)
    lines = [line.strip() for line in clean.split("\n")]
    if doc.description is not None:
        assert doc.description, "an empty description is None"
        assert clean.strip().startswith(doc.description), (
            "the description is the beginning, as it is written"
        )
    words = set(clean.split())
    for name, said in doc.parameters.items():
        assert name.isidentifier() or name.replace("_", "a").isalnum() or ":" not in name, (
            f"{name!r} is no name"
        )
        assert any(name in line for line in lines), f"{name!r} does not stand there"
        assert said == said.strip()
        assert said, "a parameter without a text has no entry"
        for word in said.split():
            # What stands behind a colon may begin in the middle of a word.
            assert word in words or any(item.endswith(word) for item in words), (
                f"{word!r} of {name!r} does not stand there"
            )
