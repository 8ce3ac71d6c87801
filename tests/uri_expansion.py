"""Expansion of URI templates (RFC 6570), to check what our templates match.

A reading of its own, independent of concertino.schema.uri_template; the official vectors in
tests/interop/test_uri_template_vectors.py prove it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

RESERVED = ":/?#[]@!$&'()*+,;="
# operator -> first, separator, whether values are named, text for an empty value, safe characters
OPERATORS = {
    "": ("", ",", False, "", ""),
    "+": ("", ",", False, "", RESERVED),
    "#": ("#", ",", False, "", RESERVED),
    ".": (".", ".", False, "", ""),
    "/": ("/", "/", False, "", ""),
    ";": (";", ";", True, "", ""),
    "?": ("?", "&", True, "=", ""),
    "&": ("&", "&", True, "=", ""),
}


def expand(template: str, values: Mapping[str, Any]) -> str:
    """Return the URI for these values. Raises ValueError for a prefix of a list or dict."""
    parts = re.split(r"\{([+#./;?&]?)([^}]*)\}", template)
    uri = encode(parts[0], RESERVED)
    for operator, variables, literal in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        first, separator, *_ = OPERATORS[operator]
        texts = [
            text
            for name in variables.split(",")
            for text in expand_variable(name, operator, values)
        ]
        uri += first + separator.join(texts) if texts else ""
        uri += encode(literal, RESERVED)
    return uri


def encode(text: str, safe: str) -> str:
    if not safe:
        return quote(text, safe="~")
    parts = re.split("(%[0-9A-Fa-f]{2})", text)
    return "".join(part if i % 2 else quote(part, safe=safe + "~") for i, part in enumerate(parts))


def expand_variable(variable: str, operator: str, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts that one variable adds to its expression."""
    _, _, named, empty, safe = OPERATORS[operator]
    star = variable.endswith("*")
    name, _, prefix = variable.removesuffix("*").partition(":")
    value = values.get(name)

    def with_name(text: str) -> str:
        return (f"{name}={text}" if text else name + empty) if named else text

    if value is None:
        return
    if not isinstance(value, list | dict):
        yield with_name(encode(str(value)[: int(prefix) if prefix else None], safe))
        return
    if prefix:
        raise ValueError(f"{variable}: a list or dict has no prefix")
    if isinstance(value, list):
        texts = [encode(str(item), safe) for item in value]
        joined = ",".join(texts)
        texts = [with_name(text) for text in texts]
    else:
        pairs = [(encode(key, safe), encode(str(item), safe)) for key, item in value.items()]
        joined = ",".join(f"{key},{item}" for key, item in pairs)
        texts = [f"{key}={item}" for key, item in pairs]
    if texts:
        yield from texts if star else [with_name(joined)]
