"""StreamableHttpConnection: a Connection to an MCP server at a URL ("Streamable HTTP").

A Client opens one StreamableHttpConnection for each server that it reaches over HTTP. The
RequestSender sends each JSON-RPC message in a POST request, and the connection delivers the
messages in the response to the client's Receiver. An HTTP request and its response are an
"exchange", a ClientExchange object. The connection also

- manages the session of revisions before 2026-07-28, with its stream for the server's own messages
  (GET),
- resumes broken streams,
- follows redirects,
- sends a request again after the pause that a busy server demands.

If the server refuses a request with an HTTP status and sends no JSON-RPC response, the connection
makes an error response with the code HTTP_FAILURE for the client. Only for a refused
`server/discover` it may make one with METHOD_NOT_FOUND, so that the client opens a session with
`initialize`.
Spec: 2025-11-25 basic/transports; 2026-07-28 basic/transports/streamable-http.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping

from concertino.http.envelope import Envelope, decode_envelope, read_revision
from concertino.http_client.credentials import Credentials
from concertino.http_client.delivery import MessageDelivery
from concertino.http_client.event_stream import MAX_RETRY_S
from concertino.http_client.exchange import (
    EVENT_STREAM,
    ClientExchange,
    HttpFailure,
    PostedMessage,
)
from concertino.http_client.pooled_connection import ResponseHead
from concertino.http_client.refusals import (
    BUSY_STATUSES,
    REDIRECTS,
    demanded_pause_s,
    describe_refusal,
    encode_body_error,
    encode_failure,
    is_temporary,
    parse_retry_after,
)
from concertino.http_client.request_encoder import RequestEncoder
from concertino.http_client.request_sender import RequestSender
from concertino.http_client.server_responses import answers_request, check_session_id
from concertino.http_client.server_url import ServerUrl
from concertino.http_client.session import HttpSession
from concertino.http_client.sse_fallback import SseFallback, is_old_refusal
from concertino.http_client.tool_lists import learn_tools
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import NEWLINE, Id, one_line
from concertino.transports.connection import Receiver

__all__ = ["StreamableHttpConnection"]

_log = logging.getLogger("concertino.http_client")

# How many times a request may be sent in total: once, and again after redirects, refusals and
# pauses.
MAX_TRIES = 4
# One request and the session's stream. While no more exchanges are open, the next message is
# probably the last of this iteration of the event loop, so it is delivered at once.
EXCHANGES_OF_ONE_REQUEST = 2
# The longest pause that a server can demand before the stream of the session is opened, in seconds.
# No call waits for this stream.
LONGEST_STREAM_PAUSE_S = 3600.0
# How long the server may take to accept a notification or a response, in seconds.
ACCEPTANCE_S = 30.0
# How long the server may take to end the session when the connection is closed, in seconds.
DELETE_S = 2.0


class StreamableHttpConnection:
    """A Connection (the interface in transports/connection.py) to the MCP server at a URL.

    It carries JSON-RPC messages, whose bytes are called frames, in HTTP requests and responses. It
    connects when the first message is sent, or in reach().

    url: the URL of the server.
    limits: max_message_bytes limits the size of a response, and of each event in a stream.
    headers: additional headers for each request. They are sent only to the origin of the URL.
    credentials: the source of the header Authorization; None to send only `headers`.
    """

    def __init__(
        self,
        url: ServerUrl,
        limits: Limits,
        headers: Mapping[str, str],
        credentials: Credentials | None = None,
    ) -> None:
        self.facts: Mapping[str, object] = {"transport": "http", "address": url.text}
        self._url = url
        self.max_bytes = limits.max_message_bytes
        self._encoder = RequestEncoder(url, headers)
        self._sender = RequestSender(url, self._encoder, credentials, self.on_failure)
        self._delivery = MessageDelivery()
        # The messages that were written but not flushed, or that wait until the session is open.
        self._queue: deque[tuple[bytes, Envelope]] = deque()
        self._exchanges: set[ClientExchange] = set()
        self._session = HttpSession()
        self._is_closed = False

    async def reach(self) -> None:
        """Open a TCP or TLS connection, to see whether the server can be reached.

        The first request will use this connection. Raises OSError if the server cannot be reached,
        and ValueError if an environment variable names an HTTP proxy in a malformed way.
        """
        await self._sender.reach()

    def refused(self) -> frozenset[Id]:
        """Return the ids of the requests that the server has refused without executing them.

        Their session had ended. They may be sent again in another session.
        """
        return self._session.refused

    # Connection

    def open(self, receiver: Receiver) -> None:
        self._delivery.open(receiver)

    def write(self, frame: bytes, request_id: Id | None) -> int:
        if not self._is_closed:
            self._queue.append((frame, decode_envelope(frame)))
        # Unread output is not counted. Each message is sent in a request of its own, so a request
        # that the server does not read delays no other one.
        return 0

    def flush(self) -> None:
        """Send the queued messages, except those that must wait until the session is open."""
        waiting: list[tuple[bytes, Envelope]] = []
        fallback = self._session.fallback
        if fallback is not None and not fallback.path:
            # Wait until the server, one of 2024-11-05, has named the URL for messages.
            return
        while self._queue:
            frame, message = self._queue.popleft()
            # While the session is being opened, only notifications/initialized and responses, which
            # have no method, may be sent.
            may_send = message.method is None or message.method == "notifications/initialized"
            if self._session.is_opening and not may_send:
                waiting.append((frame, message))
            else:
                self._post(frame, message)
        self._queue.extend(waiting)

    def pause(self, paused: bool) -> None:
        self._sender.pause(paused)

    async def close(self, within_s: float) -> None:
        """Abort all requests, and send the DELETE that ends the session.

        within_s: how long to wait for the response to the DELETE, in seconds; at most 2.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._delivery.close()
        self._sender.stop_waiting()
        for exchange in list(self._exchanges):
            exchange.abort()
        self._exchanges.clear()
        if self._encoder.session_id:
            await self._end_session(min(within_s, DELETE_S))
        self._sender.close()

    async def _end_session(self, within_s: float) -> None:
        """Send the DELETE request that ends the session, and wait for its response."""
        exchange = ClientExchange(self, "delete", self._url.path)
        self._exchanges.add(exchange)
        try:
            async with asyncio.timeout(within_s):
                await self._sender.connect_and_send(exchange)
                await self._session.deletion
        except TimeoutError:
            _log.info("the server has not confirmed the end of the session")
        finally:
            exchange.abort()

    # Requests

    def _post(self, frame: bytes, message: Envelope) -> None:
        """Send a message in a POST request.

        frame: the encoded message.
        message: its decoded fields.
        """
        meta = message.params.meta
        # Only messages of 2026-07-28 name their revision.
        is_modern = meta is not None and isinstance(meta.version, str)
        if message.method == "notifications/cancelled":
            # In 2026-07-28, closing the HTTP connection cancels a request, so the notification is
            # not sent.
            if self._cancel(message.params.request_id):
                return
            # Without a session, the notification is not sent, either. There is a session if the
            # server has chosen a version in its response to `initialize`, and with a server of
            # 2024-11-05.
            if not self._encoder.session_version and self._session.fallback is None:
                return
        if message.method == "initialize":
            # `initialize` opens a new session, so its headers must not name an earlier session.
            self._encoder.session_id = self._encoder.session_version = ""
        self._send_message(
            PostedMessage(
                frame=frame,
                method=message.method or "",
                id=message.request_id if message.method is not None else None,
                is_modern=is_modern,
                envelope=message,
            )
        )

    def _send_message(self, posted: PostedMessage) -> None:
        """Send a message in a POST to the server's URL.

        For a server of 2024-11-05, send it to the URL that the server has named for messages.
        """
        fallback = self._session.fallback
        kind, path = ("post", self._url.path) if fallback is None else ("message", fallback.path)
        exchange = ClientExchange(self, kind, path, posted)
        self._start(exchange)
        if exchange.id is None or fallback is not None:
            # The POST of a notification, or one whose response comes on another stream, has no
            # caller with a time limit.
            loop = asyncio.get_running_loop()
            exchange.expiry = loop.call_later(ACCEPTANCE_S, self._on_expiry, exchange)

    def _on_expiry(self, exchange: ClientExchange) -> None:
        """Abort the POST of a notification or response that the server has not accepted in time."""
        if exchange in self._exchanges:
            self.on_failure(exchange, HttpFailure(f"no response within {ACCEPTANCE_S:.0f} s"))
            exchange.abort()

    def _cancel(self, request_id: object) -> bool:
        """Abort the exchange of a request that the client has cancelled.

        Returns True if the request is one of 2026-07-28, which the server cancels when its HTTP
        connection is closed. Otherwise notifications/cancelled must be sent.
        """
        for exchange in self._exchanges:
            if exchange.id == request_id and exchange.id is not None:
                # In all revisions, the client waits for the response no more.
                self._exchanges.discard(exchange)
                exchange.abort()
                return exchange.is_modern
        return False

    def _start(self, exchange: ClientExchange) -> None:
        """Send the request of a new exchange."""
        self._exchanges.add(exchange)
        self._sender.send(exchange)

    # Responses

    def on_head(self, exchange: ClientExchange, head: ResponseHead) -> None:
        """Handle the head of a response with a status of 2xx, by the kind of its request.

        ClientExchange describes the kinds.
        """
        # `failures` counts failures in a row, which this response interrupts.
        exchange.failures = 0
        if exchange.kind == "sse" and head.media_type != EVENT_STREAM:
            # The server is not one of 2024-11-05 either.
            self._end_fallback(exchange, "")
        elif exchange.kind == "listen":
            self._session.listening_since = asyncio.get_running_loop().time()
        elif exchange.kind == "resume":
            events = exchange.events
            has_pause = events is not None and events.retry_s is not None
            if has_pause and head.media_type == EVENT_STREAM:
                # The server has said when to resume the stream, so it ends streams on purpose,
                # perhaps many times during a long call. Such an end is not a failed try.
                exchange.tries = 1
        elif exchange.method == "initialize":
            self._encoder.session_id = check_session_id(head.headers.get("mcp-session-id", ""))

    def on_message(self, exchange: ClientExchange, frame: bytes) -> None:
        # A server may send its JSON in several lines, but a Receiver expects one.
        if NEWLINE in frame:
            frame = one_line(frame)
        if exchange.id is not None and not exchange.is_answered:
            frame = self._read_response(exchange, exchange.id, frame)
        self._deliver(frame)

    def _read_response(self, exchange: ClientExchange, id: Id, frame: bytes) -> bytes:
        """Read what the connection itself needs from a message, and return the message to deliver.

        - The response to `initialize` names the revision of the session.
        - The response to tools/list says which arguments must be repeated in headers. Tools with
          wrong annotations are removed from it.
        - Any other message is returned unchanged.

        id: the id of the exchange's request.
        """
        if not answers_request(frame, id):
            return frame
        exchange.is_answered = True
        if exchange.method == "initialize":
            self._encoder.session_version = read_revision(frame)
            self._session.is_opening = bool(self._encoder.session_version)
        elif exchange.method == "tools/list" and exchange.is_modern:
            return learn_tools(frame, self._encoder.param_headers)
        return frame

    def on_exchange_end(self, exchange: ClientExchange) -> None:
        """Handle the end of a response with a status of 2xx, by the kind of its request.

        ClientExchange describes the kinds.
        """
        self._exchanges.discard(exchange)
        if exchange.kind == "delete":
            self._session.deletion.set_result(None)
        elif exchange.kind == "listen":
            self._listen_again(exchange)
        elif exchange.kind == "sse":
            self._end_fallback(exchange, "the server has ended its stream")
        elif exchange.id is None:
            # The POST of a notification or a response.
            if exchange.method == "notifications/initialized":
                self._on_session_open()
        elif not exchange.is_answered and exchange.kind != "message":
            # The response to a "message" comes on the stream of 2024-11-05.
            self._on_no_answer(exchange, exchange.id)

    def _on_no_answer(self, exchange: ClientExchange, id: Id) -> None:
        """Handle the end of an HTTP response that had no JSON-RPC response to its request.

        id: the id of the request.
        """
        if exchange.events is not None:
            self._resume(exchange, "the server ended its response before the answer came")
        elif (frame := encode_body_error(id, exchange.body)) is not None:
            # A server that cannot read a request may send an error without its id.
            self._deliver(frame)
        else:
            text = f"expected the response to {exchange.method}, got {exchange.describe_response()}"
            self._fail(exchange, HttpFailure(text))

    def on_refusal(self, exchange: ClientExchange, head: ResponseHead, body: bytes) -> None:
        """Handle a response with a status other than 2xx.

        Sends the request again if a redirect, another token, a pause or the transport of 2024-11-05
        may help. Otherwise the request fails.
        """
        if head.status in REDIRECTS and self._redirect(exchange, head):
            return
        if self._may_authorize(exchange, head.status):
            self._sender.authorize(exchange, head, body)
            return
        # Pauses before a stream is opened again are made by _listen_again() and _resume().
        if head.status in BUSY_STATUSES and exchange.tries < MAX_TRIES:
            pause = parse_retry_after(head)
            if pause is not None and exchange.kind not in ("listen", "resume", "delete"):
                self._sender.send_later(exchange, pause)
                return
        failure = HttpFailure(describe_refusal(head, body), head)
        if (
            exchange.method == "initialize"
            and is_old_refusal(head.status, body)
            and self._fall_back(exchange, failure, body)
        ):
            return
        if head.status == 404 and self._means_session_end(exchange):
            self._exchanges.discard(exchange)
            # Only a POST is known to be refused. If a stream is resumed, the server has accepted
            # the request earlier, and may have executed it.
            if exchange.kind == "post" and exchange.id is not None:
                self._session.refused = frozenset((exchange.id,))
            self._report_session_end("the server has ended the session")
            return
        # A JSON-RPC error in the body says more than the status. But if the user has to log in, or
        # gets no access, the client needs the HTTP error.
        if exchange.id is not None and head.status not in (401, 403, 407):
            frame = encode_body_error(exchange.id, body)
            if frame is not None:
                self._exchanges.discard(exchange)
                self._deliver(frame)
                return
        self.on_failure(exchange, failure)

    def _means_session_end(self, exchange: ClientExchange) -> bool:
        """Return whether the status 404 for an exchange means that its session has ended.

        For the GET of the server's own messages, it means this only if the stream has had events.
        Otherwise the server may have no such stream.
        """
        has_stream = exchange.kind != "listen" or exchange.events is not None
        return bool(self._encoder.session_id) and exchange.kind != "delete" and has_stream

    def on_failure(self, exchange: ClientExchange, failure: HttpFailure) -> None:
        """Handle a request without a usable response: send it again, or let it fail.

        - A request that the server has probably not received is sent again, if that does no harm.
        - The stream of the session ("listen") is opened again if the failure is temporary.
        - The stream of a call ("post", "resume") is resumed if it has broken, or if the last try to
          resume it has failed temporarily.
        - Any other request fails: the client gets an error response. For a notification or a
          response, this is only logged.
        """
        if exchange.is_over:
            return
        if failure.may_resend:
            # The server has closed an idle connection, so probably also all other idle connections.
            self._sender.send_in_task(exchange, fresh=True)
            return
        self._exchanges.discard(exchange)
        if exchange.kind == "delete":
            self._session.deletion.set_result(None)
        elif exchange.kind == "sse":
            self._end_fallback(exchange, str(failure))
        elif exchange.kind == "listen":
            # Try again after the loss of the stream and after a temporary failure. A refused token
            # is temporary, too: the next call may renew it. Another refusal says that the server
            # has no such stream.
            is_expired = failure.status == 401 and self._sender.has_credentials
            if is_expired or is_temporary(failure):
                self._listen_again(exchange, failure)
        elif exchange.id is None:
            _log.warning("%s was not accepted: %s", exchange.method or "a response", failure)
            if exchange.method == "notifications/initialized":
                self._on_session_open()
        elif exchange.kind in ("post", "resume") and 200 <= failure.status < 300:
            # The server has accepted the request, and its response has broken.
            self._resume(exchange, str(failure))
        elif exchange.kind == "resume" and is_temporary(failure):
            exchange.failures += 1
            self._resume(exchange, str(failure), demanded_pause_s(failure))
        else:
            self._fail(exchange, failure)

    def _may_authorize(self, exchange: ClientExchange, status: int) -> bool:
        """Return whether to obtain another token and send a refused request again.

        Returns False for the GET and the DELETE of a session, because no user should have to log in
        for them.
        status: the status of the refusal.
        """
        may_retry = exchange.kind not in ("listen", "delete") and exchange.tries < MAX_TRIES
        return may_retry and status in (401, 403) and self._sender.has_credentials

    def _redirect(self, exchange: ClientExchange, head: ResponseHead) -> bool:
        """Follow a redirect within the server's origin. Returns whether it was followed."""
        # Without Location, the request would be sent to the same URL again.
        location = head.headers.get("location")
        url = self._url.follow(location) if location else None
        if url is None or exchange.tries >= MAX_TRIES:
            return False
        exchange.path = url.path
        self._sender.send_in_task(exchange)
        return True

    def _fail(self, exchange: ClientExchange, failure: HttpFailure) -> None:
        """Deliver an error response for a request to which the server has sent no response."""
        assert exchange.id is not None
        self._deliver(encode_failure(exchange.id, exchange.method, failure))

    def _deliver(self, frame: bytes) -> None:
        """Pass a message to the Receiver, now or in the next iteration of the event loop."""
        is_alone = len(self._exchanges) <= EXCHANGES_OF_ONE_REQUEST
        self._delivery.deliver(frame, is_alone)

    def _report_session_end(self, reason: str) -> None:
        """Report to the Receiver that the server has ended the session."""
        self._encoder.session_id = ""
        self._delivery.disconnect(ConnectionError(reason))

    # The transport of 2024-11-05

    def _fall_back(self, refused: ClientExchange, failure: HttpFailure, body: bytes) -> bool:
        """Send the GET for the stream of a server of 2024-11-05.

        Returns False, and does nothing, if this was done before.
        refused: the exchange of the `initialize` that the server has refused.
        failure: this refusal.
        body: the body of the refusal.
        """
        if self._session.fallback is not None or refused.posted is None or refused.id is None:
            return False
        self._exchanges.discard(refused)
        error = encode_body_error(refused.id, body)
        self._session.fallback = SseFallback(refused.posted, failure, error)
        self._start(ClientExchange(self, "sse", self._url.path))
        return True

    def on_endpoint(self, exchange: ClientExchange, location: str) -> None:
        """Send `initialize` to the URL that a server of 2024-11-05 has named for messages."""
        fallback = self._session.fallback
        if fallback is None or fallback.path:
            return
        # Refuse another origin, because it would get the credentials.
        url = self._url.follow(location)
        if url is None:
            fallback.error = None
            fallback.failure = HttpFailure(
                f"the server wants messages sent to another origin: {location[:200]!r}"
            )
            self._end_fallback(exchange, "")
            return
        fallback.path = url.path
        self._send_message(fallback.opening)
        self.flush()

    def _end_fallback(self, exchange: ClientExchange, reason: str) -> None:
        """Report the end of the stream of 2024-11-05, or that the server has no such stream.

        exchange: the GET of the stream.
        reason: why the stream has ended.
        """
        self._exchanges.discard(exchange)
        exchange.abort()
        fallback, self._session.fallback = self._session.fallback, None
        if fallback is None:
            return
        if fallback.path:
            self._report_session_end(reason)
            return
        # The server is not one of 2024-11-05, so report its first refusal, which says more.
        if fallback.error is not None:
            self._deliver(fallback.error)
            return
        # _fail() takes an exchange. This exchange is never sent: it only says which request fails.
        opening = fallback.opening
        self._fail(ClientExchange(self, "post", self._url.path, opening), fallback.failure)

    # Streams of the older revisions

    def _on_session_open(self) -> None:
        """Open the stream for the server's own messages, and send the messages that have waited.

        Call this when the server has accepted or refused notifications/initialized.
        """
        if not self._session.is_opening:
            return
        self._session.is_opening = False
        if not self._is_closed:
            self._start(ClientExchange(self, "listen", self._url.path))
            self.flush()

    def _listen_again(self, exchange: ClientExchange, failure: HttpFailure | None = None) -> None:
        """Open the stream for the server's own messages again, after a pause.

        Does nothing if the server seems to have no such stream.
        failure: why the stream could not be opened, or has broken; None if the server has ended it.
        """
        events = exchange.events
        demanded_s = demanded_pause_s(failure, LONGEST_STREAM_PAUSE_S)
        # If no stream of events has ever begun, the server has no such stream, unless it says when
        # to come back.
        if self._is_closed or (events is None and demanded_s is None):
            return
        since, self._session.listening_since = self._session.listening_since, None
        if since is not None and asyncio.get_running_loop().time() - since > MAX_RETRY_S:
            # The stream was open for longer than the longest pause, so the server does not end each
            # stream at once. The next pause is the shortest one again.
            exchange.tries = 1
        if failure is not None and not 200 <= failure.status < 300:
            # The stream was not opened, rather than broken later.
            exchange.failures += 1
        self._exchanges.add(exchange)
        self._sender.send_later(exchange, exchange.reopening_pause_s(exchange.tries, demanded_s))

    def _resume(
        self, exchange: ClientExchange, reason: str, demanded_s: float | None = None
    ) -> None:
        """Request the rest of a stream that has broken, or let its request fail.

        Only streams before 2026-07-28 whose events have ids can be resumed.
        reason: why the stream has broken, for the text of the error.
        demanded_s: the pause that a busy server demands, in seconds; None without a demand.
        """
        events = exchange.events
        can_resume = events is not None and events.last_id and not exchange.is_modern
        # A long call may lose its stream several times, so eight times the usual tries are allowed.
        # But a server that cannot be reached or fails several times in a row has probably ended.
        has_tries = exchange.tries < MAX_TRIES * 8 and exchange.failures < MAX_TRIES
        if not can_resume or not has_tries:
            self._fail(exchange, HttpFailure(reason))
            return
        exchange.kind = "resume"
        self._exchanges.add(exchange)
        # A call waits for this stream. So the pause grows only with failures to open the stream,
        # and not with the number of streams that were lost.
        self._sender.send_later(exchange, exchange.reopening_pause_s(1, demanded_s))
