"""Sends the progress and log notifications of calls, at a limited rate.

While a call sends too fast, or the client does not read, only the newest progress notification and
the newest log message of each call are kept. They are sent later, at the latest before the call's
response.
Spec: 2026-07-28 basic/patterns/progress, server/utilities/logging.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.json import encode

from concertino.jsonrpc.incoming_requests import NotificationThrottle, TokenBucket
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import encode_notification
from concertino.jsonrpc.peer import Peer
from concertino.protocol.request_profile import Profiles, SessionRequest
from concertino.types.results import LEVELS, Level

__all__ = ["CallNotifications"]

# An upper bound for the size of a notification without its params, in bytes.
ENVELOPE_BYTES = 1024


class CallNotifications:
    """Sends the progress and log notifications of one session's calls.

    peer: sends the frames.
    profiles: the profiles of the session. They contain the level that the client has set with
        `logging/setLevel`, and whether the server declares logging.
    clock: returns the time in seconds, for the rate limit.
    limits: the limits for the rates, the size of a message and the buffered output.
    schedule_flush: called when a notification is kept for later. It must arrange a call of
        peer.on_drain(), which sends such notifications, a moment later.

    Attribute:
    dropped_logs: how many log messages were never sent, because there were too many, they were too
        long, or the client did not read.
    """

    def __init__(
        self,
        peer: Peer[SessionRequest],
        profiles: Profiles,
        limits: Limits,
        clock: Callable[[], float],
        schedule_flush: Callable[[], object],
    ) -> None:
        self.dropped_logs = 0
        self._peer = peer
        self._profiles = profiles
        self._limits = limits
        self._clock = clock
        self._schedule_flush = schedule_flush

    def close(self) -> None:
        """Schedule no more flushes, because the connection is closed."""
        self._schedule_flush = _flush_nothing

    def progress(
        self,
        incoming: SessionRequest,
        done: float,
        total: float | None,
        message: str | None,
    ) -> None:
        """Send a progress notification, or keep it for later.

        It is kept while the call sends too fast or the client does not read, and is sent a moment
        later or when the client reads, at the latest before the call's response. A newer one
        replaces it. Does nothing in three cases:

        - The client has not asked for progress.
        - The call is answered or cancelled already.
        - `done` has not grown since the last time. The specification forbids such a notification.

        done, total: the progress so far and at the end, both finite; total is None if unknown.
        message: a text for people, or None. It is left out if it would make the frame too long, and
            for clients of 2024-11-05, which has no such texts.
        """
        profile = incoming.profile
        if profile.progress_token is None or not incoming.open or done <= incoming.last_progress:
            return
        incoming.last_progress = done

        params: dict[str, Any] = {"progressToken": profile.progress_token, "progress": done}
        if total is not None:
            params["total"] = total
        if message is not None and profile.encoder.revision.progress_text:
            params["message"] = message
        frame = encode_notification("notifications/progress", encode(params))
        if len(frame) > self._limits.max_message_bytes:
            params.pop("message", None)
            frame = encode_notification("notifications/progress", encode(params))
        self._send_throttled(incoming, "progress", frame)

    def log(
        self,
        incoming: SessionRequest,
        level: Level,
        data: object,
        logger: str | None,
    ) -> None:
        """Send a log message, or keep it for later.

        It is kept while the call sends too fast or the client does not read, and is sent a moment
        later or when the client reads, at the latest before the call's response. A newer message
        replaces it. A replaced message, and one that is too long, is counted in dropped_logs.
        Does nothing in three cases:

        - The server does not declare logging.
        - The client does not want messages of this level.
        - The call is answered or cancelled already.

        data: any value that msgspec can encode as JSON; its errors are raised for any other value.
        logger: the name of the logger; None to send none.
        """
        # Only a server that declares logging may send log messages (server/utilities/logging).
        if not self._profiles.features.logging:
            return

        least_rank = self.least_rank(incoming)
        if least_rank is None or not incoming.open or LEVELS[level] < least_rank:
            return

        params: dict[str, Any] = {"level": level, "data": data}
        if logger is not None:
            params["logger"] = logger
        body = encode(params)
        if len(body) + ENVELOPE_BYTES > self._limits.max_message_bytes:
            self.dropped_logs += 1
            return
        frame = encode_notification("notifications/message", body)
        if not self._send_throttled(incoming, "log", frame):
            self.dropped_logs += 1

    def least_rank(self, incoming: SessionRequest) -> int | None:
        """Return the rank of the least severe log message that the client wants.

        The ranks of the levels, from debug to emergency, increase; LEVELS maps level -> rank.
        Returns None if the client wants no log messages.
        """
        profile = incoming.profile
        # Before 2026-07-28 the level belongs to the connection, not to the call: the client may
        # have changed it with logging/setLevel since the call came in.
        legacy = self._profiles.legacy
        if legacy is None or profile.encoder.revision.modern:
            return profile.least_rank
        return legacy.least_rank

    def _send_throttled(
        self,
        incoming: SessionRequest,
        kind: str,
        frame: bytes,
    ) -> bool:
        """Send a notification now, or keep it as the newest of its kind.

        kind: "progress" or "log".
        Returns False if this replaces an older notification, which is then never sent.
        """
        throttle = incoming.throttle
        if throttle is None:
            limits = self._limits
            throttle = NotificationThrottle(
                TokenBucket(limits.progress_per_s, self._clock),
                TokenBucket(limits.logs_per_s, self._clock),
            )
            incoming.throttle = throttle

        bucket = throttle.progress if kind == "progress" else throttle.log
        replaces = throttle.suppressed.pop(kind, None) is not None
        if self._peer.buffered_bytes < self._limits.high_water_bytes and bucket.take():
            self._peer.send_frame(frame, incoming.id)
        else:
            throttle.suppressed[kind] = frame
            self._schedule_flush()
        return not replaces


def _flush_nothing() -> None:
    """Do nothing. Replaces `schedule_flush` in a closed session."""
