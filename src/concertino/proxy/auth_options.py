"""The key `auth` of a server under `x-concertino`: how to obtain access to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from concertino.authorization.settings import GRANTS, OAuth
from concertino.proxy.file_values import FileValue
from concertino.proxy.value_reader import Template, ValueReader

__all__ = ["AuthTexts", "make_settings", "read_auth"]

# Member -> its text, in which `${...}` is not replaced yet. Scopes are joined by blanks.
AuthTexts = Mapping[str, Template]
KEYS = (
    "client_id", "client_secret", "issuer", "client_metadata_url", "private_key", "key_algorithm",
    "grant", "scopes",
)  # fmt: skip


def read_auth(reader: ValueReader, value: FileValue, label: str) -> AuthTexts:
    """Return the settings in an object. Raises InvalidServerFile if they do not belong together."""
    texts: dict[str, Template] = {}
    for name, member in reader.known_members(value, label, KEYS).items():
        item, place = member.value, f"{label}.{name}"
        if name == "scopes":
            texts[name] = Template(" ".join(reader.texts(item, place)), item.line, item.column)
        elif name == "grant":
            texts[name] = Template(reader.choice(item, place, GRANTS), item.line, item.column)
        else:
            texts[name] = reader.template(item, place)
    try:
        make_settings({name: template.text for name, template in texts.items()})
    except ValueError as exc:
        raise reader.error(value, label, str(exc)) from None
    return texts


def make_settings(texts: Mapping[str, str]) -> OAuth:
    """Return the settings, with everything replaced. Raises ValueError."""
    fields: dict[str, Any] = dict(texts)
    if "scopes" in fields:
        fields["scopes"] = tuple(fields["scopes"].split())
    return OAuth(**fields)
