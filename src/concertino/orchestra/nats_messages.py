"""The messages of plugin requests over NATS: their subjects and header fields.

In a NATS cluster, hubs call plugins, and plugins call hubs. A caller publishes a request to the
subject of the plugin that it calls, the callee. The workers, which are the processes of that
plugin, are a queue group of NATS: each request is delivered to one of them. A hub is called in the
same way, with its name HUB as the callee. These are the subjects:

    caller -> o.CALLEE.CALLER           the request; header: deadline, size if it comes in pieces
    worker -> i.CALLER.CALLEE.LINK.N    to the reply subject of the request: ack, refusal, response,
                                        chunks and pieces of responses
    caller -> w.CALLEE.WORKER.CALLER    cancellation, pieces of the request, receipts of response
                                        pieces, the question whether a request is still in progress;
                                        w.CALLEE.all.CALLER before the worker's ack
    worker -> h.CALLEE.WORKER           a heartbeat, while calls are in progress
    worker -> a.CALLEE.WORKER           an announcement: the plugin's manifest
    hub    -> d.HUB                     a request to all workers for announcements
    hub    -> e.HUB.TOKEN               an event, for the stream EVENT_STREAM of JetStream; TOKEN is
                                        random (nats/stream.py)

Each subject contains the name of its sender, so that the NATS server can check it against the
permissions (nats_permissions.py). Only CALLER may subscribe to its reply subjects, and only CALLEE
may publish to them.

LINK, N and WORKER consist of letters and digits. A program must check this before it publishes to a
subject that it has received from another program. If the subject contained a line break, the server
would take the rest of the subject for commands of the publisher.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping

from concertino.nats.protocol import HEADER_LINE
from concertino.nats.subjects import inbox_prefix, name_of, token
from concertino.orchestra.plugins_file import HUB

__all__ = [
    "ABANDONED",
    "ACK",
    "ALL",
    "ASK",
    "BUSY",
    "CANCEL",
    "CHUNK",
    "DRAINING",
    "END",
    "EVENT_STREAM",
    "LATE",
    "LEAVING",
    "MAX_LEFT_S",
    "MAX_WHOLE_BYTES",
    "MAX_WINDOW",
    "PIECE",
    "PIECE_BYTES",
    "RECEIPT",
    "REFUSED",
    "SHARE",
    "STREAM_CONTROL",
    "UNKNOWN",
    "announcement_subject",
    "discovery_subject",
    "encode_headers",
    "event_subject",
    "heartbeat_subject",
    "is_reply_subject",
    "last_name",
    "new_reply_prefix",
    "peer_key",
    "plugin_of",
    "read_time_left",
    "reply_prefix",
    "request_headers",
    "request_subject",
    "worker_subject",
]

# How many digits the id of a process (NatsCluster.id) has, and how many LINK has in the reply
# subjects of this version: the id of the process, and 16 random digits.
PROCESS_DIGITS = 8
LINK_DIGITS = PROCESS_DIGITS + 16

# The name for all workers of a plugin, in the subject of messages to a worker.
ALL = "all"

# The stream of JetStream with the events of all hubs.
EVENT_STREAM = "ORCHESTRA_EVENTS"

# The kinds of messages, in the header field Kind. A message without headers is the only response to
# a request.
# A worker has accepted a request, or has not run it and will not.
ACK, REFUSED = "ack", "refused"
# A response of a stream, and the last response of a stream that has chunks.
CHUNK, END = "chunk", "end"
# A piece of a long request or response, and its receiver's answer.
PIECE, RECEIPT = "piece", "receipt"
# A caller cancels a request.
CANCEL = "cancel"
# A caller allows the worker to send more chunks of a stream.
STREAM_CONTROL = "stream"
# A worker announces to hubs that it accepts no more requests.
LEAVING = "leaving"
# A worker ends, and its caller gets no response.
ABANDONED = "abandoned"
# The caller asks whether a request is still in progress. The worker answers UNKNOWN if it is not.
ASK, UNKNOWN = "ask", "unknown"
# The reasons of refusals, which callers also show to people. SHARE: one caller has too many
# requests in progress. LATE: the time limit has passed by the clock of the worker's machine.
BUSY = "busy"
SHARE = "no place for more requests of this caller"
DRAINING = "draining"
LATE = "late"

# The longest time limit of a request, in seconds, and the time limit of a request without a valid
# one.
MAX_LEFT_S = 3600.0

# Messages longer than MAX_WHOLE_BYTES are sent in pieces, so that they do not delay other messages.
# A sender waits when MAX_WINDOW pieces have no receipt yet. The window is small because other
# messages wait behind its pieces: a message of 10 MB makes the p50 of short calls three times as
# long (docs/decisions/0088).
MAX_WHOLE_BYTES = 256 * 1024
PIECE_BYTES = 64 * 1024
MAX_WINDOW = 2


def last_name(subject: str) -> str:
    """Return the name in the last token of a subject.

    This is the name of the caller or hub, or the id of a worker, depending on the subject.
    """
    return name_of(subject.rpartition(".")[2])


def plugin_of(subject: str) -> str:
    """Return the id of the plugin in the second token of a subject, such as a.PLUGIN.WORKER."""
    return name_of(subject.split(".", 2)[1])


def request_subject(callee: str, caller: str) -> str:
    """Return the subject of the requests of a caller to a plugin or hub, the callee.

    In this and the following functions, "*" as a name stands for any name.
    """
    return f"o.{_token_or_any(callee)}.{_token_or_any(caller)}"


def reply_prefix(caller: str, callee: str) -> str:
    """Return the beginning of the reply subjects of a caller's requests to a callee.

    Two tokens follow: LINK, which is different for each NatsLink, and N, which is different for
    each request.
    """
    return f"{inbox_prefix(caller)}{_token_or_any(callee)}."


def new_reply_prefix(caller: str, callee: str, process: str) -> str:
    """Return the beginning of the reply subjects of a new NatsLink, which ends with a new LINK.

    LINK consists of the id of the caller's process and 64 secret random bits, which only the caller
    and the workers that get its requests know. So no other plugin can name the reply subjects, and
    make JetStream publish to them (nats_permissions.py).
    caller, callee: the names of the two sides.
    process: the id of the caller's process (NatsCluster.id), of eight digits.
    """
    return f"{reply_prefix(caller, callee)}{process}{secrets.token_hex(8)}"


def peer_key(caller: str, reply: str) -> str:
    """Return the name under which a worker counts a caller's requests, to limit them.

    For a plugin, this is the plugin's id. For a hub, it is the common name of all hubs, a slash,
    and the id of the hub's process: `orchestrator/1f2e3d4c`.
    caller: the name of the caller.
    reply: the reply subject of a request, which is_reply_subject() has checked.
    """
    # The processes of a plugin are not distinguished. Each would get its own share of the worker's
    # places, and a plugin may have any number of processes.
    _, _, _, link, _ = reply.split(".")
    # Hubs of earlier versions have only the random bits in LINK.
    has_process = caller == HUB and len(link) == LINK_DIGITS
    return f"{caller}/{link[:PROCESS_DIGITS]}" if has_process else caller


def is_reply_subject(subject: str, caller: str, callee: str) -> bool:
    """Return whether a subject is a valid reply subject of a request of `caller` to `callee`."""
    prefix = reply_prefix(caller, callee)
    link, _, number = subject[len(prefix) :].partition(".")
    return subject.startswith(prefix) and link.isalnum() and number.isalnum()


def worker_subject(callee: str, worker: str, caller: str) -> str:
    """Return the subject of a caller's messages to a worker about a request, such as to cancel it.

    worker: the id of the worker; ALL for all workers of the callee.
    """
    return f"w.{_token_or_any(callee)}.{worker}.{_token_or_any(caller)}"


def heartbeat_subject(plugin: str, worker: str) -> str:
    """Return the subject of the heartbeats of a plugin's worker."""
    return f"h.{_token_or_any(plugin)}.{worker}"


def announcement_subject(plugin: str, worker: str) -> str:
    """Return the subject of the announcements of a plugin's worker."""
    return f"a.{_token_or_any(plugin)}.{worker}"


def discovery_subject(hub: str) -> str:
    """Return the subject to which a hub publishes its request for announcements."""
    return f"d.{_token_or_any(hub)}"


def event_subject(hub: str) -> str:
    """Return the beginning of the subject of the events that hubs publish.

    The Stream (nats/stream.py) that stores the events adds a random token.
    hub: the name that all hubs have, HUB.
    """
    return f"e.{_token_or_any(hub)}"


def _token_or_any(name: str) -> str:
    """Return a name as a token of a subject. `*`, which stands for any name, stays."""
    return name if name == "*" else token(name)


# Headers


def encode_headers(kind: str, **fields: str | int) -> bytes:
    """Return a header block with the field Kind and other fields.

    kind: the kind of the message, such as ACK.
    fields: the other fields, by name. Their values must not have line breaks.
    """
    lines = [HEADER_LINE.decode(), f"Kind:{kind}"]
    lines += [f"{name}:{value}" for name, value in fields.items()]
    return "\r\n".join((*lines, "", "")).encode()


def request_headers(left_s: float, size: int | None) -> bytes:
    """Return the header block of a request.

    left_s: how many seconds are left until the request's time limit.
    size: the size of the whole request if this message is only its first piece; None otherwise.
    """
    # Send both the remaining time and the point in time. The remaining time is right even if the
    # clocks of caller and worker differ. The point in time takes into account how long the request
    # was on its way.
    # The `if` is faster than min(), which would take as long as the rest of this function.
    if left_s > MAX_LEFT_S:
        left_s = MAX_LEFT_S
    left_ms, until_ms = left_s * 1000, (time.time() + left_s) * 1000
    if size is None:
        return b"NATS/1.0\r\nLeft:%d\r\nUntil:%d\r\n\r\n" % (left_ms, until_ms)
    return b"NATS/1.0\r\nLeft:%d\r\nUntil:%d\r\nSize:%d\r\n\r\n" % (left_ms, until_ms, size)


def read_time_left(fields: Mapping[str, str]) -> float:
    """Return how many seconds are left for a request; 0 or less if its time limit has passed.

    fields: the header fields of the request.
    Returns MAX_LEFT_S (an hour) if they have no valid time limit.
    """
    try:
        left_s = int(fields["Left"]) / 1000
        until = int(fields["Until"]) / 1000
    except (KeyError, ValueError, OverflowError):
        return MAX_LEFT_S
    return min(left_s, until - time.time(), MAX_LEFT_S)
