"""ServerMessages: handles the frames of a server that Channel does not handle itself.

A frame is one line that the server has sent, usually a JSON-RPC message. Channel.on_frames()
(client/channel.py) has a fast path for successful responses. ServerMessages handles all other
frames:

- Requests and notifications of the server go to a MessageHandler, which is the Conversation
  (client/conversation.py).
- Progress notifications go to the request to which they belong.
- Error responses go to the pending request.
- Lines that are not messages, or are too long, are counted as skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from msgspec import UNSET

from concertino.client.pending_request import InputState, PendingReply, ProgressTrackers
from concertino.client.skipped_lines import OversizeWatch, SkippedLines, parse_head
from concertino.errors import ProtocolError
from concertino.jsonrpc.incoming_requests import IncomingRequest
from concertino.jsonrpc.messages import Message, decode
from concertino.jsonrpc.peer import Peer

__all__ = ["MessageHandler", "ServerMessages"]


class MessageHandler(Protocol):
    """Handles the requests and notifications of a server."""

    def on_request(self, incoming: IncomingRequest) -> None:
        """Handle a request. Answer it with respond() or fail() of the Channel's `peer`."""
        ...

    def on_notification(self, message: Message) -> None:
        """Handle a notification of the server."""
        ...


class ServerMessages:
    """Handles the frames (lines) of a server that are not successful responses.

    peer: the JSON-RPC layer, which parses the frames and has the table of pending requests.
    input: the state that the Channel and ServerMessages share. receive() stores the current frame
        in `input.frame`, so that errors can quote the frame.
    handler: the object that handles the requests and notifications.
    progress: the progress trackers of pending requests.
    skipped: the counter of lines that are not messages or match no pending request.
    oversize: the watch for lines that are too long.
    max_message_bytes: the largest size of a line.
    time: a function that returns the time by the loop's clock.
    log: the logger for faults of the server and of the handler.
    """

    def __init__(
        self,
        peer: Peer[IncomingRequest],
        input: InputState,
        handler: MessageHandler,
        progress: ProgressTrackers,
        skipped: SkippedLines,
        oversize: OversizeWatch,
        max_message_bytes: int,
        time: Callable[[], float],
        log: logging.Logger,
    ) -> None:
        self._peer = peer
        self._input = input
        self._handler = handler
        self._progress = progress
        self._skipped = skipped
        self.oversize = oversize
        self._max_message_bytes = max_message_bytes
        self._time = time
        self._log = log

    def receive(self, frame: bytes) -> None:
        """Handle one frame."""
        invalid_input = self._peer.invalid_input
        unsolicited_before = invalid_input.unsolicited
        state = self._input
        state.frame = frame
        if frame.lstrip().startswith(b"["):
            # In a batch, the notifications, such as progress, are dispatched after the responses.
            # So the callers must be resumed later, in the next loop iteration.
            state.outside_tasks = False
        event = self._peer.receive(frame)
        state.frame = b""
        if isinstance(event, list):
            for message in event:
                self._dispatch(message)
        elif event is not None:
            self._dispatch(event)
        # The peer returns None for every response. If the count of unsolicited input has changed,
        # no pending request matches this response.
        elif invalid_input.unsolicited != unsolicited_before:
            self._on_unsolicited(frame)

    def _dispatch(self, event: IncomingRequest | Message) -> None:
        """Pass a request or notification of the server to its handler. Raises nothing."""
        try:
            if isinstance(event, IncomingRequest):
                self._handler.on_request(event)
            elif event.method == "notifications/progress":
                # Progress moves the deadline of a request of the channel.
                self._progress.on_notification(event, self._time())
            else:
                self._handler.on_notification(event)
        except Exception:
            self._log.exception("a message of the server could not be handled")

    def _on_unsolicited(self, frame: bytes) -> None:
        """Count a line that is not a message, or a response to no pending request, as skipped.

        A late response to a request that the client has abandoned is not counted.
        """
        message = decode(frame)
        if type(message) is not Message:
            self._skipped.add(frame, "not a JSON-RPC message")
        elif message.id is UNSET or not self._skipped.take_late(message.id):
            self._skipped.add(frame, "a response to no request of this client")

    def on_frame_too_long(self, size: int, now: float) -> None:
        """Fail the request whose response is too long; count any other such line as skipped.

        The Connection discards the line, and keeps only its first bytes.
        size: how many bytes of the line had arrived when it exceeded the limit.
        now: the time by the loop's clock.
        """
        limit = self._max_message_bytes
        head = self._input.frame = self.oversize.on_oversize(now)
        pending_requests = self._peer.outgoing
        is_response, id = parse_head(head)

        # Some servers write the id after the result. Then the response can only be matched if just
        # one request is pending.
        if is_response and id is None:
            pending_ids = [
                item.id for item in pending_requests.values() if isinstance(item, PendingReply)
            ]
            id = pending_ids[0] if len(pending_ids) == 1 else None

        pending = pending_requests.pop(id, None) if id is not None else None
        if pending is not None:
            self._log.warning("an answer of more than %d bytes was discarded", limit)
            pending.done(
                ProtocolError(
                    f"the answer has more than {limit} bytes, which is max_message_bytes: ask for "
                    "less, or allow more with Limits or CONCERTINO_MAX_MESSAGE_BYTES"
                )
            )
        elif id is None or not self._skipped.take_late(id):
            self.oversize.discarded_bytes = size
            self._skipped.add(head, f"longer than {limit} bytes")
