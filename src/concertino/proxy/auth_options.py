"""Reads the key `auth` of a server in a server file: how to obtain an access token for the server.

The key is under `x-concertino`. Its values may contain `${...}`. read_auth() reads them as
templates from the file. When the server is started, make_settings() turns them into the OAuth
settings of a Client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from concertino.authorization.settings import GRANTS, OAuth
from concertino.proxy.file_values import FileValue
from concertino.proxy.value_reader import Template, ValueReader

__all__ = ["AuthTexts", "make_settings", "read_auth"]

# Name of a setting -> its text, in which `${...}` is not replaced yet. The text of `scopes` has
# spaces between the scopes.
AuthTexts = Mapping[str, Template]
KEYS = (
    "client_id", "client_secret", "issuer", "client_metadata_url", "private_key", "key_algorithm",
    "grant", "scopes",
)  # fmt: skip


def read_auth(reader: ValueReader, value: FileValue, label: str) -> AuthTexts:
    """Read the settings under the key `auth`: how to obtain an access token for a server.

    Returns name of a setting -> its text, in which `${...}` is not replaced yet.
    reader: checks the types of values and makes the errors, which name the file.
    value: the value of `auth`, an object such as `{"client_id": "...", "scopes": [...]}`.
    label: the path of `auth` within the file, for errors.
    Raises InvalidServerFile for an unknown key, a wrong value, and settings that exclude each
    other.
    """
    texts: dict[str, Template] = {}
    for name, member in reader.known_members(value, label, KEYS).items():
        item, place = member.value, f"{label}.{name}"
        if name == "scopes":
            texts[name] = Template(" ".join(reader.texts(item, place)), item.line, item.column)
        elif name == "grant":
            texts[name] = Template(reader.choice(item, place, GRANTS), item.line, item.column)
        else:
            texts[name] = reader.template(item, place)
    # Report settings that exclude each other already now, and not only when the server is started.
    # Only client_metadata_url must have a valid value for this, and may have none before `${...}`
    # is replaced.
    try:
        make_settings(
            {
                name: template.text
                for name, template in texts.items()
                if name != "client_metadata_url" or "${" not in template.text
            }
        )
    except ValueError as exc:
        raise reader.error(value, label, str(exc)) from None
    return texts


def make_settings(texts: Mapping[str, str]) -> OAuth:
    """Return the OAuth settings for a Client.

    texts: the result of read_auth(), with all `${...}` replaced.
    Raises ValueError for settings that exclude each other, and for a wrong URL.
    """
    fields: dict[str, Any] = dict(texts)
    if "scopes" in fields:
        fields["scopes"] = tuple(fields["scopes"].split())
    return OAuth(**fields)
