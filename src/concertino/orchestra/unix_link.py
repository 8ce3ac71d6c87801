"""UnixLink, listen_unix_links(): RPC connections over a Unix socket, for processes of one user.

Hubs, plugins and bridges send each other requests over such connections. The functions of link.py
call open_unix_link() and listen_unix_links(). Concurrent requests share a connection, and a
response has the request_id of its request. The socket has mode 0600 and is in a directory that
other users cannot enter. Each side also checks the user id of the other side.

Frames that are sent in the same loop iteration share one write() where possible. While the output
buffer is full, the server side stops reading requests, and RpcClient.request() waits.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
from collections.abc import Hashable, Sequence
from math import inf
from pathlib import Path
from typing import cast

from concertino.errors import Disconnected, ProtocolError
from concertino.jsonrpc.limits import Limits
from concertino.orchestra.frames import HEADER_BYTES, Assembler, FrameTooLarge
from concertino.orchestra.plugin_messages import (
    DecodeError,
    PluginRequest,
    PluginResponse,
    StreamCancel,
)
from concertino.orchestra.rpc_client import RpcClient
from concertino.orchestra.rpc_interface import (
    CLOSED,
    HandshakeFailure,
    RelayHandler,
    RemotePeer,
    RequestHandler,
    RpcListener,
)
from concertino.orchestra.rpc_server import RpcServer
from concertino.runtime.tasks import read_batch_of
from concertino.transports.addresses import unix_name
from concertino.transports.connection import Receiver
from concertino.transports.listeners import Listener, errno_message, listen_unix
from concertino.transports.sockets import (
    SocketConnection,
    credentials,
    is_trusted,
    open_unix_socket,
)

__all__ = ["listen_unix_links", "open_unix_link"]

log = logging.getLogger("concertino.orchestra")

# Limits of buffered output: above high_water_bytes, the code that produces output pauses, and below
# low_water_bytes, it continues.
LIMITS = Limits(high_water_bytes=2**20, low_water_bytes=2**18)
# Time limit for a frame to arrive completely, from its first byte, in seconds.
FRAME_S = 30.0
# How many connections a listener has open at the same time. It refuses additional connections.
MAX_CONNECTIONS = 512
# How long no connection is accepted after the process had no file descriptors left, in seconds.
PAUSE_S = 1.0
# How long the peer may take to read the remaining output when the connection is closed, in seconds.
FLUSH_S = 0.5
# How long the peers of a listener may take to read the remaining output when the listener is
# closed.
CLOSE_S = 1.0
# The reason for an orderly end. _UnixServerConnection._on_end() recognizes it, and logs nothing.
END_OF_STREAM = "the connection ended"


class _FrameConnection(SocketConnection):
    """A Connection for frames of the plugin protocol: a length, then a message (frames.py).

    Both sides of a connection use this class. The receiver, which is passed to open(), handles the
    frames. A frame must arrive completely within FRAME_S. If a frame is late or too long, the
    receiver's on_disconnect() is called, and must close the connection.
    """

    # Frames begin with their length, so no bytes mark their end.
    terminator = b""
    # The base class repeats its read for each item, at each readiness event. One read is enough,
    # because a peer needs longer to send the next frame.
    reads = range(1)

    def __init__(self, sock: socket.socket) -> None:
        # The last argument would be facts about the peer, which nobody reads here.
        super().__init__(sock, LIMITS, {})
        self._assembler = Assembler()
        # Runs while a frame has arrived in part. When it fires, the frame is late.
        self._frame_timer: asyncio.TimerHandle | None = None
        # Whether flush() will be called at the end of this loop iteration.
        self.is_flush_scheduled = False
        # The single_id of the last read batch in which a frame was written at once, so that this
        # happens only once in a batch. Only a batch with a single message has a single_id, a number
        # that no other batch has.
        self._last_single_id = 0

    def open(self, receiver: Receiver) -> None:
        super().open(receiver)
        # The read batch of this loop (runtime/tasks.py). The answers to all messages of one read
        # are collected, and share a write().
        self._batch = read_batch_of(self._loop)

    # Reading

    def on_chunk(self, chunk: bytes) -> None:
        """Pass the frames that a chunk completes to the receiver. An empty chunk ends the input."""
        receiver = self._receiver
        if receiver is None:
            return
        if not chunk:
            self.pause(True)
            receiver.on_eof()
            return

        # Fast path: the chunk is exactly one frame. feed() would take 3,000 instructions more.
        assembler = self._assembler
        if (
            not assembler.buffered_bytes
            and int.from_bytes(chunk[:HEADER_BYTES], "big") == len(chunk) - HEADER_BYTES
        ):
            frames = [chunk[HEADER_BYTES:]]
        else:
            try:
                frames = assembler.feed(chunk)
            except FrameTooLarge as exc:
                receiver.on_disconnect(exc)
                return
            self._limit_frame_time(receiver, is_new=bool(frames))

        batch = self._batch
        batch.begin(len(frames))
        try:
            receiver.on_frames(frames)
        finally:
            batch.end()

    def _limit_frame_time(self, receiver: Receiver, *, is_new: bool) -> None:
        """Run the timer if a frame is incomplete, or stop it.

        is_new: whether the incomplete frame began with the last chunk.
        """
        is_incomplete = self._assembler.buffered_bytes > 0
        if self._frame_timer is not None and (is_new or not is_incomplete):
            self._frame_timer.cancel()
            self._frame_timer = None
        if is_incomplete and self._frame_timer is None:
            error = ProtocolError(f"a frame took more than {FRAME_S:g} s")
            self._frame_timer = self._loop.call_later(FRAME_S, receiver.on_disconnect, error)

    # Writing

    def send_payload(self, payload: bytes) -> int:
        """Send a message as a frame. Returns how many bytes of output are buffered now.

        payload: the serialized message, at most MAX_FRAME_BYTES.
        """
        # write() buffers a frame, and send() writes it at once. Their second argument is None,
        # because the frame belongs to no JSON-RPC request.
        frame = len(payload).to_bytes(HEADER_BYTES, "big") + payload
        batch = self._batch
        # The messages of one read are being handled (runtime/tasks.py). Frames are buffered, and
        # share one write at the end of the batch.
        if batch.in_progress:
            # Frames are buffered already. A flush is scheduled, and they come before this frame.
            if self._output.queue:
                return self.write(frame, None)
            # The batch has a single message, whose answer is usually a single frame.
            if (single_id := batch.single_id) and single_id != self._last_single_id:
                self._last_single_id = single_id
                return self.send(frame, None)
            batch.defer(self.flush)
            return self.write(frame, None)

        # The first frame of a loop iteration is written at once. Later frames of the iteration are
        # buffered, and share one write at its end.
        if self.is_flush_scheduled:
            return self.write(frame, None)
        self.is_flush_scheduled = True
        self._loop.call_soon(self._on_iteration_end)
        return self.send(frame, None)

    def send_lone_payload(self, payload: bytes) -> int:
        """Send a message that is probably the only one of this loop iteration.

        This is faster than send_payload(), because it schedules no callback for the end of the
        iteration. Without the callback, later frames of the iteration do not share one write.
        Returns how many bytes of output are buffered now.
        """
        if self._batch.in_progress or self.is_flush_scheduled:
            return self.send_payload(payload)
        return self.send(len(payload).to_bytes(HEADER_BYTES, "big") + payload, None)

    def flush_batch(self) -> None:
        """Write the frames that wait for the end of the current read batch, on all connections.

        A read batch is the handling of the messages of one read. Only the first call in it has an
        effect.
        """
        self._batch.flush_once()

    def _on_iteration_end(self) -> None:
        self.is_flush_scheduled = False
        self.flush()

    def abort(self) -> None:
        if self._frame_timer is not None:
            self._frame_timer.cancel()
            self._frame_timer = None
        super().abort()


# The side that sends requests


async def open_unix_link(path: str, timeout_s: float) -> UnixLink:
    """Connect to the listener at a path, and return the connection.

    timeout_s: how long connecting may take, in seconds.
    Raises Disconnected if no process listens there or connecting takes too long, HandshakeFailure
    if the listener belongs to another user, and ValueError for a path that a Unix socket cannot
    have.
    """
    name = unix_name(path)
    try:
        async with asyncio.timeout(timeout_s):
            sock = await open_unix_socket(name)
    except TimeoutError:
        raise Disconnected(
            f"unix:{name}: the listener did not accept within {timeout_s:g} s"
        ) from None
    except OSError as exc:
        raise Disconnected(f"unix:{name}: {exc.strerror or exc}") from None

    try:
        pid, uid = credentials(sock)
        if not is_trusted(uid, os.geteuid()):
            raise HandshakeFailure(
                f"unix:{name}: the listener runs as uid {uid}, and this process as {os.geteuid()}"
            )
        return UnixLink(sock, RemotePeer(f"unix:{name}", None, pid, uid))
    except BaseException:
        sock.close()
        raise


class UnixLink(RpcClient):
    """A connection over a Unix socket that sends requests: a ForwardingConnection.

    open_unix_link() returns it.

    sock: the connected socket.
    peer: the process that answers the requests.
    """

    def __init__(self, sock: socket.socket, peer: RemotePeer) -> None:
        super().__init__(peer)
        self._connection = _FrameConnection(sock)
        self._connection.open(self)

    def _send_request(self, payload: bytes, id: bytes, deadline: float) -> Hashable:
        connection = self._connection
        # If no other request is pending, this is probably the only request of this loop iteration.
        held = (
            connection.send_payload(payload)
            if self._pending
            else connection.send_lone_payload(payload)
        )
        if held >= LIMITS.high_water_bytes:
            self._set_backpressure(True)
        return id

    def _send_cancel(self, key: Hashable, stream: str = "") -> None:
        # On a Unix socket, a StreamCancel cancels any request, by the request's id.
        cancel = PluginRequest(stream_cancel=StreamCancel(stream_id=cast(bytes, key).decode()))
        self._connection.send_payload(cancel.SerializeToString())

    def _on_first_chunk(self) -> None:
        self._connection.flush_batch()

    async def close(self, reason: str = CLOSED) -> None:
        """Close the connection. Pending requests raise Disconnected with this reason."""
        self._connection.pause(True)
        await self._connection.close(FLUSH_S)
        self._on_end(reason)
        # Let tasks that wait for the end of the connection, or for a response, continue first.
        await asyncio.wait((self.end_reason,))

    def _on_end(self, reason: str) -> None:
        self._set_backpressure(False)
        self._end_connection(reason)

    # Receiver: the _FrameConnection calls these methods

    def on_frames(self, frames: Sequence[bytes]) -> None:
        """Pass each response to the request with the same id.

        frames: serialized responses.
        """
        for payload in frames:
            # 0x0A is the tag of request_id, which nearly every serializer writes first. The next
            # byte is the length of the id, because the ids of this package are short.
            if len(payload) > 1 and payload[0] == 0x0A:
                id = payload[2 : 2 + payload[1]]
            else:
                try:
                    id = PluginResponse.FromString(payload).request_id.encode()
                except DecodeError:
                    continue
            self._on_response(id, payload)

    def on_frame_too_long(self, size: int) -> None: ...

    def on_drain(self, held: int) -> None:
        self._set_backpressure(False)

    def on_eof(self) -> None:
        self.on_disconnect(Disconnected(END_OF_STREAM))

    def on_disconnect(self, exc: Exception) -> None:
        self._connection.abort()
        # _on_end() resumes the tasks that wait for responses, which is not possible inside a task
        # or a read batch. This method may be called inside one, so use call_soon().
        self.loop.call_soon(self._on_end, errno_message(exc))


# The side that answers


def listen_unix_links(
    path: str, handler: RequestHandler, relay: RelayHandler | None = None
) -> RpcListener:
    """Listen at a path, in a directory of mode 0700, and handle the requests that arrive.

    path: where the socket is created. The directory must exist.
    handler: handles each request that `relay` does not forward.
    relay: called first with each request, to forward it without decoding it. None if every request
        goes to `handler`.
    Raises PermissionError if other users can enter the directory, OSError if the path cannot be
    used, and ValueError for a path that a Unix socket cannot have.
    """
    folder = Path(unix_name(path)).absolute().parent
    try:
        mode = folder.stat().st_mode
    except OSError as exc:
        raise OSError(exc.errno, f"unix:{path}: {folder}: {exc.strerror}") from None

    # A directory such as /tmp is shared on purpose, so do not advise to change its mode.
    if mode & stat.S_ISVTX:
        raise PermissionError(
            f"unix:{path}: all users share {folder}: mkdir -m 700 {folder}/NAME, and put it there"
        )
    if mode & 0o077:
        raise PermissionError(f"unix:{path}: other users can enter its folder; chmod 700 {folder}")
    return _UnixRpcListener(listen_unix(path), handler, relay)


class _UnixRpcListener:
    """Accepts connections at a Unix socket."""

    def __init__(
        self,
        listener: Listener,
        handler: RequestHandler,
        relay: RelayHandler | None,
    ) -> None:
        self.address = listener.address
        self._listener = listener
        self._handler = handler
        self._relay = relay
        self._loop = asyncio.get_running_loop()
        self._connections: set[_UnixServerConnection] = set()
        # The timer that ends a pause of accepting; None while clients are accepted.
        self._resuming: asyncio.TimerHandle | None = None
        self._resume()

    def _resume(self) -> None:
        """Accept connections from now on: at the start, and after a pause."""
        self._resuming = None
        self._loop.add_reader(self._listener.socket, self._accept)

    def _accept(self) -> None:
        """Accept a connection. The event loop calls this method when a client has connected."""
        # A task with loop.sock_accept() could lose an accepted connection when it is cancelled.
        try:
            sock, _ = self._listener.socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            # The client has disconnected already.
            return
        except OSError as exc:
            # The process has no file descriptors left. Pause, because the client still waits, and
            # the event loop would call this method again at once.
            log.warning("%s: cannot accept a connection: %s", self.address, exc.strerror)
            self._loop.remove_reader(self._listener.socket)
            self._resuming = self._loop.call_later(PAUSE_S, self._resume)
            return

        try:
            sock.setblocking(False)
            if len(self._connections) >= MAX_CONNECTIONS:
                raise PermissionError(
                    None, f"{MAX_CONNECTIONS} connections are open, which is the limit"
                )
            # Raises PermissionError if the client belongs to another user.
            facts = self._listener.examine(sock)
            peer = RemotePeer(
                self.address, None, cast(int | None, facts.get("pid")), cast(int, facts["uid"])
            )
            _UnixServerConnection(sock, self._handler, self._relay, peer, self._connections)
        except OSError as exc:
            sock.close()
            log.warning("%s: refused a connection: %s", self.address, exc.strerror or exc)

    async def close(self, drain_s: float = 0.0) -> None:
        """Accept no more connections, wait up to drain_s seconds for responses, and disconnect."""
        if self._resuming is not None:
            self._resuming.cancel()
        self._loop.remove_reader(self._listener.socket)
        self._listener.close()

        connections = list(self._connections)
        if drain_s and connections:
            drains = [self._loop.create_task(connection.rpc.drain()) for connection in connections]
            _, late = await asyncio.wait(drains, timeout=drain_s)
            for task in late:
                task.cancel()

        if connections:
            closings = [connection.begin_close() for connection in connections]
            await asyncio.wait(closings, timeout=CLOSE_S)
        # The peers of the connections that are still open do not read the remaining output.
        for connection in list(self._connections):
            connection.abort("the peer does not read its responses")


class _UnixServerConnection:
    """The server's side of one connection, and the receiver of its frames.

    peer: the process that sends the requests.
    handler: handles each request that `relay` does not forward.
    relay: called first with each request, to forward it without decoding it. None if every request
        goes to `handler`.
    connections: the open connections of the listener. This object adds and removes itself.

    Attribute:
    rpc: handles the requests.
    """

    def __init__(
        self,
        sock: socket.socket,
        handler: RequestHandler,
        relay: RelayHandler | None,
        peer: RemotePeer,
        connections: set[_UnixServerConnection],
    ) -> None:
        self.rpc = RpcServer(
            handler,
            peer,
            respond=self._respond,
            hold=self._hold,
            unread=lambda: self._connection.buffered_bytes,
            relay=relay,
        )
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        # Reading pauses while the output buffer is full, and while the requests in progress take
        # too much memory.
        self._is_output_full = False
        self._is_rpc_full = False
        # The task of begin_close(); None before that.
        self._closing: asyncio.Task[None] | None = None
        connections.add(self)
        self._connection = _FrameConnection(sock)
        self._connection.open(self)

    def _respond(self, key: Hashable, payload: bytes | None, is_last: bool) -> None:
        if (
            payload is not None
            and self._connection.send_payload(payload) >= LIMITS.high_water_bytes
        ):
            self._is_output_full = True
            self._update_reading()

    def _hold(self, is_full: bool) -> None:
        self._is_rpc_full = is_full
        self._update_reading()

    def _update_reading(self) -> None:
        if self._closing is None:
            self._connection.pause(self._is_output_full or self._is_rpc_full)

    def begin_close(self) -> asyncio.Task[None]:
        """Stop reading, send the remaining output, then close. Returns the task that does this."""
        if self._closing is None:
            self._connection.pause(True)
            self._closing = self._loop.create_task(self._close())
        return self._closing

    async def _close(self) -> None:
        # No time limit, because the peer may still read. _UnixRpcListener.close() has a time limit.
        await self._connection.close(inf)
        self._on_end(END_OF_STREAM)

    def abort(self, reason: str) -> None:
        """Close the connection because of an error, and drop the remaining output.

        reason: the error, for the log.
        """
        self._connection.abort()
        # _on_end() may resume tasks, which is not possible inside a task or a read batch. This
        # method may be called inside one, so use call_soon().
        self._loop.call_soon(self._on_end, reason)

    def _on_end(self, reason: str) -> None:
        """Forget this connection, which has ended, and cancel its requests.

        reason: why the connection has ended, for the log.
        """
        if self not in self._connections:
            return
        self._connections.discard(self)
        peer = self.rpc.peer
        if reason != END_OF_STREAM:
            log.warning("%s: pid %s: %s", peer.address, peer.pid, reason)
        self.rpc.close()

    # Receiver

    def on_frames(self, frames: Sequence[bytes]) -> None:
        for payload in frames:
            self.rpc.receive(payload)

    def on_frame_too_long(self, size: int) -> None: ...

    def on_drain(self, held: int) -> None:
        self._is_output_full = False
        self._update_reading()

    def on_eof(self) -> None:
        self.begin_close()

    def on_disconnect(self, exc: Exception) -> None:
        self.abort(errno_message(exc))
