"""Converts the names of clients to tokens of NATS subjects, which are separated by dots.

It also has the names that HTTP front ends use at NATS servers. A front end is a process that serves
an MCP server over HTTP, and shares its sessions with front ends on other machines.
"""

from __future__ import annotations

__all__ = [
    "FRONT_END",
    "FRONT_ENDS_BUCKET",
    "FRONT_END_BUCKETS",
    "HTTP_CLIENT",
    "NATS_SERVER",
    "STATES_BUCKET",
    "inbox_prefix",
    "name_of",
    "token",
]

# The name in the certificates of HTTP front ends. For NATS servers, it is the name of the user.
FRONT_END = "front-end"
# The name in the certificates of NATS servers, as `concertino cluster up` issues them.
NATS_SERVER = "nats-server"
# The name in the reply subjects of HTTP front ends; see inbox_prefix(). It must not be the name of
# a plugin (orchestra/nats_permissions.py).
HTTP_CLIENT = "concertino"
# The buckets with the addresses of front ends, and with the sealed states that clients have sent
# back (used_states.py).
FRONT_ENDS_BUCKET = "concertino_front_ends"
STATES_BUCKET = "concertino_states"
# How long each of these buckets keeps a value, in seconds.
FRONT_END_BUCKETS = {FRONT_ENDS_BUCKET: 60.0, STATES_BUCKET: 3600.0}


def token(name: str) -> str:
    """Return a name as one token of a subject, with each dot replaced by a slash.

    name: the id of a plugin, or another name without slashes. Ids consist of letters, digits, dots,
        hyphens and underscores (check_name() in orchestra/certificates.py), so name_of() can
        reverse the conversion.
    """
    return name.replace(".", "/")


def name_of(token: str) -> str:
    """Return the name that token() has converted to this token."""
    return token.replace("/", ".")


def inbox_prefix(name: str) -> str:
    """Return `i.NAME.`, the beginning of the subjects to which a client's responses are published.

    The servers should let only this client subscribe to these subjects
    (orchestra/nats_permissions.py).
    name: the name of the client, such as a plugin's id. Its dots become slashes.
    """
    return f"i.{token(name)}."
