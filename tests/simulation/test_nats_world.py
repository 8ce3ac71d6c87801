"""Plugins that call each other over simulated NATS servers, which fail; see nats_world.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Any
from unittest.mock import patch

import pytest

from concertino.errors import Disconnected
from concertino.nats import cluster as cluster_module
from concertino.nats.cluster import NatsCluster
from concertino.nats.connection import NatsConnection
from concertino.orchestra import nats_link, nats_pieces, nats_worker
from concertino.orchestra.nats_link import NatsLink
from concertino.orchestra.nats_pieces import IncomingPieces
from concertino.orchestra.worker_places import WorkerPlaces
from simulation.nats_world import NatsWorld, make_nats_setting, run_nats
from simulation.seeds import find_violations

pytestmark = pytest.mark.no_cover
# `scripts/soak simulation --nats` runs 10,000.
SEEDS = 300
PIECE = 100
# Seeds by which the simulation has found errors, the first of each kind; see docs/decisions/0087.
ONCE_FAILED = (25, 55, 231, 292, 777, 1289, 1427, 3897)


@pytest.mark.parametrize("first", range(0, SEEDS, PIECE))
def test_no_call_runs_twice_or_hangs_whatever_happens_to_servers_and_workers(first: int) -> None:
    failed = {
        seed: problems for seed in range(first, first + PIECE) if (problems := run_nats(seed))
    }
    assert not failed, "see: scripts/soak simulation --nats --replay SEED"


@pytest.mark.parametrize("seed", ONCE_FAILED)
def test_a_seed_that_once_failed_passes(seed: int) -> None:
    assert not run_nats(seed)


def test_a_seed_gives_the_same_run_each_time() -> None:
    def record(seed: int) -> Any:
        world = NatsWorld(*make_nats_setting(seed))
        said: list[str] = []
        world.network.say = said.append
        assert not world.run()
        return said, world.poller.turns, world.poller.now

    for seed in range(20):
        assert record(seed) == record(seed)


# Faults that are put in

_Worker: Any = nats_worker.NatsWorker


def _a_request_without_an_ack_is_sent_again() -> Any:
    fail = NatsLink._fail

    def try_again(self: Any, key: Any, reason: str) -> None:
        if "no worker has answered" in reason and self._calls[key].attempts < 2:
            self._try_again(key)
        else:
            fail(self, key, reason)

    return patch.object(NatsLink, "_fail", try_again)


def _a_request_is_sent_again_when_its_worker_was_lost() -> Any:
    fail = NatsLink._fail

    def try_again(self: Any, key: Any, reason: str) -> None:
        call = self._calls.get(key)
        if call is not None and "was lost" in reason and call.attempts < 2:
            call.worker = ""
            self._try_again(key)
        else:
            fail(self, key, reason)

    return patch.object(NatsLink, "_fail", try_again)


def _late_requests_are_run() -> Any:
    return patch.object(nats_worker, "read_time_left", lambda fields: 60.0)


def _long_requests_are_run_late() -> Any:
    class WithoutDeadline(nats_pieces.PartialRequest):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.deadline = inf

    # A request that has expired is also cancelled while its pieces arrive.
    return patch.multiple(
        nats_worker, PartialRequest=WithoutDeadline, _read_limit=lambda fields: inf
    )


def _there_are_no_heartbeats() -> Any:
    return patch.object(_Worker, "_beat", lambda self: None)


def _heartbeats_are_not_missed() -> Any:
    return patch.object(nats_link, "LOST_S", inf)


def _acks_are_not_missed() -> Any:
    return patch.object(nats_link, "ACK_S", inf)


def _lost_responses_are_not_noticed() -> Any:
    return patch.object(nats_link, "ASK_S", inf)


def _lost_chunks_are_not_noticed() -> Any:
    on_chunk = NatsLink._on_framed_response

    def on_any_chunk(self: Any, key: Any, call: Any, fields: Any, *args: Any, **more: Any) -> None:
        on_chunk(self, key, call, {**fields, "Chunk": str(call.chunks)}, *args, **more)

    return patch.object(NatsLink, "_on_framed_response", on_any_chunk)


def _a_worker_that_leaves_refuses_nothing() -> Any:
    on_request = _Worker._on_request

    def ignore(self: Any, message: Any) -> None:
        if not self._is_leaving:
            on_request(self, message)

    return patch.object(_Worker, "_on_request", ignore)


def _a_worker_leaves_before_it_has_joined_elsewhere() -> Any:
    async def hand_over(self: Any, old: NatsConnection, new: NatsConnection) -> None:
        for retire in self.on_retire:
            retire(old)
        while old in self._uses and not old.ended.done():
            await asyncio.sleep(0.1)
        await old.close()

    return patch.object(NatsCluster, "_hand_over", hand_over)


def _a_connection_is_left_while_calls_use_it() -> Any:
    return patch.object(cluster_module, "RETIRE_S", 0.0)


def _a_drain_does_not_wait() -> Any:
    async def drain(self: Any) -> None: ...

    return patch.object(_Worker, "drain", drain)


def _a_drain_forgets_requests_that_are_not_complete() -> Any:
    async def drain(self: Any) -> None:
        await self._connection.flush()
        for rpc in list(self._servers.values()):
            await rpc.drain()

    return patch.object(_Worker, "drain", drain)


def _pieces_that_are_missing_are_not_noticed() -> Any:
    def add(self: Any, number: int, piece: bytes) -> bytes | None:
        self._pieces.append(piece)
        self._received += len(piece)
        return b"".join(self._pieces) if number == -(-self.size // 256) - 1 else None

    return patch.object(IncomingPieces, "add", add)


def _receipts_are_not_awaited() -> Any:
    def send_all(self: Any) -> None:
        while self._next < self._count:
            self._next += 1
            start = (self._next - 1) * nats_pieces.PIECE_BYTES
            piece = self._payload[start : start + nats_pieces.PIECE_BYTES]
            self._send(self._next - 1, piece)

    return patch.object(nats_pieces.OutgoingPieces, "send_window", send_all)


def _calls_of_killed_callers_go_on_for_ever() -> Any:
    return patch.object(nats_worker, "_read_limit", lambda fields: inf)


def _pieces_of_killed_callers_are_kept() -> Any:
    return patch.object(_Worker, "_drop_timer", lambda self, *_: self._loop.call_later(1e6, id, 0))


def _cancellations_are_not_sent() -> Any:
    return patch.object(NatsLink, "_send_cancel", lambda self, key, *_: self._forget(key))


def _the_limit_of_requests_does_not_hold() -> Any:
    return patch.object(WorkerPlaces, "find_refusal", lambda self, caller, size: "")


def _the_end_of_a_connection_that_opens_goes_unnoticed() -> Any:
    original = NatsConnection.authenticate

    async def authenticate(self: NatsConnection, options: Any) -> None:
        try:
            await original(self, options)
        except Disconnected:
            if "maximum connections" not in self.ended.result():
                raise

    return patch.object(NatsConnection, "authenticate", authenticate)


def _requests_of_a_lost_connection_are_kept() -> Any:
    def end(self: Any) -> None:
        for rpc in self._servers.values():
            rpc.close()
        self._incoming.clear()
        self._outgoing.clear()

    return patch.object(_Worker, "end", end)


def _an_error_does_not_say_that_the_call_may_have_run() -> Any:
    return patch.object(nats_link, "EXECUTED", "it was not executed")


def _the_server_s_word_that_nobody_is_there_is_ignored() -> Any:
    return patch.object(nats_link, "NO_RESPONDERS", 0)


def _a_supervision_that_has_failed_is_not_started_again() -> Any:
    async def supervise(self: Any) -> None:
        connection = self._connection
        await self._until_replacement(connection)
        self._connection, self._failure = None, Disconnected("lost")

    return patch.object(NatsCluster, "_supervise", supervise)


FAULTS: list[Callable[[], Any]] = [
    _a_request_without_an_ack_is_sent_again,
    _a_request_is_sent_again_when_its_worker_was_lost,
    _late_requests_are_run,
    _long_requests_are_run_late,
    _there_are_no_heartbeats,
    _heartbeats_are_not_missed,
    _acks_are_not_missed,
    _lost_responses_are_not_noticed,
    _lost_chunks_are_not_noticed,
    _a_worker_that_leaves_refuses_nothing,
    _a_worker_leaves_before_it_has_joined_elsewhere,
    _a_connection_is_left_while_calls_use_it,
    _a_drain_does_not_wait,
    _a_drain_forgets_requests_that_are_not_complete,
    _pieces_that_are_missing_are_not_noticed,
    _receipts_are_not_awaited,
    _calls_of_killed_callers_go_on_for_ever,
    _pieces_of_killed_callers_are_kept,
    _cancellations_are_not_sent,
    _the_limit_of_requests_does_not_hold,
    _the_end_of_a_connection_that_opens_goes_unnoticed,
    _requests_of_a_lost_connection_are_kept,
    _an_error_does_not_say_that_the_call_may_have_run,
    _the_server_s_word_that_nobody_is_there_is_ignored,
    _a_supervision_that_has_failed_is_not_started_again,
]


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__.strip("_"))
def test_a_fault_put_in_is_found(fault: Callable[[], Any]) -> None:
    with fault():
        # Those first that find faults which are rarely seen.
        seeds = (*ONCE_FAILED, 5588, 12065, 405, 34, 35, 42, 58, 63, 66, *range(3000))
        assert find_violations(run_nats, seeds)
