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
from concertino.orchestra.links import Answer, Answering, Calling, Listening, Peer, Refused
from concertino.orchestra.plugin_pb2 import PluginRequest, StreamCancel
from concertino.transports.listeners import Listener, listen_unix
from concertino.transports.sockets import credentials, is_trusted, unix_name

__all__ = ["connect_local", "listen_local"]

log = logging.getLogger("concertino.orchestra")

READ_BYTES = 65536  # at a time; CPython maps and unmaps memory for buffers above 128 KiB
HELD_BYTES = 2**20  # of output, before what makes more of it pauses
FRAME_S = 30.0  # for a frame to be complete once it has begun
MAX_CONNECTIONS = 512
AGAIN_S = 0.01


class _Framed(asyncio.BufferedProtocol):
    """Frames over a stream. Derived classes take what comes, and know what to do when output is held or the stream ends."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._assembler = Assembler()
        self._outgoing: list[bytes] = []
        self._turning = False  # something was sent in this loop turn
        self._transport: asyncio.Transport | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._why = "the connection ended"

    def _taken(self, payload: bytes) -> None:
        raise NotImplementedError

    def _ended(self, why: str) -> None:
        raise NotImplementedError

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HELD_BYTES)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        try:
            payloads = self._assembler.feed(self._buffer[:nbytes])
        except FrameTooLarge as why:
            self._abort(str(why))
            return
        for payload in payloads:
            self._taken(payload)
        if self._assembler.held:
            if self._patience is None or payloads:
                self._stop_waiting()
                self._patience = self._loop.call_later(FRAME_S, self._abort, f"a frame took more than {FRAME_S:g} s")
        elif self._patience is not None:
            self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _abort(self, why: str) -> None:
        """End the connection because of the other side; what is still to be sent is not."""
        self._why = why
        if self._transport is not None:
            self._transport.abort()

    def _send(self, payload: bytes) -> None:
        """The first of a loop turn leaves at once; what follows in the same turn goes together, at its end."""
        frame = len(payload).to_bytes(HEADER_BYTES, "big") + payload
        if self._turning:
            self._outgoing.append(frame)
        elif self._transport is not None and not self._transport.is_closing():
            self._turning = True
            self._loop.call_soon(self._turned)
            self._transport.write(frame)

    def _turned(self) -> None:
        self._turning = False
        self._flush()

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if outgoing and self._transport is not None and not self._transport.is_closing():
            self._transport.write(
                b"".join(outgoing)
            )  # writelines() of CPython 3.12.0 to 3.12.4 never pauses the protocol

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._transport = None
        self._outgoing = []
        self._ended(str(exc) if exc is not None else self._why)


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
            except BlockingIOError:  # too many wait to be accepted; nothing tells when there is room, unix(7)
                if loop.time() > deadline:
                    raise Disconnected(f"unix:{name}: nobody accepts within {timeout_s:g} s") from None
                await asyncio.sleep(AGAIN_S)
        pid, uid = credentials(sock)
        if not is_trusted(uid, os.geteuid()):
            raise Refused(f"unix:{name}: who listens there runs as uid {uid}, and this process as {os.geteuid()}")
        link = LocalLink(Peer(f"unix:{name}", None, pid, uid))
        await loop.create_connection(lambda: link, sock=sock)
        return link
    except OSError as why:
        sock.close()
        raise Disconnected(f"unix:{name}: {why.strerror or why}") from None
    except BaseException:
        sock.close()
        raise


class LocalLink(_Framed, Calling):
    """A Link over a Unix socket."""

    def __init__(self, peer: Peer) -> None:
        _Framed.__init__(self)
        Calling.__init__(self, peer)
        self._room: asyncio.Event | None = None  # while output is held

    def _ask(self, payload: bytes, id: str) -> Hashable:
        self._send(payload)
        return id

    def _abandon(self, key: Hashable) -> None:
        cancel = PluginRequest(stream_cancel=StreamCancel(stream_id=cast(str, key)))
        self._send(cancel.SerializeToString())

    def _is_held(self) -> bool:
        return self._room is not None

    async def _ready(self) -> None:
        while self._room is not None:
            await self._room.wait()

    def pause_writing(self) -> None:
        self._room = asyncio.Event()

    def resume_writing(self) -> None:
        if self._room is not None:
            self._room.set()
            self._room = None

    def _taken(self, payload: bytes) -> None:
        # The id is the first field that any serializer writes; a response without one is nobody's.
        size = payload[1] if len(payload) > 1 and payload[0] == 0x0A else 0
        self._delivered(payload[2 : 2 + size].decode("utf-8", "replace"), payload)

    def _ended(self, why: str) -> None:
        self.resume_writing()
        self._lose(why)

    async def close(self) -> None:
        self._why = "the link was closed"
        if self._transport is not None:
            self._flush()
            self._transport.close()
        await asyncio.wait((self.lost,))


# The answering end


def listen_local(path: str, answer: Answer) -> Listening:
    """See links.listen."""
    folder = Path(unix_name(path)).absolute().parent
    try:
        mode = folder.stat().st_mode
    except OSError as why:
        raise OSError(why.errno, f"unix:{path}: {folder}: {why.strerror}") from None
    if mode & stat.S_ISVTX:  # as /tmp: everybody's on purpose
        raise PermissionError(f"unix:{path}: {folder} is everybody's: mkdir -m 700 {folder}/NAME, and put it there")
    if mode & 0o077:
        raise PermissionError(f"unix:{path}: others may enter its folder; chmod 700 {folder}")
    return _Local(listen_unix(path), answer)


class _Local:
    """A Unix socket that is listened at."""

    def __init__(self, listener: Listener, answer: Answer) -> None:
        self.address = listener.address
        self._listener = listener
        self._answer = answer
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
                    raise PermissionError(None, f"{MAX_CONNECTIONS} are connected, as many as may be")
                facts = self._listener.examine(sock)
                peer = Peer(self.address, None, cast(int | None, facts.get("pid")), cast(int, facts["uid"]))
                sock.setblocking(False)
                connection = _Answered(self._answer, peer, self._connections)
                await self._loop.create_connection(lambda connection=connection: connection, sock=sock)
            except OSError as why:
                sock.close()
                log.warning("%s: somebody was sent away: %s", self.address, why.strerror or why)

    async def close(self, drain_s: float = 0.0) -> None:
        self._accepting.cancel()
        await asyncio.wait((self._accepting,))
        self._listener.close()
        connections = list(self._connections)
        if drain_s and connections:
            waiting = [self._loop.create_task(connection.answering.drained()) for connection in connections]
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

    def __init__(self, answer: Answer, peer: Peer, among: set[_Answered]) -> None:
        super().__init__()
        self.answering = Answering(answer, peer, self._respond, self._hold)
        self.over: asyncio.Future[None] = self._loop.create_future()
        self._among = among
        self._holds = 0  # reasons not to read: output that is not taken, requests that are not answered

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._among.add(self)

    def close(self) -> None:
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        self._abort("it did not take what it was sent")

    def _taken(self, payload: bytes) -> None:
        self.answering.receive(payload)

    def _respond(self, key: Hashable, payload: bytes | None) -> None:
        if payload is not None:
            self._send(payload)

    def _hold(self, held: bool) -> None:
        self._holds += 1 if held else -1
        if self._transport is None or self._transport.is_closing():
            return
        if self._holds == 1 and held:
            self._transport.pause_reading()
        elif self._holds == 0:
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self._hold(True)

    def resume_writing(self) -> None:
        self._hold(False)

    def _ended(self, why: str) -> None:
        if why != "the connection ended":
            log.warning("%s: pid %s: %s", self.answering.peer.address, self.answering.peer.pid, why)
        self._among.discard(self)
        self.answering.close()
        if not self.over.done():
            self.over.set_result(None)
