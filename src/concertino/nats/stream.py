"""Stream: publishes to a stream of JetStream, and receives its messages, on an event loop.

JetStream, the storage of NATS servers, stores messages in streams and numbers them. Hubs, which run
plugins, share the events of these plugins in a stream (orchestra/cluster_events.py).

To receive the messages, this module creates a *consumer* at the servers: an object that sends the
messages of the stream to a subject of this process, in order and without acknowledgements. When a
message is missing, when the consumer is silent, or after a reconnect, this module creates another
consumer, which begins after the last message that has arrived.

If the acknowledgement of a published message is lost, the message is published again with the same
id, and the servers store it once.
Source: docs.nats.io, "JetStream wire API Reference"; ADR-15 (ordered consumers).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol

from msgspec.json import encode

from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import Disconnected
from concertino.nats.cluster import NatsCluster
from concertino.nats.connection import NatsConnection
from concertino.nats.jetstream import OTHER_SETTINGS, Answer, StreamState, decode_answer
from concertino.nats.protocol import NO_RESPONDERS, NatsMessage, read_headers, status_of
from concertino.nats.subjects import inbox_prefix

__all__ = ["Follower", "Stream", "StreamUnavailable", "has_longer_subject", "with_random_token"]

log = logging.getLogger("concertino.nats")

# Error codes of JetStream.
# The server is not in a cluster.
NO_CLUSTER = 10074
# The cluster has too few servers or resources.
FEW_SERVERS = (10005, 10023)
# On how many servers messages are stored, if the cluster has so many servers. Otherwise, messages
# are stored on one server, and replicas are added when a consumer begins later.
REPLICAS = 3

# All times are in seconds.

# How long a new stream waits for REPLICAS servers, because a cluster may be starting.
PATIENCE_S = 3.0
# The time limits of one request and its response, of open(), and of publish() with all its
# attempts.
REQUEST_S, OPEN_S, PUBLISH_S = 2.0, 5.0, 10.0
# The pause before the next attempt.
RETRY_S = 0.25
# The time after which a server that has become the leader has applied its messages.
LEADER_S = 1.0
# The time between two heartbeats of a consumer without messages.
HEARTBEAT_S = 1.0
# A consumer that was silent for this time is replaced.
SILENCE_S = 3.0
# Subjects to which consumers deliver messages have this token before the number. So the
# subscription to responses, `i.NAME.RANDOM.*`, does not get the messages: `*` stands for one token.
DELIVERY = "d."


class StreamUnavailable(Disconnected):
    """The servers have no JetStream, or this client may not use the stream."""


def with_random_token(subject: str) -> str:
    """Return a subject with a random token at its end, for the messages of a stream.

    Only clients that may read the settings of the stream know the token. A client that knew the
    subject could use it as the reply subject of a request to JetStream. JetStream would publish its
    answer there without a check of permissions, and so store the answer in the stream.
    """
    return f"{subject}.{secrets.token_hex(16)}"


def has_longer_subject(subject: str, beginning: str) -> bool:
    """Return whether a subject is `beginning`, a dot, and at least one more token.

    The subjects that with_random_token() returns are longer in this way.
    """
    return subject.startswith(f"{beginning}.")


class Follower(Protocol):
    """Receives the messages of a Stream. ClusterLog (orchestra/cluster_events.py) implements it."""

    def begin(self, id: str, oldest: int, newest: int) -> None:
        """Prepare for the messages of the stream.

        Called at the beginning, and again after each interruption, such as a reconnect. The Stream
        then passes on the messages after the number `self.last`.

        id: identifies the messages that have these numbers. If the id has changed, forget the
            numbers of earlier messages, because other messages may get the same numbers. The id
            changes if a new stream of the same name has replaced the stream, and if the servers
            were killed and have lost the last messages of the stream.
        oldest, newest: the numbers of the oldest and of the newest message in the stream.
        """
        ...

    @property
    def last(self) -> int:
        """The number of the last message that was handled; 0 if there was none."""
        ...

    def handle(self, number: int, payload: bytes) -> None:
        """Handle a message of the stream.

        number: the number of the message in the stream. Numbers ascend, except that messages may be
            repeated after a reconnect.
        """
        ...


class _Requests:
    """Sends the requests of a Stream to JetStream, and receives their responses.

    cluster: the connection to the NATS servers.
    name: the name of the stream, for errors.
    user: the name of this client, which its reply subjects contain.
    """

    def __init__(self, cluster: NatsCluster, name: str, user: str) -> None:
        self._cluster = cluster
        self._name = name
        self._inbox = f"{inbox_prefix(user)}{secrets.token_hex(8)}."
        self._count = 0
        # Reply subject -> the subject of the request, and the future for its response.
        self._waiting: dict[str, tuple[str, asyncio.Future[NatsMessage]]] = {}

    def on_connect(self, connection: NatsConnection) -> None:
        """Subscribe to the responses. Called for each new connection."""
        connection.subscribe(f"{self._inbox}*", self._on_response)
        connection.on_refusal.append(self._on_refusal)

    def new_subject(self, prefix: str = "") -> str:
        """Return a new subject to which only this client may subscribe.

        prefix: "" for the reply subject of a request; DELIVERY for the messages of a consumer.
        """
        self._count += 1
        return f"{self._inbox}{prefix}{self._count}"

    async def send(self, subject: str, payload: bytes, headers: bytes = b"") -> Answer:
        """Send a request, and return the response.

        headers: the encoded headers, from the line `NATS/1.0` to the empty line at the end; empty
            for no headers.
        Raises Disconnected if there is no response within REQUEST_S, StreamUnavailable if the
        servers have no JetStream or do not permit the request, and ValueError if the request is too
        large.
        """
        reply = self.new_subject()
        future: asyncio.Future[NatsMessage] = asyncio.get_running_loop().create_future()
        self._waiting[reply] = subject, future
        try:
            connection = self._cluster.connection
            size, limit = len(payload) + len(headers), connection.info.max_payload
            if size > limit:
                # The server would disconnect this client.
                raise ValueError(f"a message of {size} bytes; the servers accept at most {limit}")
            connection.publish(subject, payload, reply, headers)
            # wait_for() of Python 3.11 ignores a cancellation that comes with the response.
            async with asyncio.timeout(REQUEST_S):
                message = await future
        except TimeoutError:
            raise Disconnected(f"{self._name}: no answer within {REQUEST_S:g} s") from None
        finally:
            self._waiting.pop(reply, None)
        if status_of(message) == NO_RESPONDERS:
            raise StreamUnavailable("JetStream is not enabled in the servers")
        try:
            return decode_answer(message.payload)
        except DECODE_ERRORS as exc:
            raise Disconnected(f"{self._name}: a response cannot be read: {exc}") from None

    def _on_response(self, message: NatsMessage) -> None:
        _, future = self._waiting.pop(message.subject, ("", None))
        if future is not None and not future.done():
            future.set_result(message)

    def _on_refusal(self, text: str) -> None:
        """Fail the requests that the server does not permit.

        text: the server's error, which quotes the subject of the request.
        """
        for subject, future in self._waiting.values():
            if f'"{subject.lower()}"' in text.lower() and not future.done():
                future.set_exception(StreamUnavailable(text))


class _Consumer:
    """The state of the current consumer of a Stream, or of its creation.

    delivered: how many messages the consumer has delivered.
    heard_at: when the last message or heartbeat came, by the clock of the event loop.
    is_over: an event that is set when the consumer must be replaced by a new one.
    """

    def __init__(self) -> None:
        self.delivered = 0
        self.heard_at = 0.0
        self.is_over = asyncio.Event()


class Stream:
    """A stream, which open() creates if it does not exist. Use it on one event loop.

        stream = Stream(cluster, "EVENTS", "e.hub", "hub", max_bytes=16 * 2**20, follower=log)
        await stream.open()
        await stream.publish(payload)      # returns when a majority of the replicas has stored it

    cluster: the connection to the NATS servers. It reconnects when it is lost.
    name: the name of the stream: letters, digits, `-` and `_`.
    beginning: the beginning of the subject of the messages. The client that creates the stream adds
        a random token, see with_random_token(). A stream that exists already is used even without a
        token.
    user: the name of this client, which its reply subjects contain.
    max_bytes: the size of the stream. If it is exceeded, the servers drop the oldest messages.
    follower: gets the messages.

    Attribute:
    subject: the whole subject of the messages, with the token; "" before the Stream has read it in
        the settings of the stream.
    """

    def __init__(
        self,
        cluster: NatsCluster,
        name: str,
        beginning: str,
        user: str,
        *,
        max_bytes: int,
        follower: Follower,
    ) -> None:
        self._cluster = cluster
        self._name = name
        self.subject = ""
        self._follower = follower
        self._settings: Mapping[str, Any] = {
            "name": name,
            "subjects": [with_random_token(beginning)],
            "max_bytes": max_bytes,
            "discard": "old",
            "storage": "file",
            # For how long the servers recognize the id of a message that is published again, in
            # nanoseconds. This is much longer than PUBLISH_S, after which publish() gives up.
            "duplicate_window": int(120e9),
        }
        self._requests = _Requests(cluster, name, user)
        self._consumer = _Consumer()
        # A future that is done when open() need not wait any more: the follower has all messages up
        # to the number _last_at_open, or the stream cannot be used.
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # The number of the last message that the stream had when open() read its state.
        self._last_at_open = 0
        # The task that follows the stream: it receives the messages.
        self._task: asyncio.Task[None] | None = None
        # When the stream was created, in the servers' form.
        self._created: str = ""
        # Appended to the id of the stream after the servers have lost messages, so that the
        # follower gets a new id. "" if no messages were lost since the stream was created.
        self._id_suffix = ""

    async def open(self) -> None:
        """Create the stream if it does not exist, and begin to pass messages to the follower.

        Returns when the follower has got all messages that the stream has now, or after 5 seconds
        without an answer of the servers. The attempts then go on in the background.
        Raises StreamUnavailable if the servers have no JetStream, or do not let this client use the
        stream.
        """
        self._cluster.on_connect.append(self._on_connect)
        with suppress(Disconnected):
            self._on_connect(self._cluster.connection)
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._run())
        try:
            await asyncio.wait((self._opened,), timeout=OPEN_S)
            # If the servers have not answered, cancel the future. _run() then goes on even if the
            # servers refuse the stream.
            if self._opened.cancel():
                log.warning("%s: the servers do not answer yet; trying again", self._name)
            else:
                self._opened.result()
        # Close after a cancellation, too, because the caller does not call close() then.
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Receive no more messages. The stream itself stays at the servers."""
        with suppress(ValueError):
            self._cluster.on_connect.remove(self._on_connect)
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    async def publish(self, payload: bytes) -> None:
        """Store a message in the stream. Returns when the servers have acknowledged the message.

        Tries again after each error, and while there is no connection. After 10 s, raises
        Disconnected; the message may be stored nevertheless. Raises ValueError at once if the
        message is larger than the servers accept.
        """
        headers = b"NATS/1.0\r\nNats-Msg-Id:%b\r\n\r\n" % secrets.token_hex(12).encode()
        failure = Disconnected("no answer")
        try:
            async with asyncio.timeout(PUBLISH_S):
                while True:
                    try:
                        if not self.subject:
                            raise Disconnected("the servers have not described the stream yet")
                        answer = await self._requests.send(self.subject, payload, headers)
                        if answer.error is None:
                            return
                        failure = Disconnected(answer.error.description)
                    except StreamUnavailable as exc:
                        failure = exc
                        # The stream may have another subject now. It is read when the consumer is
                        # replaced.
                        self._consumer.is_over.set()
                    except Disconnected as exc:
                        failure = exc
                    await asyncio.sleep(RETRY_S)
        except TimeoutError:
            text = f"{self._name}: the message was not acknowledged: {failure}"
            raise Disconnected(text) from None

    def _on_connect(self, connection: NatsConnection) -> None:
        self._requests.on_connect(connection)
        self._consumer.is_over.set()

    # Following

    async def _run(self) -> None:
        """Follow the stream with one consumer after the other, until cancelled.

        Ends by itself if the stream cannot be used while open() waits. open() then raises
        StreamUnavailable.
        """
        patient_until = asyncio.get_running_loop().time() + PATIENCE_S
        while True:
            try:
                await self._follow(patient_until)
            except StreamUnavailable as exc:
                if not self._opened.done():
                    self._opened.set_exception(exc)
                    return
                log.debug("%s: %s", self._name, exc)
            except Disconnected as exc:
                log.debug("%s: %s", self._name, exc)
            await asyncio.sleep(RETRY_S)

    async def _follow(self, patient_until: float) -> None:
        """Follow the stream with one consumer. Returns when the consumer must be replaced.

        patient_until: a time of the event loop's clock; see _find_stream().
        Raises Disconnected if the connection ends or a server refuses a request, and
        StreamUnavailable if the servers have no JetStream or this client may not use the stream.
        """
        # Before the connection is read, because _on_connect() ends the new consumer if another
        # connection follows.
        self._consumer = _Consumer()
        connection = self._cluster.connection
        await self._begin_following(patient_until)
        await self._consume(connection)

    async def _begin_following(self, patient_until: float) -> None:
        """Find or create the stream, and call the follower's begin(). Raises as _follow() does."""
        answer = await self._find_stream(patient_until)
        if self._is_shorter(answer):
            # A server that has just become the leader may not have applied its last messages yet.
            await asyncio.sleep(LEADER_S)
            answer = await self._find_stream(patient_until)
        state = answer.state or StreamState()
        if self._is_shorter(answer):
            log.warning(
                "%s: the servers have lost the messages after %d", self._name, state.last_seq
            )
            # All clients make the same suffix, because they read the same state. Only a client that
            # reads the state after the next message was published makes another suffix.
            self._id_suffix = f" {state.last_seq} {state.last_ts}"
        elif answer.created != self._created:
            self._id_suffix = ""
        self._created = answer.created
        subjects: list[str] = answer.config.get("subjects", [])
        self.subject = subjects[0] if subjects else ""
        # Check this while open() waits, because only open() can raise the error.
        if not self._opened.done():
            await self._check_permission()
        if answer.config.get("num_replicas", REPLICAS) < REPLICAS:
            await self._add_replicas(answer.config)
        self._follower.begin(answer.created + self._id_suffix, state.first_seq, state.last_seq)
        self._last_at_open = state.last_seq
        self._check_opened()

    async def _consume(self, connection: NatsConnection) -> None:
        """Receive the messages after the follower's last one, until the consumer must be replaced.

        connection: the connection on which the stream was found.
        Raises Disconnected if the server refuses the consumer.
        """
        loop = asyncio.get_running_loop()
        self._consumer.heard_at = loop.time()
        subject = self._requests.new_subject(DELIVERY)
        sid = connection.subscribe(subject, self._on_delivery)
        try:
            # The settings of an ordered consumer (ADR-15). It need not survive the loss of its
            # server, because _run() then creates another consumer.
            config = {
                "deliver_subject": subject,
                "deliver_policy": "by_start_sequence",
                "opt_start_seq": self._follower.last + 1,
                "ack_policy": "none",
                "max_deliver": 1,
                "idle_heartbeat": int(HEARTBEAT_S * 1e9),
                "num_replicas": 1,
                "mem_storage": True,
            }
            body = encode({"stream_name": self._name, "config": config})
            made = await self._requests.send(f"$JS.API.CONSUMER.CREATE.{self._name}", body)
            if made.error is not None:
                raise Disconnected(f"{self._name}: {made.error.description}")
            # _on_delivery() handles the messages. Wait until the consumer must be replaced.
            while loop.time() - self._consumer.heard_at < SILENCE_S:
                with suppress(TimeoutError):
                    async with asyncio.timeout(HEARTBEAT_S):
                        await self._consumer.is_over.wait()
                if self._consumer.is_over.is_set():
                    return
        finally:
            connection.unsubscribe(sid)

    async def _check_permission(self) -> None:
        """Raise StreamUnavailable if the servers do not let this client publish messages."""
        # The servers check the permission first. If the message is permitted, they refuse it
        # because of its header field, which names another stream.
        headers = b"NATS/1.0\r\nNats-Expected-Stream:-\r\n\r\n"
        await self._requests.send(self.subject, b"", headers)

    def _is_shorter(self, answer: Answer) -> bool:
        """Return whether the stream has lost messages that the follower has got.

        answer: the servers' description of the stream.
        """
        last = 0 if answer.state is None else answer.state.last_seq
        return answer.created == self._created and last < self._follower.last

    async def _find_stream(self, patient_until: float) -> Answer:
        """Return the description of the stream. Creates the stream if it does not exist.

        A stream that exists with other settings is used as it is.
        patient_until: a time of the event loop's clock. If there are fewer servers than REPLICAS,
            creating the stream fails before this time. After this time, the stream is created on
            one server.
        """
        answer = await self._ask_stream("INFO")
        if answer.error is not None:
            # Whatever the error is: CREATE does not change a stream that exists.
            answer = await self._ask_stream("CREATE", REPLICAS)
            code = 0 if answer.error is None else answer.error.err_code
            is_late = asyncio.get_running_loop().time() >= patient_until
            if code == NO_CLUSTER or (code in FEW_SERVERS and is_late):
                answer = await self._ask_stream("CREATE", 1)
            elif code == OTHER_SETTINGS:
                # Another process has created the stream just now.
                answer = await self._ask_stream("INFO")
        if answer.error is not None:
            raise Disconnected(f"{self._name}: {answer.error.description}")
        return answer

    async def _add_replicas(self, config: Mapping[str, Any]) -> None:
        """Store the messages on REPLICAS servers, if the cluster has that many servers by now."""
        body = encode({**config, "num_replicas": REPLICAS})
        try:
            answer = await self._requests.send(f"$JS.API.STREAM.UPDATE.{self._name}", body)
        except Disconnected as exc:
            log.debug("%s: %s", self._name, exc)
            return
        if answer.error is None:
            log.info("%s is stored on %d servers now", self._name, REPLICAS)

    async def _ask_stream(self, operation: str, replicas: int = 0) -> Answer:
        """Request the description of the stream, or its creation.

        operation: INFO or CREATE.
        replicas: on how many servers the messages are stored, for CREATE; 0 for INFO.
        """
        body = encode({**self._settings, "num_replicas": replicas}) if replicas else b""
        return await self._requests.send(f"$JS.API.STREAM.{operation}.{self._name}", body)

    def _on_delivery(self, message: NatsMessage) -> None:
        """Handle a message or a heartbeat of the consumer."""
        self._consumer.heard_at = asyncio.get_running_loop().time()
        position = _read_position(message.reply)
        if position is None:
            # This is a heartbeat. Its header says how many messages the consumer has delivered.
            number = read_headers(message.headers).get("Nats-Last-Consumer", "0")
            if number != str(self._consumer.delivered):
                self._consumer.is_over.set()
            return
        number, delivered = position
        if delivered != self._consumer.delivered + 1:
            # A message is missing, or this message is of an earlier consumer.
            self._consumer.is_over.set()
            return
        self._consumer.delivered = delivered
        self._follower.handle(number, message.payload)
        self._check_opened()

    def _check_opened(self) -> None:
        """End the wait of open() if the follower has all messages up to _last_at_open."""
        if self._follower.last >= self._last_at_open and not self._opened.done():
            self._opened.set_result(None)


def _read_position(reply: str) -> tuple[int, int] | None:
    """Return (NUMBER, DELIVERED) from the reply subject of a message.

    NUMBER is the number of the message in its stream. DELIVERED is its number among the messages
    that the consumer has delivered. Returns None if the subject has another form.
    reply: `$JS.ACK.STREAM.CONSUMER.TRIES.NUMBER.DELIVERED.TIME.PENDING`; newer servers may insert
        two tokens before STREAM.
    """
    tokens = reply.split(".")
    if not reply.startswith("$JS.ACK.") or len(tokens) < 9:
        return None
    # The index of NUMBER.
    at = 5 if len(tokens) == 9 else 7
    try:
        return int(tokens[at]), int(tokens[at + 1])
    except ValueError:
        return None
