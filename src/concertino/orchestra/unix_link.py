"""Links over a Unix socket: the same frames, any number of requests at once, matched by request_id. For processes of one user.

The socket lies in a folder that nobody else can enter, has mode 0600, and both sides look at whose process the other is.
One write per turn of the loop carries everything that was said in it. Output that is not taken pauses what makes more of it: the
answering end stops reading, the asking end lets request() wait.
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
from concertino.orchestra.link import (
    CLOSED,
    Answer,
    ConnectionRefused,
    LinkListener,
    Relay,
    RemotePeer,
)
from concertino.orchestra.plugin_pb2 import PluginRequest, PluginResponse, StreamCancel
from concertino.orchestra.rpc import RpcClient, RpcServer
from concertino.runtime.tasks import read_batch_of
from concertino.transports.listeners import Listener, errno_message, listen_unix
from concertino.transports.sockets import credentials, is_trusted, unix_name

from google.protobuf.message import DecodeError  # isort: skip  # links.py says what to install when it is missing

__all__ = ["connect_local", "listen_local"]

log = logging.getLogger("concertino.orchestra")

READ_BYTES = 65536  # at a time; CPython maps and unmaps memory for buffers above 128 KiB
HELD_BYTES = 2**20  # of output, before what makes more of it pauses
FRAME_S = 30.0  # for a frame to be complete once it has begun
MAX_CONNECTIONS = 512
AGAIN_S = 0.01
LEAVE_S = 0.5  # for the other side to take what it was sent, before a link is closed all the same


class _Framed:
    """Frames over a socket. Derived classes take what comes, and know what to do when output is held or the stream ends.

    The socket is read and written here and not by a transport of asyncio, as in transports/pipe.py.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._watcher = asyncio.get_running_loop()
        self._reading = read_batch_of(self._watcher)
        self._assembler = Assembler()
        self._outgoing: list[bytes] = []  # for the end of this turn or reading
        self._rest = bytearray()  # what the other side has not taken
        self._turning = False  # something was sent in this loop turn
        self._answered_lone = 0  # see Reading.lone: the last in which something was sent
        self._is_full = False
        self._is_paused = False
        self._is_leaving = False  # nothing is read any more, and what is held still sent
        self._is_over = False
        self._patience: asyncio.TimerHandle | None = None
        self._why = "the connection ended"
        sock.setblocking(False)
        self._watcher.add_reader(sock, self._readable)

    def _taken(self, payload: bytes) -> None:
        raise NotImplementedError

    def _ended(self, why: str) -> None:
        raise NotImplementedError

    def _held(self, full: bool) -> None:
        """More output is held than should be; or not any more."""
        raise NotImplementedError

    def _readable(self) -> None:
        try:
            chunk = self._socket.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as why:
            self._abort(errno_message(why))
            return
        assembler, reading = self._assembler, self._reading
        if (
            not assembler.held
            and int.from_bytes(chunk[:HEADER_BYTES], "big") == len(chunk) - HEADER_BYTES
        ):
            reading.begin(1)  # one frame, as feed() would say: 3,000 instructions less
            try:
                self._taken(chunk[HEADER_BYTES:])
            finally:
                reading.end()
            return
        if not chunk:
            self._leave()
            return
        try:
            payloads = assembler.feed(chunk)
        except FrameTooLarge as why:
            self._abort(str(why))
            return
        reading.begin(len(payloads))
        try:
            for payload in payloads:
                self._taken(payload)
        finally:
            reading.end()
        if assembler.held:
            if (self._patience is None or payloads) and not self._is_over:
                self._stop_waiting()
                self._patience = self._watcher.call_later(
                    FRAME_S, self._abort, f"a frame took more than {FRAME_S:g} s"
                )
        elif self._patience is not None:
            self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _pause(self, paused: bool) -> None:
        """Reading."""
        if paused is self._is_paused or self._is_leaving or self._is_over:
            return
        self._is_paused = paused
        if paused:
            self._watcher.remove_reader(self._socket)
        else:
            self._watcher.add_reader(self._socket, self._readable)

    def _send(self, payload: bytes) -> None:
        """The first of a loop turn leaves at once; what follows in the same turn goes together, at its end.

        So with a reading: the first leaves at once if one frame was read, as it is the only one then as a rule.
        """
        frame = len(payload).to_bytes(HEADER_BYTES, "big") + payload
        reading = self._reading
        if reading.on:
            if self._outgoing:
                self._outgoing.append(frame)
            elif (lone := reading.lone) and lone != self._answered_lone:
                self._answered_lone = lone
                self._write(frame)
            else:
                reading.at_end(self._flush)
                self._outgoing.append(frame)
        elif self._turning:
            self._outgoing.append(frame)
        else:
            self._turning = True
            self._watcher.call_soon(self._turned)
            self._write(frame)

    def _turned(self) -> None:
        self._turning = False
        self._flush()

    def _flush(self) -> None:
        outgoing = self._outgoing
        if outgoing:
            self._outgoing = []
            self._write(outgoing[0] if len(outgoing) == 1 else b"".join(outgoing))

    def _write(self, data: bytes) -> None:
        if self._is_over:
            return
        if not self._rest:
            try:
                sent = self._socket.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as why:
                self._abort(errno_message(why))
                return
            if sent == len(data):
                return
            data = data[sent:]
            self._watcher.add_writer(self._socket, self._writable)
        self._rest += data
        if not self._is_full and len(self._rest) > HELD_BYTES:
            self._is_full = True
            self._held(True)

    def _writable(self) -> None:
        try:
            del self._rest[: self._socket.send(self._rest)]
        except (BlockingIOError, InterruptedError):
            return
        except OSError as why:
            self._abort(errno_message(why))
            return
        if not self._rest:
            self._watcher.remove_writer(self._socket)
            if self._is_leaving:
                self._end()
        if self._is_full and len(self._rest) <= HELD_BYTES // 4:
            self._is_full = False
            self._held(False)

    def _abort(self, why: str) -> None:
        """End the connection because of the other side; what is still to be sent is not."""
        if not self._is_over:
            self._why = why
            self._end()

    def _leave(self) -> None:
        """Read no more, send what is held, and end."""
        if self._is_leaving or self._is_over:
            return
        self._flush()
        self._pause(True)
        self._is_leaving = True
        if not self._rest:
            self._end()

    def _end(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._watcher.remove_reader(self._socket)
        self._watcher.remove_writer(self._socket)
        self._stop_waiting()
        self._outgoing = []
        self._rest = bytearray()
        self._socket.close()
        self._watcher.call_soon(
            self._ended, self._why
        )  # not inside of what a task does, or of a reading


# The asking end


async def connect_local(path: str, timeout_s: float) -> LocalLink:
    """See links.connect."""
    name = unix_name(path)
    loop = asyncio.get_running_loop()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        deadline = loop.time() + timeout_s
        while True:
            try:
                sock.connect(name)
                break
            except (
                BlockingIOError
            ):  # too many wait to be accepted; nothing tells when there is room, unix(7)
                if loop.time() > deadline:
                    raise Disconnected(
                        f"unix:{name}: nobody accepts within {timeout_s:g} s"
                    ) from None
                await asyncio.sleep(AGAIN_S)
        pid, uid = credentials(sock)
        if not is_trusted(uid, os.geteuid()):
            raise ConnectionRefused(
                f"unix:{name}: who listens there runs as uid {uid}, and this process as {os.geteuid()}"
            )
        return LocalLink(sock, RemotePeer(f"unix:{name}", None, pid, uid))
    except OSError as why:
        sock.close()
        raise Disconnected(f"unix:{name}: {why.strerror or why}") from None
    except BaseException:
        sock.close()
        raise


class LocalLink(RpcClient, _Framed):
    """A Link over a Unix socket."""

    def __init__(self, sock: socket.socket, peer: RemotePeer) -> None:
        _Framed.__init__(self, sock)
        RpcClient.__init__(self, peer)

    def _ask(self, payload: bytes, id: bytes) -> Hashable:
        if self._waiting or self._reading.on or self._turning:
            self._send(payload)
        else:  # nobody else asks: no turn of the loop is needed for those who might follow
            self._write(len(payload).to_bytes(HEADER_BYTES, "big") + payload)
        return id

    def _abandon(self, key: Hashable) -> None:
        cancel = PluginRequest(stream_cancel=StreamCancel(stream_id=cast(bytes, key).decode()))
        self._send(cancel.SerializeToString())

    def _taken(self, payload: bytes) -> None:
        if (
            len(payload) > 1 and payload[0] == 0x0A
        ):  # the id is the first field that nearly any serializer writes
            id = payload[2 : 2 + payload[1]]
        else:
            try:
                id = PluginResponse.FromString(payload).request_id.encode()
            except DecodeError:
                return  # nobody's
        self._delivered(id, payload)

    def _ended(self, why: str) -> None:
        self._held(False)
        self._lose(why)

    async def close(self, why: str = CLOSED) -> None:
        self._why = why
        self._leave()
        await asyncio.wait((self.lost,), timeout=LEAVE_S)
        self._end()
        await asyncio.wait((self.lost,))


# The answering end


def listen_local(path: str, answer: Answer, relay: Relay | None = None) -> LinkListener:
    """See links.listen."""
    folder = Path(unix_name(path)).absolute().parent
    try:
        mode = folder.stat().st_mode
    except OSError as why:
        raise OSError(why.errno, f"unix:{path}: {folder}: {why.strerror}") from None
    if mode & stat.S_ISVTX:  # as /tmp: everybody's on purpose
        raise PermissionError(
            f"unix:{path}: {folder} is everybody's: mkdir -m 700 {folder}/NAME, and put it there"
        )
    if mode & 0o077:
        raise PermissionError(f"unix:{path}: others may enter its folder; chmod 700 {folder}")
    return _Local(listen_unix(path), answer, relay)


class _Local:
    """A Unix socket that is listened at."""

    def __init__(self, listener: Listener, answer: Answer, relay: Relay | None) -> None:
        self.address = listener.address
        self._listener = listener
        self._answer = answer
        self._relay = relay
        self._loop = asyncio.get_running_loop()
        self._connections: set[_Answered] = set()
        self._accepting = self._loop.create_task(self._accept())

    async def _accept(self) -> None:
        while True:
            try:
                sock, _ = await self._loop.sock_accept(self._listener.socket)
            except OSError as why:  # no descriptors left
                log.warning("%s: nobody can be let in for a while: %s", self.address, why.strerror)
                await asyncio.sleep(1.0)
                continue
            try:
                if len(self._connections) >= MAX_CONNECTIONS:
                    raise PermissionError(
                        None, f"{MAX_CONNECTIONS} are connected, as many as may be"
                    )
                facts = self._listener.examine(sock)
                peer = RemotePeer(
                    self.address, None, cast(int | None, facts.get("pid")), cast(int, facts["uid"])
                )
                _Answered(sock, self._answer, self._relay, peer, self._connections)
            except OSError as why:
                sock.close()
                log.warning("%s: somebody was sent away: %s", self.address, why.strerror or why)

    async def close(self, drain_s: float = 0.0) -> None:
        self._accepting.cancel()
        await asyncio.wait((self._accepting,))
        self._listener.close()
        connections = list(self._connections)
        if drain_s and connections:
            waiting = [
                self._loop.create_task(connection.answering.drained()) for connection in connections
            ]
            _, late = await asyncio.wait(waiting, timeout=drain_s)
            for task in late:
                task.cancel()
        for connection in connections:
            connection.close()
        if connections:
            await asyncio.wait([connection.over for connection in connections], timeout=1.0)
        for connection in list(self._connections):  # does not read what it was sent
            connection.abort()


class _Answered(_Framed):
    """One connection whose requests are answered."""

    def __init__(
        self,
        sock: socket.socket,
        answer: Answer,
        relay: Relay | None,
        peer: RemotePeer,
        among: set[_Answered],
    ) -> None:
        super().__init__(sock)
        self.answering = RpcServer(answer, peer, self._respond, self._hold, relay)
        self._taken = self.answering.receive
        self.over: asyncio.Future[None] = self._watcher.create_future()
        self._among = among
        self._holds = (
            0  # reasons not to read: output that is not taken, requests that are not answered
        )
        among.add(self)

    def close(self) -> None:
        self._leave()

    def abort(self) -> None:
        self._abort("it did not take what it was sent")

    def _respond(self, key: Hashable, payload: bytes | None) -> None:
        if payload is not None:
            self._send(payload)

    def _held(self, full: bool) -> None:
        self._hold(full)

    def _hold(self, held: bool) -> None:
        self._holds += 1 if held else -1
        self._pause(self._holds > 0)

    def _ended(self, why: str) -> None:
        if why != "the connection ended":
            log.warning("%s: pid %s: %s", self.answering.peer.address, self.answering.peer.pid, why)
        self._among.discard(self)
        self.answering.close()
        if not self.over.done():
            self.over.set_result(None)
