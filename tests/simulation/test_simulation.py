"""Thousands of simulated worlds; and the proof that the simulation finds what is broken.

The expectations are those of model.py and world.py: the specification's rules, not the code's.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from concertino.jsonrpc.framing import Framer
from concertino.jsonrpc.peer import Peer
from concertino.protocol.call_notifications import CallNotifications
from concertino.protocol.session import Session
from concertino.runtime.server_connection import ServerConnection
from concertino.transports.pipe import PipeConnection
from simulation import seeds
from simulation.kernel import Kernel
from simulation.model import Model
from simulation.world import World, run, setting

TESTS = Path(__file__).resolve().parent.parent


def simulate(first: int, count: int) -> None:
    """Run seeds in processes of their own, without coverage: on all cores, at full speed."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")
    }
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    command = [sys.executable, "-m", "simulation", "--from", str(first), "--seeds", str(count)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("seed", seeds.read_failed_seeds())
def test_a_seed_that_once_failed_does_not_fail_again(seed: int):
    assert run(seed) == []


@pytest.mark.slow
def test_a_thousand_seeds():
    """`scripts/soak simulation` runs 10,000."""
    simulate(0, 1000)


@pytest.mark.slow
def test_a_seed_is_the_same_run_every_time():
    def record(seed: int) -> list[Any]:
        events: list[Any] = []
        world = World(*setting(seed))
        original_on_read, original_on_written = Model.on_read, Model.on_written

        def on_read(model: Model, frame: bytes) -> None:
            events.append((world.poller.now, frame))
            original_on_read(model, frame)

        def on_written(model: Model, frame: bytes, about: Any) -> None:
            events.append((world.poller.now, about, frame))
            original_on_written(model, frame, about)

        with (
            patch.object(Model, "on_read", on_read),
            patch.object(Model, "on_written", on_written),
        ):
            world.run()
        return [*events, world.poller.now, world.poller.turns, world.kernel.counts]

    for seed in range(100):
        assert record(seed) == record(seed)


# Faults put in on purpose: each must be found

Fault = Callable[[], Any]


def _answered_twice() -> Any:
    respond = Session.respond

    def twice(self: Session, incoming: Any, result: Any, passes: Any = None) -> bool:
        open = incoming.open
        has_responded = respond(self, incoming, result, passes)
        if open and incoming.batch is None:
            incoming.open = True
            respond(self, incoming, result, passes)
        return has_responded

    return patch.object(Session, "respond", twice)


def _left_in_the_table() -> Any:
    cancel = Peer.cancel

    def forgetful(self: Peer, id: Any, reason: str) -> None:
        incoming = self.running.get(id)
        cancel(self, id, reason)
        if incoming is not None:
            self.running[id] = incoming
            incoming.table = self.running

    return patch.object(Peer, "cancel", forgetful)


def _rest_of_a_short_write_lost() -> Any:
    write = Kernel.write

    def all_of_it(self: Kernel, descriptor: int, data: memoryview) -> int:
        write(self, descriptor, data)
        return len(data)

    return patch.object(Kernel, "write", all_of_it)


def _never_resumed() -> Any:
    pause = PipeConnection.pause

    def only_pauses(self: PipeConnection, paused: bool) -> None:
        if paused:
            pause(self, paused)

    return patch.object(PipeConnection, "pause", only_pauses)


def _cancel_ignored() -> Any:
    return patch.object(Peer, "cancel", lambda self, id, reason: None)


def _handler_not_told_of_a_cancel() -> Any:
    cancel = Peer.cancel

    def quiet(self: Peer, id: Any, reason: str) -> None:
        incoming = self.running.get(id)
        if incoming is not None:
            incoming.on_cancel = None
        cancel(self, id, reason)

    return patch.object(Peer, "cancel", quiet)


def _held_miscounted() -> Any:
    write = PipeConnection.write
    return patch.object(
        PipeConnection, "write", lambda self, frame, about: max(0, write(self, frame, about) - 1)
    )


def _not_told_that_output_drained() -> Any:
    return patch.object(ServerConnection, "on_drain", lambda self, held: None)


def _progress_after_the_result() -> Any:
    progress = CallNotifications.progress

    def late(self: CallNotifications, incoming: Any, *what: Any) -> None:
        was, incoming.open = incoming.open, True
        progress(self, incoming, *what)
        incoming.open = was

    return patch.object(CallNotifications, "progress", late)


def _progress_that_falls() -> Any:
    progress = CallNotifications.progress

    def forgetful(self: CallNotifications, incoming: Any, *what: Any) -> None:
        incoming.last_progress = float("-inf")
        progress(self, incoming, *what)

    return patch.object(CallNotifications, "progress", forgetful)


def _out_of_turn() -> Any:
    admitted = Peer.pop_waiting

    def shuffled(self: Peer) -> Any:
        if len(self.waiting) > 1:
            first = next(iter(self.waiting))
            self.waiting[first] = self.waiting.pop(first)
        return admitted(self)

    return patch.object(Peer, "pop_waiting", shuffled)


def _admitted_beyond_the_limit() -> Any:
    admit = Peer.admit
    return patch.object(
        Peer, "admit", lambda self, incoming: bool(self.running) or admit(self, incoming)
    )


def _call_forgotten() -> Any:
    started = Peer.add_running

    def forgetful(self: Peer, incoming: Any) -> None:
        started(self, incoming)
        incoming.open = len(self.running) < 2

    return patch.object(Peer, "add_running", forgetful)


def _bytes_of_a_line_lost() -> Any:
    feed = Framer.feed
    return patch.object(Framer, "feed", lambda self, chunk: feed(self, chunk.rstrip(b"}")))


def _frames_run_together() -> Any:
    write = PipeConnection.write
    return patch.object(
        PipeConnection,
        "write",
        lambda self, frame, about: write(self, frame + b"\n" + frame[:0], about),
    )


def _end_of_input_cuts_off() -> Any:
    return patch.object(
        ServerConnection, "on_eof", lambda self: self.on_disconnect(OSError("cut off"))
    )


def _end_of_input_unnoticed() -> Any:
    return patch.object(ServerConnection, "on_eof", lambda self: None)


def _not_closed() -> Any:
    async def close(self: PipeConnection, within_s: float) -> None:
        await asyncio.sleep(0)

    return patch.object(PipeConnection, "close", close)


def _flush_forgotten() -> Any:
    flush = PipeConnection.flush

    def lazy(self: PipeConnection) -> None:
        if self._loop.time() % 0.01 < 0.008:  # pyright: ignore[reportPrivateUsage]
            flush(self)

    return patch.object(PipeConnection, "flush", lazy)


def _raised_in_a_callback() -> Any:
    def on_drain(self: ServerConnection, held: int) -> None:
        raise RuntimeError("a fault")

    return patch.object(ServerConnection, "on_drain", on_drain)


def _overlong_unanswered() -> Any:
    return patch.object(Peer, "on_frame_too_long", lambda self, size, head: None)


FAULTS: list[Fault] = [
    _answered_twice, _left_in_the_table, _rest_of_a_short_write_lost, _never_resumed,
    _cancel_ignored,
    _handler_not_told_of_a_cancel, _held_miscounted, _not_told_that_output_drained,
    _progress_after_the_result,
    _progress_that_falls, _out_of_turn, _admitted_beyond_the_limit, _call_forgotten,
    _bytes_of_a_line_lost, _frames_run_together,
    _end_of_input_cuts_off, _end_of_input_unnoticed, _not_closed, _flush_forgotten,
    _raised_in_a_callback, _overlong_unanswered,
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__.strip("_"))
def test_a_fault_put_in_is_found_within_a_few_hundred_seeds(fault: Fault):
    with fault():
        assert seeds.find_violations(seeds.attempt, range(400))
