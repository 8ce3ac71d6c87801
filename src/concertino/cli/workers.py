"""Runs several processes of one server: `concertino serve TARGET --http ADDRESS --workers N`.

The parent process listens, and imports nothing of the server. Each worker runs the same command
again, inherits the listening sockets, and accepts clients from the same queue. So clients in the
queue are not affected if a worker dies.

Parent and worker are connected by a pair of sockets. The worker sends a byte through it when it is
ready. If the parent ends, even by SIGKILL, its socket is closed, and the worker ends, too.

Two requests of one client may reach different workers. So the workers share the key with which they
sign what clients store for them (`requestState`), and a record of the states that clients have sent
back already. A worker passes a request on to the worker that has the request's session
(http/worker_peers.py).
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from concertino.runtime.client_questions import STATE_RECORD
from concertino.runtime.service_manager import notify_ready
from concertino.runtime.state_keys import STATE_KEY
from concertino.runtime.worker_link import WORKER, WorkerPlace
from concertino.transports.listeners import FIRST_INHERITED, Listener

__all__ = ["run_workers"]

log = logging.getLogger("concertino.workers")

# A worker that has died is started again after a pause, which doubles up to the longest one.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
# If a worker has run for this time before it dies, the pause is the first one again.
STEADY_S = 5.0
# After a signal, workers that have not ended by themselves are killed.
KILL_AFTER_S = 30.0
# A worker's descriptors are first moved to this number and above, so that giving them the numbers
# that the worker expects does not close one of them.
HIGH_DESCRIPTOR = 64


def run_workers(count: int, listeners: Sequence[Listener]) -> int:
    """Run worker processes until SIGTERM or SIGINT, and start those again that die.

    count: the number of workers. Each runs the command line of this process again.
    listeners: the sockets at which the workers accept clients. They are closed at the end.
    Returns the exit code for this process: 0 after a signal. If a worker ends before it serves, and
    before all have served once, the server cannot start: all workers are ended, and the result is
    the exit code of that worker.
    """
    # For the sockets at which workers pass requests to each other, and the record of used states.
    folder = Path(tempfile.mkdtemp(prefix="concertino-"))
    environment = dict(os.environ)
    # This process tells systemd when all workers serve, so no worker may do so.
    environment.pop("NOTIFY_SOCKET", None)
    if STATE_KEY not in environment:
        environment[STATE_KEY] = secrets.token_urlsafe(32)
    environment.setdefault(STATE_RECORD, str(folder / "used-states"))
    try:
        return asyncio.run(_Supervisor(count, listeners, environment, folder).run())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Worker:
    """One worker process.

    number: the number of the worker, from 1. A worker that replaces a dead one has its number.
    pid: the id of the process.
    link: the parent's socket of the pair that connects the parent with the worker.
    began: the time at which the worker was started, by the loop's clock.
    is_ready: whether the worker has reported that it serves.
    """

    def __init__(self, number: int, pid: int, link: socket.socket, now: float) -> None:
        self.number = number
        self.pid = pid
        self.link = link
        self.began = now
        self.is_ready = False


class _Supervisor:
    """Starts the workers, replaces those that die, and ends all of them after a signal."""

    def __init__(
        self,
        count: int,
        listeners: Sequence[Listener],
        environment: dict[str, str],
        folder: Path,
    ) -> None:
        self._count = count
        self._folder = folder
        self._listeners = listeners
        self._environment = environment
        self._loop: asyncio.AbstractEventLoop
        # Process id -> worker.
        self._workers: dict[int, _Worker] = {}
        self._pause_s = FIRST_PAUSE_S
        # Whether all workers have served at the same time. If not, a worker's end may mean that the
        # server itself cannot start.
        self._has_served = False
        # Whether the workers are being ended, after a signal or because none can start.
        self._is_ending = False
        # The exit code of this process.
        self._code = 0
        # Set when all workers have ended.
        self._ended = asyncio.Event()

    async def run(self) -> int:
        """Run until a signal comes, or no worker can start. Returns the exit code."""
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._end)
        self._loop.add_signal_handler(signal.SIGCHLD, self._reap_workers)
        for number in range(1, self._count + 1):
            self._start(number)
        await self._ended.wait()
        for listener in self._listeners:
            listener.close()
        return self._code

    def _start(self, number: int) -> None:
        """Start the worker with this number, unless the server is ending."""
        if self._is_ending:
            return
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        # Not by subprocess, which could not put the worker's own id into LISTEN_PID.
        pid = os.fork()
        if pid == 0:
            self._become_worker(number, theirs)
        theirs.close()
        worker = self._workers[pid] = _Worker(number, pid, ours, self._loop.time())
        self._loop.add_reader(ours, self._on_link, worker)

    def _become_worker(self, number: int, link: socket.socket) -> None:
        """Run the command again in this process, which was just forked. Does not return."""
        try:
            sockets = [listener.socket.fileno() for listener in self._listeners]
            high = [
                fcntl.fcntl(descriptor, fcntl.F_DUPFD, HIGH_DESCRIPTOR)
                for descriptor in (*sockets, link.fileno())
            ]
            for index, descriptor in enumerate(high):
                os.dup2(descriptor, FIRST_INHERITED + index)
                os.close(descriptor)
            link_number = FIRST_INHERITED + len(sockets)
            place = WorkerPlace(link_number, number, self._count, self._folder)
            # The worker gets the listening sockets as systemd would pass them, by these variables.
            # inherited_listeners() reads them.
            environment = {
                **self._environment,
                "LISTEN_PID": str(os.getpid()),
                "LISTEN_FDS": str(len(sockets)),
                WORKER: place.encode(),
            }
            command = [sys.executable, "-m", "concertino", *sys.argv[1:]]
            os.execve(sys.executable, command, environment)
        finally:
            # os.execve() has failed. Nothing of the parent may run here.
            os._exit(1)

    def _on_link(self, worker: _Worker) -> None:
        """Handle input from a worker: a byte when it is ready, the end of input when it ends."""
        if not worker.link.recv(64):
            self._loop.remove_reader(worker.link)
            return
        worker.is_ready = True
        if not self._has_served and all(worker.is_ready for worker in self._workers.values()):
            self._has_served = True
            log.info("%d workers serve", self._count)
            notify_ready()

    def _reap_workers(self) -> None:
        """Handle SIGCHLD: find out which workers have ended, and start them again."""
        for worker in list(self._workers.values()):
            pid, status = os.waitpid(worker.pid, os.WNOHANG)
            if pid:
                self._on_end(worker, os.waitstatus_to_exitcode(status))
        if self._is_ending and not self._workers:
            self._ended.set()

    def _on_end(self, worker: _Worker, code: int) -> None:
        """Handle the end of a worker: start it again, unless the server cannot start at all.

        code: the exit code; a negative number is the signal that ended the worker.
        """
        del self._workers[worker.pid]
        self._loop.remove_reader(worker.link)
        worker.link.close()
        if self._is_ending:
            return
        if not self._has_served and not worker.is_ready:
            # The server itself cannot start. The worker has logged the reason.
            self._code = code if code > 0 else 1
            self._end()
            return
        how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        if self._loop.time() - worker.began >= STEADY_S:
            self._pause_s = FIRST_PAUSE_S
        log.error(
            "worker %d (pid %d) %s; it is started again in %g s",
            worker.number,
            worker.pid,
            how,
            self._pause_s,
        )
        self._loop.call_later(self._pause_s, self._start, worker.number)
        self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2)

    def _end(self) -> None:
        """Send SIGTERM to the workers, which then let their calls finish, and later SIGKILL."""
        if self._is_ending:
            return
        self._is_ending = True
        self._send_signal(signal.SIGTERM)
        self._loop.call_later(KILL_AFTER_S, self._send_signal, signal.SIGKILL)
        if not self._workers:
            self._ended.set()

    def _send_signal(self, number: signal.Signals) -> None:
        for worker in self._workers.values():
            os.kill(worker.pid, number)
