"""What must hold whatever a client, a tool or the system does, and where each of it is proved.

The rows are the lines of the reliability catalogue, sections 1 to 7, in our words. A proof is a
case of `concertino check` (tests/check/test_table.py runs them all against concertino), a test, or
a program in soak/ with one of its case names.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from concertino.check.table import CASES

ROOT = Path(__file__).parents[2]
BYTES, HANDLERS, STDOUT, STDERR, KINDS, END, DIALOGUES = (
    f"tests/stdio/test_{name}.py"
    for name in ("bytes", "handlers", "stdout", "stderr", "kinds", "end", "dialogues")
)
WRITTEN = "tests/server/test_handwritten.py"
Row = tuple[int, str, tuple[str, ...]]

CATALOGUE: tuple[Row, ...] = (
    # 1. bytes and framing
    (1, "a line that is no JSON is answered once, the next is served", ("not-json",)),
    (1, "so is half a request", ("truncated-request",)),
    (1, "a hundred bad lines in one write get at most a hundred answers", ("bad-lines-100",)),
    (1, "a line that is no UTF-8 is a parse error", ("not-utf8",)),
    (1, "no tool is called with what was no UTF-8", ("not-utf8-in-argument",)),
    (1, "a byte order mark is no obstacle", ("bom-first", "bom-later")),
    (1, "nor is CR LF", ("crlf",)),
    (1, "blank lines are ignored", ("blank-lines",)),
    (
        1,
        "what other languages take for a line end stays in a text",
        ("separators-in-text", "separators-in-ids"),
    ),
    (1, "a raw NUL is a parse error", ("nul-raw",)),
    (1, "an escaped one is kept", ("nul-escaped",)),
    (1, "bytes may come one at a time", ("one-byte-per-write",)),
    (1, "a thousand messages in one write get a thousand answers", ("messages-1000",)),
    (1, "large texts come back exactly", ("echo-70-kb", "echo-10-mb")),
    (
        1,
        "the limit is exact, and its refusal tells it",
        (
            "message-at-limit",
            "message-over-limit",
            f"{BYTES}::test_a_message_as_long_as_the_limit_is_served_and_one_byte_more_is_refused",
        ),
    ),
    (
        1,
        "the time for each byte does not grow with the message",
        ("time-per-byte", f"{BYTES}::test_the_time_per_byte_of_a_message_is_flat"),
    ),
    (
        1,
        "a dialogue may be cut at every byte",
        (
            "split-everywhere",
            f"{BYTES}::test_a_dialogue_split_at_every_byte_has_the_same_transcript",
        ),
    ),
    (
        1,
        "stdin may be a socket, a terminal, a file, /dev/null, or closed",
        ("stdin-socket", "stdin-terminal", "stdin-file", "stdin-null", "stdin-closed"),
    ),
    (
        1,
        "descriptors may be non-blocking, and system calls interrupted",
        (
            "nonblocking-pipes",
            "stop-and-continue",
            f"{KINDS}::test_descriptors_that_are_non_blocking_already_lose_nothing_and_stay_so",
        ),
    ),
    (1, "no frame is torn by a small or full pipe", ("small-pipe", "nonblocking-pipes")),
    # 2. limits and bombs
    (2, "100 MB without a newline are refused once and not kept", ("endless-line-100-mb",)),
    (
        2,
        "an endless stream costs neither memory nor the obedience to SIGTERM",
        (
            "soak/pressure.py endless-line-10-s",
            f"{BYTES}::test_a_stream_that_never_ends_leaves_sigterm_obeyed",
        ),
    ),
    (2, "a deep nesting is an error", ("nested-arrays", "nested-in-params")),
    (
        2,
        "many members, elements and colliding keys are answered",
        ("many-members", "colliding-keys", "long-numbers", "long-method"),
    ),
    (2, "what counts against the limit are the bytes that come", ("escapes",)),
    (
        2,
        "a flood of notifications leaves it responsive",
        ("notifications-flood", "soak/pressure.py notifications-5-s"),
    ),
    (
        2,
        "ten thousand calls at once are answered or told that it is busy",
        (
            "calls-10000",
            f"{HANDLERS}"
            f"::test_10_000_calls_at_once_are_each_answered_or_told_that_the_server_is_busy",
        ),
    ),
    (
        2,
        "a pattern that could take exponential time does not",
        (
            f"{WRITTEN}::test_a_catastrophic_pattern_is_matched_in_bounded_time",
            "tests/schema/test_regex_safety.py::test_no_text_makes_a_taken_pattern_slow",
        ),
    ),
    (
        2,
        "a schema that refers to a file or an address is refused, and nothing is fetched",
        ("tests/schema/test_custom_schema.py::test_a_reference_to_elsewhere_is_refused",),
    ),
    (
        2,
        "a schema without bounds is refused when it is registered",
        (
            f"{WRITTEN}::test_deep_and_cyclic_objects_are_refused_in_bounded_time",
            "tests/schema/test_custom_schema.py::test_a_loop_that_stays_at_one_value_is_refused",
            "tests/schema/test_custom_schema.py::test_a_schema_that_doubles_90_times_is_refused",
        ),
    ),
    # 3. JSON-RPC shape
    (
        3,
        "a batch is refused or served, never met with silence",
        ("batch", "batch-2025-03-26", "batch-empty"),
    ),
    (
        3,
        "JSON that is no object is an invalid request",
        ("json-number", "json-string", "json-true", "json-null", "object-empty"),
    ),
    (3, "so is a message that does not say jsonrpc 2.0", ("jsonrpc-missing", "jsonrpc-1-0")),
    (
        3,
        "params that are no object are refused on the id",
        ("params-array", "params-string", "params-null"),
    ),
    (3, "so is a method that is no name", ("method-number", "method-empty", "method-missing")),
    (3, "a message is one thing at a time", ("method-and-result", "result-and-error")),
    (3, "an unknown method is told to be one", ("unknown-method",)),
    (3, "huge ids are exact or refused", ("ids-large",)),
    (
        3,
        "ids keep type and value; what cannot be one is refused",
        ("ids-kept", "id-null", "id-true", "id-array", "id-object", "id-fraction"),
    ),
    (
        3,
        "almost JSON is no JSON",
        (
            "nan",
            "infinity",
            "trailing-garbage",
            "trailing-comma",
            "two-objects",
            "comment",
            "single-quotes",
        ),
    ),
    (3, "unknown members are ignored", ("members-unknown", "meta-unknown", "escaped-names")),
    (
        3,
        "responses and notifications are never answered",
        ("stray-responses", "broken-responses", "notifications-unanswered"),
    ),
    # 4. lifecycle
    (
        4,
        "a call before initialize is refused, and initialize works",
        ("call-before-initialize", "ping-before-initialize"),
    ),
    (
        4,
        "handshakes may be incomplete, pipelined, repeated, malformed, or of an unknown version",
        (
            "initialized-missing",
            "handshake-pipelined",
            "initialize-twice",
            "initialize-malformed",
            "initialize-unknown-version",
            "initialize-modern-version",
            "initialize-2024-11-05",
            "initialize-2025-03-26",
            "initialize-2025-06-18",
            "initialize-2025-11-25",
        ),
    ),
    (
        4,
        "each request is served by the rules of its era",
        (
            "eras-interleaved",
            "discover",
            "discover-first",
            "version-unsupported",
            "capabilities-missing",
            "no-era",
        ),
    ),
    (
        4,
        "a slow start does not hold up initialize",
        (f"{DIALOGUES}::test_a_slow_start_does_not_keep_initialize_waiting",),
    ),
    (
        4,
        "what is sent before it is ready is kept",
        (
            "request-at-start",
            f"{DIALOGUES}::test_requests_sent_before_the_imports_are_done_are_answered",
        ),
    ),
    # 5. tools, stdout, children
    (
        5,
        "whatever a tool raises is a result",
        (
            "tool-raises",
            "tool-error-texts",
            "tool-unknown",
            "arguments-bad",
            f"{HANDLERS}::test_whatever_a_handler_raises_is_a_result_and_the_next_call_is_served",
        ),
    ),
    (
        5,
        "what cannot be sent is an error on the id, and the writer lives",
        (
            "result-unsendable",
            "result-200-mb",
            "text-kept",
            f"{HANDLERS}"
            f"::test_a_value_that_json_cannot_hold_is_an_error_on_the_id_and_the_writer_lives",
        ),
    ),
    (5, "what is printed or logged goes to stderr", ("stdout-written",)),
    (
        5,
        "so does what native code and children write, also at exit",
        (
            "stdout-written",
            f"{STDOUT}::test_what_c_stdio_still_holds_at_exit_does_not_reach_the_wire",
            f"{STDOUT}::test_what_a_tool_writes_to_stdout_goes_to_stderr",
        ),
    ),
    (5, "a forked child cannot write frames", ("tool-forks", "children-end")),
    (
        5,
        "a tool that changes the process does not change the protocol",
        (
            "process-disturbed",
            f"{HANDLERS}::test_a_handler_that_ends_what_it_finds_on_the_loop_ends_itself_at_most",
        ),
    ),
    (
        5,
        "no secret is logged, and logs are limited",
        (
            "secret-in-exception",
            "tracebacks-300",
            f"{STDERR}::test_a_secret_of_the_environment_or_an_argument_appears_nowhere",
        ),
    ),
    # 6. concurrency, cancel, progress
    (
        6,
        "blocking and waiting calls leave others alone",
        (
            "ping-during-block",
            "ping-during-sleep",
            "blocking-64",
            "sleeps-500",
            "answers-as-ready",
            "id-in-use",
        ),
    ),
    (
        6,
        "a cancelled call is not answered, and nothing is twice",
        (
            "cancel-in-flight",
            "cancel-nothing",
            "cancel-other-type",
            "cancel-races",
            "cancelled-frees",
        ),
    ),
    (
        6,
        "no order of answer, cancel, end of input and time-out breaks that",
        (
            "cancel-races",
            "tests/simulation/test_interleavings.py::test_one_call_in_every_order",
            "tests/simulation/test_interleavings.py::test_two_calls_in_every_order",
            "tests/jsonrpc/test_peer.py::test_a_cancelled_call_is_stopped_with_the_reason_and_"
            "not_answered",
            "tests/jsonrpc/test_peer.py::test_cancelling_what_is_unknown_or_answered_or_of_the"
            "_other_type_is_ignored",
        ),
    ),
    (
        6,
        "progress comes before the answer, and grows",
        (
            "progress-20000",
            "progress-not-asked",
            f"{KINDS}"
            f"::test_progress_to_a_client_that_does_not_read_is_bounded_and_the_last_one_arriv"
            f"es",
        ),
    ),
    (
        6,
        "progress and logs after an answer or a cancel are dropped",
        (
            "progress-late",
            "progress-after-cancel",
            f"{HANDLERS}::test_progress_and_log_after_the_answer_are_dropped",
            f"{HANDLERS}::test_a_handler_that_swallows_its_cancel_is_not_answered",
        ),
    ),
    # 7. pressure and shutdown
    (
        7,
        "a client that does not read loses nothing and costs little",
        ("reader-stops-3-s", "both-pipes-full", "soak/pressure.py reader-stops-60-s"),
    ),
    (7, "a stderr that nobody reads holds nothing up", ("stderr-unread", "stderr-reader-gone")),
    (7, "a stderr that is closed or full does not either", ("stderr-closed", "stderr-full")),
    (7, "a long life costs nothing", ("calls-4000", "soak/pressure.py load")),
    (7, "who is not spoken to uses no processor", ("idle", "quiet")),
    (
        7,
        "the end of input is the end, whenever it comes",
        (
            "eof-idle",
            "eof-at-once",
            "eof-in-message",
            "eof-without-newline",
            "eof-during-sleep",
            "eof-during-block",
        ),
    ),
    (7, "fifty calls before the end of input are answered", ("eof-after-50-calls",)),
    (
        7,
        "a server whose client, or wrapper, is gone is gone too",
        (
            "stdout-closed",
            "client-gone",
            "client-gone-in-call",
            "wrapper-killed",
            "soak/cycles.py kill_client",
            "soak/cycles.py kill_wrapper",
            f"{END}::test_a_killed_client_leaves_no_server",
        ),
    ),
    (7, "a thousand lives leave nothing behind", ("start-stop-10", "soak/cycles.py run_cycle")),
    (
        7,
        "exit codes are 0, 1 and 2, with a reason on stderr",
        (
            "sigterm",
            "sigint",
            "sigterm-during-call",
            "sigterm-twice",
            f"{STDERR}::test_an_import_that_fails_is_one_line_and_exit_code_1",
            f"{STDERR}::test_wrong_usage_is_exit_code_2_and_a_reason",
        ),
    ),
)
# How many lines each section of the catalogue has; counted by hand.
LINES = {1: 20, 2: 10, 3: 12, 4: 5, 5: 7, 6: 5, 7: 10}


def test_every_line_of_the_catalogue_has_a_row() -> None:
    assert Counter(section for section, _, _ in CATALOGUE) == LINES


def test_every_row_is_proved_by_something_that_exists() -> None:
    names = {case.name for case in CASES}
    for _, line, proofs in CATALOGUE:
        assert proofs, line
        for proof in proofs:
            file, is_test, name = proof.partition("::")
            if is_test:
                assert re.search(
                    rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE
                ), proof
            elif proof.startswith("soak/"):
                file, _, name = proof.partition(" ")
                assert re.search(
                    rf'"{name}",|^def {name}\(', (ROOT / file).read_text(), re.MULTILINE
                ), proof
            else:
                assert proof in names, proof


def test_every_case_proves_a_row_of_its_section() -> None:
    proved = {(section, proof) for section, _, proofs in CATALOGUE for proof in proofs}
    assert [case.name for case in CASES if (case.section, case.name) not in proved] == []


@pytest.mark.parametrize("path", sorted((ROOT / "soak").glob("*.py")), ids=lambda path: path.name)
def test_soak_programs_say_what_they_take(path: Path) -> None:
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, str(path), "--help"], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout
