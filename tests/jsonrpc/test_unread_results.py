"""What unread responses may occupy: admission, waiting, dropping, and that all counts
return to 0.
"""

from __future__ import annotations

import json
from typing import Any

from concertino.jsonrpc.incoming_requests import IncomingRequest
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.peer import Peer
from concertino.jsonrpc.unread_results import ProcessBudget, UnreadResults

MIB = 2**20
KIND = ("tools/call", b'"a"')


class Rig:
    """A peer whose transport keeps everything that is written, until the test reads it."""

    def __init__(self, budget: ProcessBudget | None = None, **limits: Any) -> None:
        self.limits = Limits(**limits)
        self.budget = budget or ProcessBudget(self.limits)
        self.frames: list[bytes] = []
        self.blocked = 0
        self.peer = Peer(self._send, self.limits, lambda: 0.0, budget=self.budget)
        self.peer.unread.on_blocked = self._on_blocked

    def _send(self, frame: bytes, about: object) -> int:
        self.frames.append(frame)
        return self.held

    def _on_blocked(self) -> None:
        self.blocked += 1

    @property
    def held(self) -> int:
        return sum(map(len, self.frames))

    def call(self, id: int, tool: str = "a") -> IncomingRequest:
        params = {"name": tool, "arguments": {}}
        line = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}
        request = self.peer.receive(json.dumps(line).encode())
        assert isinstance(request, IncomingRequest)
        return request

    def start(self, id: int, tool: str = "a") -> IncomingRequest | None:
        """A call that does not end with its first step; None if it was not admitted."""
        request = self.call(id, tool)
        if not self.peer.admit(request):
            return None
        self.peer.add_running(request)
        return request

    def read(self, frames: int) -> list[Any]:
        taken, self.frames = self.frames[:frames], self.frames[frames:]
        self.peer.on_drain(self.held)
        return [json.loads(frame) for frame in taken]

    def counts(self) -> tuple[int, int, int]:
        return self.budget.held, self.budget.expected, self.budget.waiting


def result(size: int) -> bytes:
    return b'{"x":"' + b"x" * size + b'"}'


def start_waiting(rig: Rig) -> int:
    """Start the calls that may start now; returns how many run."""
    while (request := rig.peer.pop_waiting()) is not None:
        rig.peer.add_running(request)
    return len(rig.peer.running)


def test_calls_of_a_tool_that_never_returned_start_little_by_little() -> None:
    rig = Rig()
    for id in range(1200):
        rig.start(id)
    # Eight results of 10 MiB, the largest, fit into the 64 MiB held and the 20 MiB that wait.
    assert len(rig.peer.running) == 8
    assert rig.blocked == 1
    running: list[int] = []
    for tick in range(1, 7):
        for _ in range(3):
            # Several connections may look after the same tool at nearly the same time.
            rig.peer.unread.on_slow_calls(now=tick * 0.5)
        running.append(start_waiting(rig))
    assert running == [32, 128, 512, 1024, 1024, 1024]


def test_a_client_need_not_wait_until_the_calls_of_other_clients_have_returned() -> None:
    budget = ProcessBudget(Limits())
    rigs = [Rig(budget) for _ in range(40)]
    waiting = [rig for rig in rigs if rig.start(0) is None]
    # 264 MiB, the limit and half of its reserve, have room for 26 results of 10 MiB, the largest.
    assert len(waiting) == 14
    for rig in waiting:
        rig.peer.unread.on_slow_calls(now=0.5)
    assert [start_waiting(rig) for rig in rigs] == [1] * 40


def test_calls_that_run_in_threads_start_later_but_not_never() -> None:
    rig = Rig()
    for id in range(600):
        rig.start(id)
    in_threads = {("tools/call", b'"a"')}
    running: list[tuple[float, int]] = []
    for tick in range(1, 25):
        rig.peer.unread.on_slow_calls(tick * 0.5, in_threads)
        running.append((tick * 0.5, start_waiting(rig)))
    # The first tick is at 0.5 s.
    assert [count for now, count in running if now < 5.5] == [8] * 10
    assert [count for now, count in running if 5.5 <= now < 10.5] == [32] * 10
    assert [count for now, count in running if now >= 10.5] == [128] * 4


def test_calls_that_ran_in_threads_let_no_others_start_before_their_results_are_known() -> None:
    rig = Rig()
    for id in range(600):
        rig.start(id)
    rig.peer.unread.on_slow_calls(0.5, {("tools/call", b'"a"')})
    # The threads have just ended, all at once, and the loop has not seen a result yet.
    rig.peer.unread.on_slow_calls(2.0, ())
    assert start_waiting(rig) == 8


def test_the_first_result_of_a_tool_lets_the_other_calls_start() -> None:
    rig = Rig()
    first = rig.start(0)
    assert first is not None
    assert sum(rig.start(id) is not None for id in range(1, 100)) == 7
    rig.peer.respond(first, result(100))
    rig.read(1)
    assert start_waiting(rig) == 99


def test_calls_that_run_already_count_when_the_first_result_was_large() -> None:
    rig = Rig()
    calls = [rig.start(id) for id in range(9)]
    assert calls[7] is not None
    assert calls[8] is None
    for left in (7, 6):
        call = calls[left]
        assert call is not None
        rig.peer.respond(call, result(10 * MIB - 100))
        rig.read(1)
        # Seven, and one more, of 10 MiB do not fit into 64 MiB. Six do.
        assert start_waiting(rig) == left
    call = calls[5]
    assert call is not None
    rig.peer.respond(call, result(100))
    assert start_waiting(rig) == 6


def test_the_largest_results_of_the_first_calls_are_all_sent_when_the_client_reads() -> None:
    rig = Rig()
    calls = [call for id in range(64) if (call := rig.start(id)) is not None]
    for call in calls:
        rig.peer.respond(call, result(10 * MIB - 100))
    answers: list[Any] = []
    while rig.frames:
        answers += rig.read(1)
    assert [len(answer["result"]["x"]) for answer in answers] == [10 * MIB - 100] * 8
    assert rig.counts() == (0, 0, 0)


def test_the_largest_recent_result_of_a_tool_decides() -> None:
    rig = Rig(max_unread_bytes=4 * MIB)
    first = rig.start(0)
    assert first is not None
    rig.peer.respond(first, result(2 * MIB - 100))
    rig.read(1)
    assert [rig.start(id) is not None for id in (1, 2, 3)] == [True, True, False]


def test_calls_that_wait_for_room_do_not_hold_up_other_tools() -> None:
    rig = Rig()
    assert [rig.start(id) is not None for id in range(9)] == [True] * 8 + [False]
    assert [rig.start(id, "other") is not None for id in range(10, 19)] == [True] * 8 + [False]
    assert rig.start(20) is None
    assert list(rig.peer.waiting) == [8, 18, 20]


def test_the_size_of_a_large_result_is_forgotten_in_time() -> None:
    rig = Rig(max_unread_bytes=4 * MIB)
    for id, size in enumerate([2 * MIB] + [100] * 60):
        request = rig.start(id)
        assert request is not None
        rig.peer.respond(request, result(size))
        rig.read(1)
    assert all(rig.start(id) is not None for id in range(100, 150))


def test_a_call_alone_starts_and_passes_whatever_its_size() -> None:
    rig = Rig(max_unread_bytes=MIB, max_unread_bytes_total=MIB)
    for id in range(3):
        request = rig.start(id)
        assert request is not None
        rig.peer.respond(request, result(5 * MIB))
        [answer] = rig.read(1)
        assert len(answer["result"]["x"]) == 5 * MIB
    assert rig.counts() == (0, 0, 0)


def test_a_result_waits_until_something_was_read_and_can_be_cancelled_meanwhile() -> None:
    rig = Rig(max_unread_bytes=8 * MIB)
    requests = [rig.start(id) for id in range(4)]
    for request in requests:
        assert request is not None
        rig.peer.respond(request, result(5 * MIB))
    assert len(rig.frames) == 1
    assert list(rig.peer.running) == [1, 2, 3]
    # The id of a response that waits is in use.
    assert rig.peer.receive(b'{"jsonrpc":"2.0","id":1,"method":"x"}') is None
    assert json.loads(rig.frames.pop())["error"]["code"] == -32600

    rig.peer.cancel(2, "enough")
    [answer] = rig.read(1)
    assert answer["id"] == 0
    assert [json.loads(frame)["id"] for frame in rig.frames] == [1]
    assert [answer["id"] for answer in rig.read(1) + rig.read(1)] == [1, 3]
    assert rig.counts() == (0, 0, 0)
    assert not rig.peer.running


def test_what_waits_is_dropped_with_an_error_that_says_so() -> None:
    rig = Rig(max_unread_bytes=8 * MIB)
    for request in [rig.start(id) for id in range(3)]:
        assert request is not None
        rig.peer.respond(request, result(5 * MIB))
    rig.peer.settle_waiting_responses()
    _, one, two = rig.read(3)
    size = 5 * MIB + len(b'{"jsonrpc":"2.0","id":1,"result":{"x":""}}')
    for answer in (one, two):
        assert answer["error"]["code"] == -32603
        assert answer["error"]["message"] == (
            f"result of {size} bytes dropped: 8 MiB are unread; the call itself was carried out"
        )
    assert rig.counts() == (0, 0, 0)


def test_responses_beyond_what_may_wait_are_dropped_at_once() -> None:
    rig = Rig(max_unread_bytes=8 * MIB)
    for request in [rig.start(id) for id in range(8)]:
        assert request is not None
        rig.peer.respond(request, result(9 * MIB))
    # One is held, two wait (18 of 20 MiB), five are dropped.
    assert [len(frame) > MIB for frame in rig.frames] == [True] + [False] * 5
    assert rig.peer.unread.dropped == 5
    assert list(rig.peer.running) == [1, 2]


def test_large_results_that_nobody_expected_may_be_postponed_as_long_as_they_could_wait() -> None:
    rig = Rig(max_unread_bytes=8 * MIB)
    unread = rig.peer.unread
    requests = [rig.start(id) for id in range(5)]
    postponed = 0
    for request in requests:
        assert request is not None
        if unread.may_postpone(9 * MIB):
            unread.postpone(request, 9 * MIB)
            postponed += 1
    # The first may have any size. 28 MiB may be held or wait, but no three results of 9 MiB beside
    # the first one.
    assert postponed == 3
    # No other call starts meanwhile.
    assert rig.budget.expected == 27 * MIB
    assert rig.start(5) is None
    assert "8 MiB are unread" in unread.drop(9 * MIB)
    assert (unread.dropped, rig.blocked) == (1, 2)

    for request in requests[:3]:
        assert request is not None
        unread.end_postponed(9 * MIB)
        rig.peer.respond(request, result(MIB))
    assert (rig.budget.postponed, rig.budget.expected) == (0, 0)


def test_the_result_of_a_client_that_reads_may_wait_while_others_use_up_the_budget() -> None:
    limits = Limits(max_unread_bytes_total=10 * MIB)
    budget = ProcessBudget(limits)
    others = [Rig(budget, max_unread_bytes_total=10 * MIB) for _ in range(4)]
    requests = [other.start(0, tool=name) for other, name in zip(others, "abcd", strict=True)]
    for other, request in zip(others, requests, strict=True):
        assert request is not None
        other.peer.respond(request, result(9 * MIB))
    # Two results are held, within the limit of 10 MiB and the reserve of 16, and two wait.
    assert others[0].counts()[2] > 18 * MIB
    good = Rig(budget, max_unread_bytes_total=10 * MIB)
    assert good.peer.unread.may_postpone(9 * MIB)
    assert not good.peer.unread.may_postpone(20 * MIB)


def test_other_connections_that_do_not_read_use_up_the_budget_of_the_process() -> None:
    limits = Limits(max_unread_bytes_total=10 * MIB)
    budget = ProcessBudget(limits)
    rigs = [Rig(budget, max_unread_bytes_total=10 * MIB) for _ in range(6)]
    requests = [rig.start(0, tool=name) for rig, name in zip(rigs, "abcdef", strict=True)]
    for rig, request in zip(rigs, requests, strict=True):
        assert request is not None
        rig.peer.respond(request, result(9 * MIB))
    # Two pass alone, within the limit of 10 MiB and the reserve of 16. Two wait, within 20 MiB,
    # and two are dropped.
    assert [len(rig.frames) for rig in rigs] == [1, 1, 0, 0, 1, 1]
    [answer] = rigs[4].read(1)
    assert "10 MiB are unread" in answer["error"]["message"]
    rigs[2].peer.settle_waiting_responses()
    [answer] = rigs[2].read(1)
    assert "10 MiB are unread" in answer["error"]["message"]
    for rig in rigs:
        rig.peer.close()
    assert rigs[0].counts() == (0, 0, 0)


def test_clients_that_have_never_read_leave_half_of_the_reserve_to_those_that_have() -> None:
    budget = ProcessBudget(Limits(max_unread_bytes_total=20 * MIB))
    reader, *others = (Rig(budget, max_unread_bytes_total=20 * MIB) for _ in range(30))
    first = reader.start(0)
    assert first is not None
    reader.peer.respond(first, result(MIB))
    reader.read(1)
    for rig in others:
        if (request := rig.start(0)) is not None:
            rig.peer.respond(request, result(MIB))
    assert 27 * MIB < budget.held <= 28 * MIB
    assert reader.start(1) is not None


def test_a_dropped_response_is_counted_where_calls_never_wait() -> None:
    unread = UnreadResults(Limits(), None)
    text = "result of 7 bytes dropped: 64 MiB are unread; the call itself was carried out"
    assert unread.drop(7) == text
    assert unread.dropped == 1


def test_a_lone_call_waits_while_other_connections_use_up_the_budget_of_the_process() -> None:
    budget = ProcessBudget(Limits(max_unread_bytes_total=20 * MIB))
    rigs = [Rig(budget, max_unread_bytes_total=20 * MIB) for _ in range(6)]
    # Nothing is known of the tool, so 10 MiB are expected of each: two fit into 20 MiB and 8 MiB,
    # half of the reserve.
    requests = [rig.start(0) for rig in rigs]
    assert [request is not None for request in requests] == [True] * 2 + [False] * 4
    for rig, request in zip(rigs[:2], requests, strict=False):
        assert request is not None
        rig.peer.respond(request, result(9 * MIB - 100))
    assert start_waiting(rigs[2]) == 1
    # 18 MiB are held, and 9 MiB are expected of the call that runs.
    waiting = rigs[3]
    assert start_waiting(waiting) == 0
    assert waiting.blocked > 0
    for rig in rigs[:2]:
        rig.read(1)
    assert start_waiting(waiting) == 1
    for rig in rigs:
        rig.peer.close()
    assert rigs[0].counts() == (0, 0, 0)
    assert not budget.is_strained


def test_the_first_calls_of_many_connections_fit_if_their_results_are_the_largest() -> None:
    limits = Limits()
    budget = ProcessBudget(limits)
    started = [Rig(budget).start(0) for _ in range(60)]
    count = sum(call is not None for call in started)
    assert count * limits.max_message_bytes <= limits.max_unread_bytes_total + 16 * MIB
    assert count >= 24


def test_lone_calls_of_other_tools_do_not_wait_for_those_that_use_up_the_budget() -> None:
    budget = ProcessBudget(Limits(max_unread_bytes_total=20 * MIB))
    holding = [Rig(budget, max_unread_bytes_total=20 * MIB) for _ in range(4)]
    # The whole reserve is for clients that have read a large result once.
    for id, reads in ((0, True), (1, False)):
        for rig in holding:
            request = rig.start(id)
            assert request is not None
            rig.peer.respond(request, result(35 * MIB // 4))
            if reads:
                rig.read(1)
    # 35 MiB are held, and 36 may be. One call of a tool of which nothing is known may start all the
    # same, a second may not.
    good, other = (Rig(budget, max_unread_bytes_total=20 * MIB) for _ in range(2))
    assert good.start(1, tool="b") is not None
    assert other.start(1, tool="b") is None
    # The results of the tool are small.
    budget.record_size(("tools/call", b'"b"'), 100)
    assert start_waiting(other) == 1


def test_a_client_that_holds_unread_results_starts_no_lone_call_beyond_the_budget() -> None:
    budget = ProcessBudget(Limits(max_unread_bytes_total=20 * MIB))
    first, second = (Rig(budget, max_unread_bytes_total=20 * MIB) for _ in range(2))
    for rig in (first, second):
        request = rig.start(0)
        assert request is not None
        rig.peer.respond(request, result(9 * MIB))
    assert second.start(1) is None
    second.read(1)
    assert start_waiting(second) == 1


def test_the_budget_reports_when_its_pressure_begins_and_ends() -> None:
    rig = Rig(max_unread_bytes_total=20 * MIB)
    reports: list[bool] = []
    rig.budget.on_pressure = reports.append
    request = rig.start(0)
    assert request is not None
    rig.peer.respond(request, result(19 * MIB))
    assert reports == [True]
    rig.read(1)
    assert reports == [True, False]


def test_closing_a_connection_releases_what_it_held() -> None:
    rig = Rig(max_unread_bytes=8 * MIB)
    for request in [rig.start(id) for id in range(4)][:3]:
        assert request is not None
        rig.peer.respond(request, result(5 * MIB))
    assert rig.counts()[0] > 0
    assert rig.counts()[2] > 0
    rig.peer.close()
    assert rig.counts() == (0, 0, 0)


def test_large_errors_are_counted_as_results_are() -> None:
    rig = Rig(max_unread_bytes=8 * MIB)
    for request in [rig.start(id) for id in range(2)]:
        assert request is not None
        rig.peer.fail(request, -32000, "no", {"x": "x" * 5 * MIB})
    assert [json.loads(frame)["id"] for frame in rig.frames] == [0]
    assert list(rig.peer.running) == [1]


def test_responses_that_wait_for_the_rest_of_their_batch_count_as_held() -> None:
    rig = Rig()
    rig.peer.batches.accepted = True
    lines = [{"jsonrpc": "2.0", "id": id, "method": "x"} for id in range(2)]
    events = rig.peer.receive(json.dumps(lines).encode())
    assert isinstance(events, list)
    one, two = (event for event in events if isinstance(event, IncomingRequest))
    rig.peer.respond(one, result(3 * MIB))
    assert rig.frames == []
    assert rig.budget.held > 3 * MIB
    rig.peer.respond(two, result(10))
    assert len(rig.read(1)[0]) == 2
    assert rig.counts() == (0, 0, 0)


def test_more_tools_than_are_remembered_are_forgotten_together() -> None:
    budget = ProcessBudget(Limits())
    for number in range(4096):
        budget.record_size(("tools/call", b'"%d"' % number), 7)
    assert len(budget.sizes) == 4096
    budget.record_size(("tools/call", b'"one more"'), 7)
    assert budget.sizes == {("tools/call", b'"one more"'): 7}


def test_a_response_waits_also_where_nobody_looks_after_it() -> None:
    rig = Rig(max_unread_bytes=8 * MIB)
    rig.peer.unread.on_blocked = None
    for request in [rig.start(id) for id in range(2)]:
        assert request is not None
        rig.peer.respond(request, result(5 * MIB))
    assert [answer["id"] for answer in rig.read(1) + rig.read(1)] == [0, 1]


def test_a_call_that_is_kept_back_counts_nothing_until_its_result_will_fit() -> None:
    rig = Rig(max_unread_bytes=8 * MIB)
    rig.budget.record_size(KIND, 100)
    unread = rig.peer.unread
    calls = [rig.start(id) for id in range(3)]
    assert None not in calls
    first, second, third = (call for call in calls if call is not None)
    # They have started, because results were small. Now one is large.
    rig.budget.record_size(KIND, 5 * MIB)
    unread.count_as_unknown(first)
    for call in (second, third):
        unread.keep_back(call)
    assert rig.counts() == (0, 2, 0)
    # The first call runs, and its result may be as large.
    assert not unread.try_begin(second)
    rig.peer.respond(first, result(5 * MIB))
    assert not unread.try_begin(second)
    rig.read(1)
    assert unread.try_begin(second)
    assert rig.counts()[1] > 5 * MIB
    assert not unread.try_begin(third)
    rig.peer.cancel(2, "no")
    # It has ended, so nothing depends on it.
    assert unread.try_begin(third)
    rig.peer.respond(second, result(10))
    assert rig.counts()[1:] == (0, 0)
    assert not rig.budget.unknown


def test_a_running_call_of_a_tool_with_large_results_lets_calls_of_other_tools_start() -> None:
    rig = Rig(max_unread_bytes=8 * MIB)
    for kind in (KIND, ("tools/call", b'"b"')):
        rig.budget.record_size(kind, 100)
    calls = [call for call in [rig.start(id) for id in range(4)] if call is not None]
    rig.budget.record_size(KIND, 5 * MIB)
    for call in calls:
        rig.peer.unread.count_as_unknown(call)
    # Together they may return 20 MiB. But they may wait for a call of another tool.
    assert rig.start(10, tool="b") is not None
    assert rig.start(11) is None
    rig.peer.unread.expect(calls[0], 5 * MIB)
    assert rig.counts()[1] == 5 * MIB + 100


def test_calls_that_are_kept_back_count_nothing_when_their_connection_has_closed() -> None:
    rig = Rig()
    call = rig.start(0)
    assert call is not None
    rig.peer.unread.keep_back(call)
    rig.peer.close()
    assert rig.counts() == (0, 0, 0)
    assert not rig.budget.unknown
    # What is reported of it later changes nothing.
    rig.peer.unread.expect(call, 100)
    rig.peer.unread.count_as_unknown(call)
    rig.peer.unread.keep_back(call)
    assert rig.counts() == (0, 0, 0)
