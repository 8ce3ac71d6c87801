"""The permissions of hubs, plugins and HTTP front ends at a NATS server, for its configuration.

Subjects contain the names of callers and plugins (nats_messages.py). With these permissions the
server guarantees that the names are true:

- A plugin publishes requests, heartbeats and announcements under its own name only.
- It receives the requests for its own name only, as a member of the queue group of that name.
- It receives the responses to its own requests only, and responds only to requests that it got.
- It can use its own buckets only, and has no access to the system account.
- A hub may also act as a worker of each plugin that hubs offer to other hubs.
- Only hubs may publish events, and create and read the stream of events.
- An HTTP front end can use the buckets that front ends share, and nothing else.

Source: docs.nats.io, "Authorization".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.json import encode, format

from concertino.nats.subjects import (
    FRONT_END,
    FRONT_ENDS_BUCKET,
    HTTP_CLIENT,
    STATES_BUCKET,
    inbox_prefix,
    token,
)
from concertino.orchestra.nats_cluster import nats_user
from concertino.orchestra.nats_messages import (
    EVENT_STREAM,
    announcement_subject,
    discovery_subject,
    event_subject,
    heartbeat_subject,
    request_subject,
    worker_subject,
)
from concertino.orchestra.plugins_file import HUB

__all__ = ["authorization", "bucket_name", "permissions_of"]

# A plugin may answer a request with an ack, chunks and pieces, for as long as a call may take.
RESPONSES = {"max": 1_000_000, "expires": "1h"}


def permissions_of(name: str, offered: Sequence[str] = ()) -> dict[str, Any]:
    """Return the permissions of a plugin, hub or front end: the value of `permissions` of a user.

    offered: the plugins that a hub offers to other hubs, and for which it answers.
    """
    if name == FRONT_END:
        shared = (FRONT_ENDS_BUCKET, STATES_BUCKET)
        return {
            "publish": {"allow": [item for name in shared for item in _bucket_subjects(name)]},
            "subscribe": {"allow": [f"{inbox_prefix(HTTP_CLIENT)}>"]},
        }
    publish = [
        request_subject("*", name),
        worker_subject("*", "*", name),
        *_bucket_subjects(bucket_name(name)),
    ]
    subscribe = [
        heartbeat_subject("*", "*"),
        f"{inbox_prefix(name)}>",
    ]
    if name == HUB:
        publish += [discovery_subject(name), *_event_subjects(name)]
        subscribe.append(announcement_subject("*", "*"))
    if name != HUB or offered:
        subscribe.append(discovery_subject("*"))
    for callee in (name, *offered):
        publish.append(heartbeat_subject(callee, "*"))
        subscribe.append(f"{request_subject(callee, '*')} {token(callee)}")
        subscribe.append(worker_subject(callee, "*", "*"))
        if callee != HUB:
            publish.append(announcement_subject(callee, "*"))
    return {
        "publish": {"allow": publish},
        "subscribe": {"allow": subscribe},
        "allow_responses": RESPONSES,
    }


def _event_subjects(hub: str) -> Sequence[str]:
    """Return the subjects to which a hub publishes to share events with the other hubs.

    It receives events at its own reply subjects.
    """
    return [
        event_subject(hub),
        f"$JS.API.STREAM.INFO.{EVENT_STREAM}",
        f"$JS.API.STREAM.CREATE.{EVENT_STREAM}",
        f"$JS.API.CONSUMER.CREATE.{EVENT_STREAM}",
    ]


def _bucket_subjects(bucket: str) -> Sequence[str]:
    """Return the subjects to which a client publishes to use a key-value bucket."""
    stream = f"KV_{bucket}"
    return [
        f"$KV.{bucket}.>",
        f"$JS.API.STREAM.INFO.{stream}",
        f"$JS.API.STREAM.CREATE.{stream}",
        f"$JS.API.STREAM.MSG.GET.{stream}",
    ]


def bucket_name(name: str) -> str:
    """Return the name of a plugin's key-value bucket. Buckets allow letters, digits, - and _."""
    return "".join(c if c.isascii() and (c.isalnum() or c == "-") else f"_{ord(c):x}" for c in name)


def authorization(
    names: Sequence[str], keys: Mapping[str, str], offered: Sequence[str] = ()
) -> str:
    """Return the `authorization` block of a server's configuration.

    names: the plugins, besides the hub; `front-end` for the HTTP front ends that share sessions.
    offered: those of them that hubs offer to other hubs.
    keys: name -> public key (nkey), for plugins that authenticate with a key. The others
        authenticate with a certificate of Orchestra's authority.
    """
    users: list[dict[str, Any]] = []
    for name in dict.fromkeys((HUB, *names)):
        identity = {"nkey": keys[name]} if name in keys else {"user": nats_user(name)}
        permissions = permissions_of(name, offered if name == HUB else ())
        users.append({**identity, "permissions": permissions})
    # JSON is valid in the server's configuration.
    return f"authorization: {format(encode({'users': users}), indent=2).decode()}\n"
