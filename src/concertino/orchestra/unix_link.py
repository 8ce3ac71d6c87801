"""RPC connections over a Unix socket, for processes of one user on one machine.

Any number of requests share the connection; responses are matched by request_id. The socket lies
in a folder that other users cannot enter, has mode 0600, and both sides check the credentials of
the other process.

This module reads and writes the socket itself, without an asyncio transport. transports/pipe.py
gives the reason. All output of one loop iteration goes into one write. When the peer does not
take the output, the source of more pauses: an RpcServer stops reading, RpcClient.request() waits.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
from collections.abc import Hashable
from pathlib import Path
from typing import cast

from concertino.errors import Disconnected
from concertino.orchestra.frames import HEADER_BYTES, Assembler, FrameTooLarge
from concertino.orchestra.plugin_messages import (
    DecodeError,
    PluginRequest,
    PluginResponse,
    StreamCancel,
)
from concertino.orchestra.rpc import RpcClient, RpcServer
from concertino.orchestra.rpc_interface import (
    CLOSED,
    HandshakeFailure,
    RelayHandler,
    RemotePeer,
    RequestHandler,
    RpcListener,
)
from concertino.runtime.tasks import ReadBatch, read_batch_of
from concertino.transports.listeners import Listener, errno_message, listen_unix
from concertino.transports.sockets import credentials, is_trusted, unix_name

__all__ = ["listen_unix_links", "open_unix_link"]

log = logging.getLogger("concertino.orchestra")

# CPython maps and unmaps memory for every buffer above 128 KiB.
READ_BYTES = 65536
# Output that the peer has not taken: above the first figure the source of more output pauses,
# at the second it continues.
HIGH_WATER_BYTES = 2**20
LOW_WATER_BYTES = HIGH_WATER_BYTES // 4
# Time for a frame to be complete, from its first byte.
FRAME_S = 30.0
MAX_CONNECTIONS = 512
# Pause between attempts to connect while the listener's queue is full.
RETRY_S = 0.01
# Time for the peer to take the remaining output, before the connection is closed anyway.
FLUSH_S = 0.5
# The reason of an orderly end, which is not logged.
END_OF_STREAM = "the connection ended"


class _FrameWriter:
    """Writes frames to a socket, and buffers the bytes that do not fit into it."""

    def __init__(self, owner: _FrameSocket, sock: socket.socket, batch: ReadBatch) -> None:
        self._owner = owner
        self._socket = sock
        self._batch = batch
        self._loop = asyncio.get_running_loop()
        # Frames for the end of this loop iteration or read batch.
        self._queue: list[bytes] = []
        # What the socket did not take.
        self.rest = bytearray()
        # Whether a flush follows at the end of this loop iteration.
        self.is_flush_scheduled = False
        # The last batch of a single message in which a frame was written at once.
        self._last_lone = 0
        self._is_full = False
        self._is_closed = False

    def send(self, payload: bytes) -> None:
        """Send a frame.

        The first frame of a loop iteration is written at once; the others wait for its end and
        share one write. The same holds for a read batch, if it has one message only: then there is
        usually no second response.
        """
        frame = len(payload).to_bytes(HEADER_BYTES, "big") + payload
        batch = self._batch
        if batch.on:
            if self._queue:
                self._queue.append(frame)
            elif (lone := batch.lone) and lone != self._last_lone:
                self._last_lone = lone
                self.write(frame)
            else:
                batch.at_end(self.flush)
                self._queue.append(frame)
        elif self.is_flush_scheduled:
            self._queue.append(frame)
        else:
            self.is_flush_scheduled = True
            self._loop.call_soon(self._on_iteration_end)
            self.write(frame)

    def _on_iteration_end(self) -> None:
        self.is_flush_scheduled = False
        self.flush()

    def flush(self) -> None:
        """Write the queued frames."""
        queue = self._queue
        if queue:
            self._queue = []
            self.write(queue[0] if len(queue) == 1 else b"".join(queue))

    def write(self, data: bytes) -> None:
        """Write data now. Bytes that do not fit are sent when the socket becomes writable."""
        if self._is_closed:
            return
        if not self.rest:
            try:
                sent = self._socket.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as exc:
                self._owner.abort(errno_message(exc))
                return
            if sent == len(data):
                return
            data = data[sent:]
            self._loop.add_writer(self._socket, self._on_writable)

        self.rest += data
        if not self._is_full and len(self.rest) > HIGH_WATER_BYTES:
            self._is_full = True
            self._owner.on_backpressure(True)

    def _on_writable(self) -> None:
        try:
            del self.rest[: self._socket.send(self.rest)]
        except (BlockingIOError, InterruptedError):
            return
        except OSError as exc:
            self._owner.abort(errno_message(exc))
            return

        if not self.rest:
            self._loop.remove_writer(self._socket)
            self._owner.on_empty()
        if self._is_full and len(self.rest) <= LOW_WATER_BYTES:
            self._is_full = False
            self._owner.on_backpressure(False)

    def close(self) -> None:
        """Drop all output."""
        self._is_closed = True
        self._loop.remove_writer(self._socket)
        self._queue = []
        self.rest = bytearray()


class _FrameSocket:
    """A socket that carries frames. Derived classes define the on_... methods."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._loop = asyncio.get_running_loop()
        self._batch = read_batch_of(self._loop)
        self._assembler = Assembler()
        self._output = _FrameWriter(self, sock, self._batch)
        self._is_paused = False
        # No more reading; the remaining output is still sent.
        self._is_closing = False
        self._is_closed = False
        self._frame_timer: asyncio.TimerHandle | None = None
        self._reason = END_OF_STREAM
        sock.setblocking(False)
        self._loop.add_reader(sock, self._on_readable)

    def on_frame(self, payload: bytes) -> None:
        """Handle a received frame."""
        raise NotImplementedError

    def on_end(self, reason: str) -> None:
        """Handle the end of the connection."""
        raise NotImplementedError

    def on_backpressure(self, is_full: bool) -> None:
        """Handle that the output buffer is full, or no longer full."""
        raise NotImplementedError

    def on_empty(self) -> None:
        """Finish close(), once all output is sent."""
        if self._is_closing:
            self._end()

    def _on_readable(self) -> None:
        try:
            chunk = self._socket.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as exc:
            self.abort(errno_message(exc))
            return

        # The chunk is exactly one frame: feed() would return it, with 3,000 instructions more.
        assembler, batch = self._assembler, self._batch
        if (
            not assembler.buffered_bytes
            and int.from_bytes(chunk[:HEADER_BYTES], "big") == len(chunk) - HEADER_BYTES
        ):
            batch.begin(1)
            try:
                self.on_frame(chunk[HEADER_BYTES:])
            finally:
                batch.end()
            return

        if not chunk:
            self.begin_close()
            return
        try:
            payloads = assembler.feed(chunk)
        except FrameTooLarge as exc:
            self.abort(str(exc))
            return

        batch.begin(len(payloads))
        try:
            for payload in payloads:
                self.on_frame(payload)
        finally:
            batch.end()
        self._limit_frame_time(is_new=bool(payloads))

    def _limit_frame_time(self, *, is_new: bool) -> None:
        """Run a timer while a frame is incomplete. is_new: that frame began with the last chunk."""
        if not self._assembler.buffered_bytes:
            self._cancel_frame_timer()
        elif (self._frame_timer is None or is_new) and not self._is_closed:
            self._cancel_frame_timer()
            self._frame_timer = self._loop.call_later(
                FRAME_S, self.abort, f"a frame took more than {FRAME_S:g} s"
            )

    def _cancel_frame_timer(self) -> None:
        if self._frame_timer is not None:
            self._frame_timer.cancel()
            self._frame_timer = None

    def pause(self, is_paused: bool) -> None:
        """Pause reading, or resume it."""
        if is_paused is self._is_paused or self._is_closing or self._is_closed:
            return
        self._is_paused = is_paused
        if is_paused:
            self._loop.remove_reader(self._socket)
        else:
            self._loop.add_reader(self._socket, self._on_readable)

    def abort(self, reason: str) -> None:
        """Close the connection because of an error; remaining output is dropped."""
        if not self._is_closed:
            self._reason = reason
            self._end()

    def begin_close(self) -> None:
        """Stop reading, send the remaining output, then close."""
        if self._is_closing or self._is_closed:
            return
        self._output.flush()
        self.pause(True)
        self._is_closing = True
        if not self._output.rest:
            self._end()

    def _end(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._socket)
        self._output.close()
        self._cancel_frame_timer()
        self._socket.close()
        # Later, since a task or a read batch may be running now.
        self._loop.call_soon(self.on_end, self._reason)


# The side that sends requests


async def open_unix_link(path: str, timeout_s: float) -> UnixLink:
    """Connect to the socket at a path, as open_link() does."""
    name = unix_name(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await _connect(sock, name, timeout_s)
        pid, uid = credentials(sock)
        if not is_trusted(uid, os.geteuid()):
            raise HandshakeFailure(
                f"unix:{name}: the listener runs as uid {uid}, and this process as {os.geteuid()}"
            )
        return UnixLink(sock, RemotePeer(f"unix:{name}", None, pid, uid))
    except OSError as exc:
        sock.close()
        raise Disconnected(f"unix:{name}: {exc.strerror or exc}") from None
    except BaseException:
        sock.close()
        raise


async def _connect(sock: socket.socket, name: str, timeout_s: float) -> None:
    """Connect a socket. While the listener's queue is full, try again: unix(7) has no event."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        try:
            return sock.connect(name)
        except BlockingIOError:
            if loop.time() > deadline:
                raise Disconnected(
                    f"unix:{name}: the listener did not accept within {timeout_s:g} s"
                ) from None
            await asyncio.sleep(RETRY_S)


class UnixLink(RpcClient, _FrameSocket):
    """A ForwardingConnection over a Unix socket."""

    def __init__(self, sock: socket.socket, peer: RemotePeer) -> None:
        _FrameSocket.__init__(self, sock)
        RpcClient.__init__(self, peer)

    def _send_request(self, payload: bytes, id: bytes) -> Hashable:
        output = self._output
        if self._pending or self._batch.on or output.is_flush_scheduled:
            output.send(payload)
        else:
            # The only request so far: written at once, without a callback for later ones.
            output.write(len(payload).to_bytes(HEADER_BYTES, "big") + payload)
        return id

    def _send_cancel(self, key: Hashable) -> None:
        cancel = PluginRequest(stream_cancel=StreamCancel(stream_id=cast(bytes, key).decode()))
        self._output.send(cancel.SerializeToString())

    def on_frame(self, payload: bytes) -> None:
        # Nearly every serializer writes the id first.
        if len(payload) > 1 and payload[0] == 0x0A:
            id = payload[2 : 2 + payload[1]]
        else:
            try:
                id = PluginResponse.FromString(payload).request_id.encode()
            except DecodeError:
                return
        self._on_response(id, payload)

    def on_backpressure(self, is_full: bool) -> None:
        self._set_backpressure(is_full)

    def on_end(self, reason: str) -> None:
        self._set_backpressure(False)
        self._end_connection(reason)

    async def close(self, reason: str = CLOSED) -> None:
        """See RpcConnection.close."""
        self._reason = reason
        self.begin_close()
        await asyncio.wait((self.end_reason,), timeout=FLUSH_S)
        self._end()
        await asyncio.wait((self.end_reason,))


# The side that answers


def listen_unix_links(
    path: str, handler: RequestHandler, relay: RelayHandler | None = None
) -> RpcListener:
    """Listen at a path, in a folder of mode 0700. See listen_for_links."""
    folder = Path(unix_name(path)).absolute().parent
    try:
        mode = folder.stat().st_mode
    except OSError as exc:
        raise OSError(exc.errno, f"unix:{path}: {folder}: {exc.strerror}") from None

    # A folder such as /tmp, which is shared on purpose: chmod would be the wrong advice.
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
        self, listener: Listener, handler: RequestHandler, relay: RelayHandler | None
    ) -> None:
        self.address = listener.address
        self._listener = listener
        self._handler = handler
        self._relay = relay
        self._loop = asyncio.get_running_loop()
        self._connections: set[_UnixServerConnection] = set()
        self._accept_task = self._loop.create_task(self._accept())

    async def _accept(self) -> None:
        while True:
            try:
                sock, _ = await self._loop.sock_accept(self._listener.socket)
            # The process has no file descriptors left.
            except OSError as exc:
                log.warning("%s: cannot accept a connection: %s", self.address, exc.strerror)
                await asyncio.sleep(1.0)
                continue

            try:
                if len(self._connections) >= MAX_CONNECTIONS:
                    raise PermissionError(
                        None, f"{MAX_CONNECTIONS} connections are open, which is the limit"
                    )
                facts = self._listener.examine(sock)
                peer = RemotePeer(
                    self.address, None, cast(int | None, facts.get("pid")), cast(int, facts["uid"])
                )
                _UnixServerConnection(sock, self._handler, self._relay, peer, self._connections)
            except OSError as exc:
                sock.close()
                log.warning("%s: refused a connection: %s", self.address, exc.strerror or exc)

    async def close(self, drain_s: float = 0.0) -> None:
        """See RpcListener.close."""
        self._accept_task.cancel()
        await asyncio.wait((self._accept_task,))
        self._listener.close()

        connections = list(self._connections)
        if drain_s and connections:
            drains = [self._loop.create_task(connection.rpc.drain()) for connection in connections]
            _, late = await asyncio.wait(drains, timeout=drain_s)
            for task in late:
                task.cancel()

        for connection in connections:
            connection.begin_close()
        if connections:
            await asyncio.wait([connection.closed for connection in connections], timeout=1.0)
        # Those whose peer does not read the remaining output.
        for connection in list(self._connections):
            connection.abort("the peer does not read its responses")


class _UnixServerConnection(_FrameSocket):
    """One connection whose requests are handled here."""

    def __init__(
        self,
        sock: socket.socket,
        handler: RequestHandler,
        relay: RelayHandler | None,
        peer: RemotePeer,
        connections: set[_UnixServerConnection],
    ) -> None:
        super().__init__(sock)
        self.rpc = RpcServer(handler, peer, self._respond, self._hold, relay)
        # An instance attribute, which saves a call per request.
        self.on_frame = self.rpc.receive
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._connections = connections
        # Reasons not to read: the output buffer is full; too many bytes of requests in progress.
        self._holds = 0
        connections.add(self)

    def _respond(self, key: Hashable, payload: bytes | None) -> None:
        if payload is not None:
            self._output.send(payload)

    def on_backpressure(self, is_full: bool) -> None:
        self._hold(is_full)

    def _hold(self, is_full: bool) -> None:
        self._holds += 1 if is_full else -1
        self.pause(self._holds > 0)

    def on_end(self, reason: str) -> None:
        peer = self.rpc.peer
        if reason != END_OF_STREAM:
            log.warning("%s: pid %s: %s", peer.address, peer.pid, reason)
        self._connections.discard(self)
        self.rpc.close()
        if not self.closed.done():
            self.closed.set_result(None)
