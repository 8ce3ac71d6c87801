"""The permissions of hubs, plugins and HTTP front ends at a NATS server, for its configuration.

A hub starts plugins and forwards requests between them. An HTTP front end is a process that serves
an MCP server over HTTP and shares its sessions with front ends on other machines.
`concertino cluster permissions` prints the permissions, and `concertino cluster up` uses them. Each
subject contains the names of its sender and of the called plugin (nats_messages.py). With these
permissions, the server guarantees that no client uses the name of another client:

- A plugin publishes requests, responses, heartbeats and announcements under its own name only.
- A plugin receives only the requests to its own name, as a member of the queue group of this name,
  and only the responses to its own requests.
- A plugin can use its own bucket only, and has no access to the system account.
- Only hubs may publish events, and create and read the stream of events.
- A hub may also act as a worker of each plugin that hubs offer to other hubs.
- An HTTP front end can use the buckets that front ends share, and nothing else.

No user has `allow_responses`, which lets a client publish to the reply subject of each message that
the client receives. With it, a plugin could send a request to itself whose reply subject is
`o.OTHER.orchestrator`. After receiving this request, the plugin could publish to this subject,
which is a request of the hub to OTHER (docs/decisions/0137).

Only a hub may create buckets, which are streams of JetStream. NATS does not check the settings of a
new stream against the permissions of the user who creates it. With the settings `subjects`,
`sources` or `republish`, a stream could read or forge messages of other users.

NATS does not check the reply subject of a request to JetStream either. So a plugin can make the
server publish an answer to any subject that the plugin can name. Permissions cannot prevent this:

- In the bucket of another plugin, such an answer becomes a document that cannot be read.
- Plugins cannot name the subject of events, because it has a random token (nats/stream.py).
- A process that receives an answer as a heartbeat, announcement, request or control message
  recognizes the answer by its content, and ignores it.

Source: docs.nats.io, "Authorization".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.json import encode, format

from concertino.nats.subjects import FRONT_END, HTTP_CLIENT, inbox_prefix, token
from concertino.orchestra.nats_buckets import buckets_of
from concertino.orchestra.nats_cluster import nats_user
from concertino.orchestra.nats_messages import (
    EVENT_STREAM,
    announcement_subject,
    discovery_subject,
    event_subject,
    heartbeat_subject,
    reply_prefix,
    request_subject,
    worker_subject,
)
from concertino.orchestra.plugins_file import HUB

__all__ = ["authorization", "permissions_of"]


def permissions_of(
    name: str, offered: Sequence[str] = (), owners: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the permissions of a plugin, hub or front end at a NATS server.

    The result is the value of `permissions` for one user in the configuration of the server.
    name: the id of a plugin; `orchestrator` for a hub; `front-end` for an HTTP front end.
    offered: for a hub, the ids of the plugins that hubs offer to other hubs.
    owners: for a hub, the ids of the plugins whose buckets the hub may create, and `front-end` for
        the buckets of the front ends.
    """
    if name == FRONT_END:
        return {
            "publish": {"allow": _bucket_subjects(name)},
            "subscribe": {"allow": [f"{inbox_prefix(HTTP_CLIENT)}>"]},
        }
    publish = [request_subject("*", name), worker_subject("*", "*", name), *_bucket_subjects(name)]
    subscribe = [heartbeat_subject("*", "*"), f"{inbox_prefix(name)}>"]
    if name == HUB:
        publish += [discovery_subject(name), *_event_subjects(name), *_creation_subjects(owners)]
        subscribe.append(announcement_subject("*", "*"))
    # Hubs request announcements from workers. A hub is a worker only of the plugins that it offers.
    if name != HUB or offered:
        subscribe.append(discovery_subject("*"))
    # Each callee sends responses, and heartbeats while requests are in progress.
    for callee in (name, *offered):
        publish += [f"{reply_prefix('*', callee)}*.*", heartbeat_subject(callee, "*")]
        # `SUBJECT QUEUE` allows only a member of this queue group.
        subscribe.append(f"{request_subject(callee, '*')} {token(callee)}")
        subscribe.append(worker_subject(callee, "*", "*"))
        if callee != HUB:
            publish.append(announcement_subject(callee, "*"))
    return {"publish": {"allow": publish}, "subscribe": {"allow": subscribe}}


def _event_subjects(hub: str) -> Sequence[str]:
    """Return the subjects to which a hub must publish to share events with the other hubs.

    To receive events, a hub needs no other permission: events arrive at its own reply subjects.
    """
    return [
        event_subject(hub),
        f"{event_subject(hub)}.*",
        f"$JS.API.STREAM.INFO.{EVENT_STREAM}",
        f"$JS.API.STREAM.CREATE.{EVENT_STREAM}",
        f"$JS.API.STREAM.UPDATE.{EVENT_STREAM}",
        f"$JS.API.CONSUMER.CREATE.{EVENT_STREAM}",
    ]


def _bucket_subjects(owner: str) -> list[str]:
    """Return the subjects to which a client must publish to use its buckets."""
    return [
        subject
        for bucket in buckets_of(owner)
        for subject in (
            f"$KV.{bucket}.>",
            f"$JS.API.STREAM.INFO.KV_{bucket}",
            f"$JS.API.STREAM.MSG.GET.KV_{bucket}",
        )
    ]


def _creation_subjects(owners: Sequence[str]) -> list[str]:
    """Return the subjects to which a hub must publish to create buckets, and to add replicas."""
    return [
        f"$JS.API.STREAM.{operation}.KV_{bucket}"
        for owner in owners
        for bucket in buckets_of(owner)
        for operation in ("INFO", "CREATE", "UPDATE")
    ]


def authorization(
    names: Sequence[str], keys: Mapping[str, str], offered: Sequence[str] = ()
) -> str:
    """Return the `authorization` block of a NATS server's configuration.

    names: the ids of the plugins; `front-end` for the HTTP front ends that share sessions. The hub
        is always added.
    keys: name -> public key (nkey), for users that authenticate with a key. All other users
        authenticate with a certificate of Orchestra's authority.
    offered: the ids of the plugins that hubs offer to other hubs.
    Raises ValueError if a plugin has the id `concertino`, the name in the reply subjects of HTTP
    front ends.
    """
    # A plugin with this id could read the messages to the front ends.
    if HTTP_CLIENT in names:
        raise ValueError(
            f"a plugin of a cluster cannot have the id {HTTP_CLIENT!r}, because front ends use it"
        )
    users: list[dict[str, Any]] = []
    names = list(dict.fromkeys((HUB, *names)))
    for name in names:
        identity = {"nkey": keys[name]} if name in keys else {"user": nats_user(name)}
        permissions = permissions_of(name, offered, names) if name == HUB else permissions_of(name)
        users.append({**identity, "permissions": permissions})
    # JSON is valid in the server's configuration.
    return f"authorization: {format(encode({'users': users}), indent=2).decode()}\n"
