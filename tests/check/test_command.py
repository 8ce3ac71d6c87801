"""`concertino check` as a user runs it: lines, JSON, exit codes, and nothing left running."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from warm_commands import run_python

from concertino.check.findings import RANK
from concertino.check.messages import StrayLine, excerpt, parse_line
from concertino.check.table import CASES, QUICK

FAULTY = str(Path(__file__).parent / "faulty.py")
CHECK = [sys.executable, "-m", "concertino", "check"]


def check(*arguments: str, fault: str = "") -> subprocess.CompletedProcess[str]:
    command = [*CHECK, *arguments, "--", sys.executable, "-S", FAULTY, fault]
    return run_python(command, capture_output=True, text=True, timeout=60)


def document(*arguments: str, fault: str = "") -> tuple[int, dict[str, Any]]:
    done = check("--json", *arguments, fault=fault)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def test_all_ok_is_exit_code_0_and_a_line_each() -> None:
    done = check("--only", "unknown-method", "--only", "crlf")
    assert done.returncode == 0, done.stdout
    opening, tools, *lines = filter(None, done.stdout.splitlines())
    assert opening == "faulty 1: 2025-11-25 (initialize)"
    assert tools == "0 tools, 0 of them known to the cases; most cases speak 2025-11-25"
    assert lines[0] == "1. bytes and framing"
    assert lines[1].split()[:2] == ["ok", "crlf"]
    assert lines[3].split()[:2] == ["ok", "unknown-method"]
    assert lines[-1].endswith("2 ok")
    assert "\x1b" not in done.stdout


def test_a_quick_run_has_the_quick_cases() -> None:
    done = check("--quick", "--list")
    names = [line.strip() for line in done.stdout.splitlines() if re.match(r"  [a-z]", line)]
    assert set(names) == QUICK
    assert check("--quick", "--only", "wrapper-killed").returncode == 2
    done = check("--quick", "--only", "crlf", "--only", "crlf")
    assert done.stdout.rstrip().endswith("1 ok")


def test_a_case_of_a_revision_that_the_server_lacks_is_skipped() -> None:
    _, report = document("--only", "batch-2025-03-26")
    [case] = report["cases"]
    assert (case["verdict"], case["came"]) == ("skipped", ["the server does not speak 2025-03-26"])


def test_a_list_that_is_not_read_to_its_end_is_no_error() -> None:
    command = [*CHECK, "--list"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.close()
        assert child.stderr is not None
        assert child.stderr.read() == b""
    assert child.returncode == 0


def test_what_is_wrong_is_explained_and_exit_code_1() -> None:
    done = check("--only", "unknown-method", fault="leaks a traceback")
    assert done.returncode == 1
    assert "wrong    unknown-method" in done.stdout
    assert "it        calls a method that does not exist" in done.stdout
    assert "expected  an error -32601 on the id [JSON-RPC 2.0 section 5.1]" in done.stdout
    assert (
        "came      a stack trace (Traceback (most recent call last)) was sent to the client"
        in done.stdout
    )
    assert done.stdout.rstrip().endswith("1 wrong")


def test_what_differs_fails_a_strict_run_alone() -> None:
    assert check("--only", "eof-idle", fault="ends with 3").returncode == 0
    assert check("--only", "eof-idle", "--strict", fault="ends with 3").returncode == 1


def test_a_document_has_the_keys_that_are_promised() -> None:
    code, whole = document(
        "--only", "unknown-method", "--only", "discover", fault="knows every method"
    )
    assert code == whole["exit"] == 1
    assert sorted(whole) == ["cases", "exit", "problem", "server", "summary"]
    assert whole["server"] == {
        "command": [sys.executable, "-S", FAULTY, "knows every method"],
        "name": "faulty",
        "version": "1",
        "legacy": "2025-11-25",
        "modern": False,
        "era": "legacy",
        "tools": [],
        "notes": [],
    }
    case, *others = whole["cases"]
    assert sorted(case) == [
        "came",
        "does",
        "expected",
        "name",
        "seconds",
        "section",
        "source",
        "stderr",
        "verdict",
    ]
    assert (case["name"], case["verdict"], case["section"]) == ("unknown-method", "wrong", 3)
    assert case["came"] == [
        'a method that does not exist gave a result: {"jsonrpc": "2.0", "id": 3, "result": {}}',
    ]
    assert [each["verdict"] for each in others] == ["ok", "skipped"]  # discover-first; discover
    assert whole["summary"] == {
        "ok": 1,
        "skipped": 1,
        "differs": 0,
        "wrong": 1,
        "hang": 0,
        "crash": 0,
    }
    assert whole["problem"] is None


def test_colours_are_for_a_terminal() -> None:
    ours, theirs = pty.openpty()
    command = [*CHECK, "--only", "unknown-method", "--", sys.executable, "-S", FAULTY]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs):
        os.close(theirs)
        said = b""
        while True:
            try:
                said += os.read(ours, 4096)
            except OSError:  # EIO: nobody has it any more
                break
    os.close(ours)
    assert b"\x1b[32mok" in said


def test_the_list_names_every_case_and_starts_nothing() -> None:
    done = subprocess.run([*CHECK, "--list"], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0
    assert re.findall(r"^  ([a-z0-9-]+)$", done.stdout, re.MULTILINE) == [
        case.name for case in CASES
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "expected a command after --"),
        (["--only", "nothing-like-it", "--", "true"], "no case is named like nothing-like-it"),
        (["--timeout-s", "0", "--", "true"], "expected positive times"),
        (["--timeout-s", "nan", "--", "true"], "expected positive times"),
        (["--start-timeout-s", "inf", "--", "true"], "expected positive times"),
        (["--jobs", "0", "--", "true"], "expected at least one job"),
        (["--message-limit-bytes", "5", "--", "true"], "a message limit of at least 100000 bytes"),
        (["--", "/no/such/command"], "/no/such/command: No such file or directory"),
        (["--era", "stone", "--", "true"], "invalid choice"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_a_reason(arguments: list[str], said: str) -> None:
    done = subprocess.run([*CHECK, *arguments], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "verdict", "said"),
    [
        (
            "import sys; sys.exit('no config')",
            "crash",
            "exit code 1 (no answer to initialize (id 2))",
        ),
        ("import time; time.sleep(600)", "hang", "no answer to initialize"),
        ("print('Welcome!', flush=True); input(); input()", "hang", "stdout held: Welcome!"),
    ],
)
def test_a_server_that_cannot_be_opened_is_exit_code_1_and_a_reason(
    script: str, verdict: str, said: str
) -> None:
    command = [
        *CHECK,
        "--json",
        "--start-timeout-s",
        "1",
        "--timeout-s",
        "1",
        "--",
        sys.executable,
        "-c",
        script,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    whole = json.loads(done.stdout)
    assert done.returncode == whole["exit"] == 1
    assert whole["problem"].startswith(f"{verdict}: the server was not opened; ")
    assert said in whole["problem"]
    assert whole["cases"] == []


@pytest.mark.slow
@pytest.mark.parametrize(("number", "jobs"), [(signal.SIGINT, "4"), (signal.SIGTERM, "1")])
def test_a_signal_ends_it_and_whatever_it_started(number: int, jobs: str, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    # The server ignores SIGTERM and SIGINT, and starts a child, though not in the first look at it,
    # which would wait for the child's end.
    (tmp_path / "server.py").write_text(f"""
import os, runpy, signal, subprocess, sys
for each in (signal.SIGTERM, signal.SIGINT):
    signal.signal(each, signal.SIG_IGN)
with open({str(pids)!r}, "a+") as file:
    file.seek(0)
    is_case = len(file.readlines()) >= 2
    child = subprocess.Popen(["sleep", "600"]) if is_case else None
    file.write(f"{{os.getpid()}} {{child.pid if child else ''}}\\n")
sys.argv = ["faulty", "hangs on garbage"]
runpy.run_path({FAULTY!r}, run_name="__main__")
""")
    command = [
        *CHECK,
        "--only",
        "not-json",
        "--only",
        "bad-lines-100",
        "--timeout-s",
        "60",
        "--jobs",
        jobs,
    ]
    with subprocess.Popen(
        [*command, "--", sys.executable, str(tmp_path / "server.py")], stdout=subprocess.PIPE
    ) as run:
        assert run.stdout is not None
        until = time.monotonic() + 30
        # The look at the server is two processes (one for each era); the next one is a case that
        # hangs.
        while not pids.exists() or len(pids.read_text().splitlines()) < 3:
            assert time.monotonic() < until
            select.select([], [], [], 0.01)
        run.send_signal(number)
        assert run.wait(15) == 128 + number
    for line in pids.read_text().splitlines():
        for pid in line.split():
            assert not _runs(int(pid)), f"{pid} of {pids.read_text()}"


@pytest.mark.parametrize("json_or_lines", ["--json", "--jobs=1"])
def test_a_run_that_a_signal_ends_reports_what_was_seen(json_or_lines: str, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    (tmp_path / "server.py").write_text(f"""
import runpy, sys
sys.argv = ["faulty", "hangs on garbage"]
import time
sleep = time.sleep
def hang(seconds):
    open({str(begun)!r}, "w").close()
    sleep(seconds)
time.sleep = hang
runpy.run_path({FAULTY!r}, run_name="__main__")
""")
    # crlf is seen to its end; not-json hangs.
    command = [
        *CHECK,
        json_or_lines,
        "--only",
        "not-json",
        "--only",
        "unknown-method",
        "--only",
        "crlf",
    ]
    with subprocess.Popen(
        [*command, "--", sys.executable, str(tmp_path / "server.py")],
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        until = time.monotonic() + 30
        while not begun.exists():
            assert time.monotonic() < until
            select.select([], [], [], 0.01)
        run.send_signal(signal.SIGTERM)
        stdout, _ = run.communicate(timeout=20)
    assert run.returncode == 128 + signal.SIGTERM
    if json_or_lines == "--json":
        whole = json.loads(stdout)
        assert whole["cut_off"] == "SIGTERM"
        assert whole["problem"].startswith("cut off by SIGTERM after ")
        assert whole["exit"] == 128 + signal.SIGTERM
        assert len(whole["cases"]) == sum(whole["summary"].values()) < 3
        assert whole["server"]["name"] == "faulty"
    else:
        assert "cut off by SIGTERM after " in stdout


@pytest.mark.parametrize("mode", ["--json", "--jobs=1"])
def test_a_reader_that_is_gone_ends_the_run_without_a_traceback(mode: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [*CHECK, mode, "--only", "crlf", "--only", "unknown-method"]
    done = subprocess.run(
        [*command, "--", sys.executable, "-S", FAULTY],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    os.close(writer)
    assert done.returncode == 128 + signal.SIGPIPE
    assert "Traceback" not in done.stderr
    assert ("cut off by a closed stdout after 0 of 2 cases" in done.stderr) is (mode != "--json")


def test_a_full_disk_is_not_exit_code_0() -> None:
    with open("/dev/full", "wb") as full:
        command = [*CHECK, "--only", "crlf", "--", sys.executable, "-S", FAULTY]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    assert "stdout: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "0"}, False),
        ({"FORCE_COLOR": ""}, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": ""}, True),
    ],
)
def test_variables_decide_about_colours(
    variables: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert ("\x1b[32mok" in check("--only", "crlf").stdout) is coloured


def test_a_terminal_gets_no_colours_with_no_color() -> None:
    ours, theirs = pty.openpty()
    command = [*CHECK, "--only", "crlf", "--", sys.executable, "-S", FAULTY]
    environment = {**os.environ, "NO_COLOR": "1"}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment):
        os.close(theirs)
        shown = b""
        while True:
            try:
                shown += os.read(ours, 4096)
            except OSError:  # EIO: nobody has it any more
                break
    os.close(ours)
    assert b"1 ok" in shown
    assert b"\x1b" not in shown


def test_skipped_cases_say_how_to_run_them() -> None:
    done = check("--only", "cancel-in-flight", "--only", "discover", "--only", "crlf")
    lines = done.stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if "cases were skipped:" in line)
    assert lines[at] == "2 of 4 cases were skipped:"
    assert "    1  the server has no tool sleep(seconds)" in lines[at + 1 : at + 3]
    assert "    1  the server does not speak 2026-07-28" in lines[at + 1 : at + 3]
    # The reasons are there and not in the lines of the cases, which fit 80 columns.
    assert "  skipped  cancel-in-flight" in lines
    assert lines[at + 5].strip().endswith("python -m concertino.check.reference_server")
    assert lines[-1].endswith("2 ok, 2 skipped")


def _runs(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[
            0
        ] not in "ZX"
    except OSError:
        return False


def test_what_a_server_said_cannot_command_the_terminal() -> None:
    assert excerpt("\x1b[2J\x07\u202eabc\n") == r"\x1b[2J\x07\u202eabc\n"
    assert excerpt(b"\xff\x00ok") == r"\xff\x00ok"
    assert excerpt("abc" * 1000, 30) == "abcabcabcabcabcabcab ... (3000 in all)"
    assert excerpt("0123456789" * 4, 20) == "0123456789012 ... 56789 (40 in all)"


@pytest.mark.parametrize(
    "line",
    [
        b"hello",
        b"",
        b"42",
        b"[]",
        b'{"jsonrpc":"2.0"}',
        b'{"jsonrpc":"1.0","id":1,"result":{}}',
        b'{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":"x"}}',
        b'{"jsonrpc":"2.0","id":1,"result":5}',
        b'{"jsonrpc":"2.0","id":true,"result":{}}',
        b'{"jsonrpc":"2.0","result":{}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":"1","message":"x"}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1}}',
        b'{"jsonrpc":"2.0","method":5}',
        b'{"jsonrpc":"2.0","method":"x","params":[]}',
        b'{"jsonrpc":"2.0","id":1,"result":{"x":NaN}}',
        b'{"jsonrpc":"2.0","id":1,"result":{"x":"\xff"}}',
        b'{"jsonrpc":"2.0","id":1,"result":{}} {"jsonrpc":"2.0","id":2,"result":{}}',
        b'[{"jsonrpc":"2.0","id":1,"result":{}}]',
        b"[" * 100_000,
    ],
)
def test_what_is_no_message_is_a_stray_line(line: bytes) -> None:
    assert isinstance(parse_line(line, allow_batch=False), StrayLine)


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":1,"result":{}}',
        b'{"jsonrpc":"2.0","id":"","error":{"code":-1,"message":"","data":[1]}}',
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"x"}}',
        b'{"jsonrpc":"2.0","id":null,"result":{}}',
        b'{"jsonrpc":"2.0","error":{"code":-32700,"message":"x"}}',
        b'{"jsonrpc":"2.0","method":"notifications/message","params":{}}',
        b'{"jsonrpc":"2.0","id":1,"method":"roots/list"}\r',
    ],
)
def test_what_is_a_message_is_none(line: bytes) -> None:
    assert parse_line(line, allow_batch=False) == [json.loads(line)]


def test_the_verdicts_have_an_order() -> None:
    assert sorted(RANK, key=RANK.__getitem__) == [
        "ok",
        "skipped",
        "differs",
        "wrong",
        "hang",
        "crash",
    ]
