"""Converts the names of clients to tokens of NATS subjects, which are separated by dots."""

from __future__ import annotations

__all__ = ["inbox_prefix", "name_of", "token"]


def token(name: str) -> str:
    """Return a name as one token of a subject, with each dot replaced by a slash.

    name_of() can undo this, because names have no slashes: the ids of plugins consist of letters,
    digits, dots, hyphens and underscores (check_name() in orchestra/certificates.py).
    """
    return name.replace(".", "/")


def name_of(token: str) -> str:
    """Return the name that token() has converted. The inverse of token()."""
    return token.replace("/", ".")


def inbox_prefix(name: str) -> str:
    """Return the beginning of all reply subjects of a client.

    The servers should let only this client subscribe to them (orchestra/nats_permissions.py).
    """
    return f"i.{token(name)}."
