"""Progress and log notifications about calls.

They are limited in rate, and wait while the client does not read: then only the newest one of each
kind is kept for each call.
Spec: 2026-07-28 basic/patterns/progress, server/utilities/logging.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.json import encode

from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import encode_notification
from concertino.jsonrpc.peer import Peer
from concertino.jsonrpc.requests import NotificationThrottle, TokenBucket
from concertino.protocol.request_profile import Profiles, SessionRequest
from concertino.types.results import LEVELS, Level

__all__ = ["CallNotifications"]

# More than the bytes that a notification adds to its params.
ENVELOPE_BYTES = 1024


class CallNotifications:
    """Sends the notifications about the calls of one session.

    schedule_flush: called when a notification was suppressed; call peer.on_drain() a moment later.

    dropped_logs: log messages that were not sent: too many, too long, or the client does not read.
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
        """Release `schedule_flush` when the connection was lost."""
        self._schedule_flush = _flush_nothing

    def progress(
        self,
        incoming: SessionRequest,
        done: float,
        total: float | None,
        message: str | None,
    ) -> None:
        """Send a progress notification, if the client asked for progress and `done` has grown.

        done, total: finite numbers. Nothing is sent for a call that was answered.
        While output is above the high-water mark, or the rate is too high, only the newest
        notification is kept. It leaves when output drains, a moment later, or before the response.
        A message that makes the frame too long is left out.
        """
        profile = incoming.profile
        if profile.token is None or not incoming.open or done <= incoming.last_progress:
            return
        incoming.last_progress = done

        params: dict[str, Any] = {"progressToken": profile.token, "progress": done}
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
        """Send a log message, if the server offers logging and the client wants this level.

        Nothing is sent for a call that was answered. Messages are held back like progress
        notifications: the newest one is kept, the others are counted in dropped_logs.
        """
        profile = incoming.profile
        # server/utilities/logging: only a server that declares logging may send messages.
        if not self._profiles.features.logging:
            return

        # logging/setLevel may have changed a legacy conversation's level since the call came in.
        legacy = self._profiles.legacy
        # pyright cannot narrow `legacy` in a conditional expression.
        if legacy is None or profile.encoder.revision.modern:  # noqa: SIM108
            least = profile.level
        else:
            least = legacy.level
        if least is None or not incoming.open or LEVELS[level] < least:
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

    def _send_throttled(
        self,
        incoming: SessionRequest,
        kind: str,
        frame: bytes,
    ) -> bool:
        """Send a notification, or keep it as the newest of its kind.

        Returns False if a kept notification was replaced, and so is lost.
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
        lost = throttle.suppressed.pop(kind, None) is not None
        if self._peer.buffered_bytes < self._limits.high_water_bytes and bucket.take():
            self._peer.send_frame(frame, incoming.id)
        else:
            throttle.suppressed[kind] = frame
            self._schedule_flush()
        return not lost


def _flush_nothing() -> None:
    """Take the place of `schedule_flush` in a closed session."""
