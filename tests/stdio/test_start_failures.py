"""A server that cannot start says so in the protocol: to any first request, in both eras, however
it is started.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from stdio.harness import (
    INITIALIZE,
    Process,
    call,
    environment,
    request,
    script,
)

import concertino

SECRET = "c4n4ry-7f3a91-do-not-show"
SERVE = ["-m", "concertino", "serve"]
RUN = "\nserver.run()\n"
COMMAND = [sys.executable, "-c"]
# `concertino serve` that waits long for a first request: tests show what else ends the wait.
PATIENT_SERVE = [
    "-c",
    "import sys, concertino.runtime.refusal as r; r.FIRST_S = 600; "
    "from concertino.cli import main; sys.exit(main())",
    "serve",
]
RUN_FILE = "import runpy; runpy.run_path('server.py', run_name='__main__')"

# What stands in the file -> the sentence. Line 1 of the file imports Server.
SERVER = "from concertino import Server\nserver = Server('broken')\n"
AT_IMPORT: Mapping[str, tuple[str, str]] = {
    "a module that is not installed": (
        "import os\n\nimport no_such_module_here\nfrom concertino import Server\n",
        r"cannot start: ModuleNotFoundError: No module named 'no_such_module_here' \(server.py:3\);"
        r" install the package that has it: .*pip install .*PACKAGE",
    ),
    "a syntax error": (
        "x = 1\ndef broken(:\n",
        r"cannot start: SyntaxError: invalid syntax \(server.py:2\)",
    ),
    "a missing variable": (
        "import os\nkey = os.environ['NO_SUCH_VARIABLE']\n",
        r"cannot start: KeyError: 'NO_SUCH_VARIABLE' \(server.py:2\)",
    ),
    "an exit": (
        "import sys\nsys.exit('set API_HOST first')\n",
        r"cannot start: SystemExit: set API_HOST first \(server.py:2\)",
    ),
    "a secret": (
        "import os\nraise RuntimeError('bad key ' + os.environ['MY_TOKEN'])\n",
        r"cannot start: RuntimeError: bad key \[REDACTED\] \(server.py:2\)",
    ),
    "an import that uses up all descriptors": (
        "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "files = []\nwhile True:\n    files.append(open('/dev/null'))\n",
        r"cannot start: OSError: \[Errno 24\] Too many open files: '/dev/null' \(server.py:5\)",
    ),
    "no server": (
        "x = 1\n",
        r"cannot start: {path}: no concertino.Server found at its top level; make one there, as in "
        r"`server = Server\(\"name\"\)`",
    ),
}
AT_START: Mapping[str, tuple[str, str]] = {
    "a missing variable, after the import of Server": (
        "import os\nfrom concertino import Server\nkey = os.environ['NO_SUCH_VARIABLE']\n",
        r"cannot start: KeyError: 'NO_SUCH_VARIABLE' \(server.py:3\)",
    ),
    "a tool that cannot be offered": (
        SERVER + "@server.tool\ndef broken(*numbers: int) -> int:\n    return 1\n",
        r"cannot start: RegistrationError: .* \(server.py:3\)",
    ),
    "a lifespan": (
        "from collections.abc import AsyncIterator\n" + SERVER + "@server.lifespan\n"
        "async def opened() -> AsyncIterator[None]:\n    raise OSError('no database')\n    yield\n",
        r"cannot start: OSError: no database \(server.py:6\)",
    ),
    "a lifespan that takes a moment": (
        "import asyncio\nfrom collections.abc import AsyncIterator\n"
        + SERVER
        + "@server.lifespan\nasync def opened() -> AsyncIterator[None]:\n"
        "    await asyncio.sleep(0.1)\n    raise OSError('no database')\n    yield\n",
        r"cannot start: OSError: no database \(server.py:8\)",
    ),
    "a lifespan that exits": (
        "from collections.abc import Iterator\n" + SERVER + "@server.lifespan\n"
        "def opened() -> Iterator[None]:\n    raise SystemExit('no database')\n    yield\n",
        r"cannot start: SystemExit: no database \(server.py:6\)",
    ),
    "a lifespan with a task group": (
        "import asyncio\nfrom collections.abc import AsyncIterator\n"
        + SERVER
        + "async def fail() -> None:\n    raise OSError('no database')\n"
        "@server.lifespan\nasync def opened() -> AsyncIterator[None]:\n"
        "    async with asyncio.TaskGroup() as group:\n        group.create_task(fail())\n"
        "        await asyncio.sleep(5)\n        yield\n",
        r"cannot start: OSError: no database \(server.py:6\)",
    ),
    "features that fail": (
        "from concertino import Server\nclass Broken(Server):\n    def features(self):\n"
        "        raise OSError('no database')\nserver = Broken('broken')\n",
        r"cannot start: OSError: no database \(server.py:4\)",
    ),
    "a wrong limit": (
        SERVER + "from concertino import Limits\nserver.run(limits=Limits(drain_s=-1))\n",
        r"cannot start: ValueError: drain_s: expected a positive number, got -1 \(server.py:4\)",
    ),
    "a lifespan that uses up all descriptors": (
        "import resource\nfrom collections.abc import AsyncIterator\n"
        + SERVER
        + "files = []\n@server.lifespan\nasync def opened() -> AsyncIterator[None]:\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "    while True:\n        files.append(open('/dev/null'))\n    yield\n",
        r"cannot start: OSError: \[Errno 24\] Too many open files: '/dev/null' \(server.py:10\)",
    ),
    "a group of exceptions": (
        SERVER + "raise ExceptionGroup('two', [ValueError('no key'), OSError('no file')])\n",
        r"cannot start: ValueError: no key \(server.py:3\)",
    ),
    "a lifespan whose exception cannot be shown": (
        "from collections.abc import AsyncIterator\n"
        + SERVER
        + "class Odd(Exception):\n    def __str__(self):\n        raise KeyboardInterrupt\n"
        "@server.lifespan\nasync def opened() -> AsyncIterator[None]:\n    raise Odd\n    yield\n",
        r"cannot start: Odd \(server.py:9\)",
    ),
    "an exception whose text ends the process": (
        SERVER + "class Odd(Exception):\n    def __str__(self):\n        raise SystemExit(3)\n"
        "raise Odd\n",
        r"cannot start: Odd \(server.py:6\)",
    ),
    "a syntax error whose file name is no text": (
        SERVER + "raise SyntaxError('odd', (b'f.py', 3, 1, 'text'))\n",
        r"cannot start: SyntaxError: odd \(line 3\)",
    ),
    "a group that shows no exceptions": (
        SERVER + "class Odd(ExceptionGroup):\n    exceptions = ()\n"
        "raise Odd('one', [ValueError('no key')])\n",
        r"cannot start: Odd: one \(1 sub-exception\) \(server.py:5\)",
    ),
    "an exception that is no Exception": (
        SERVER + "raise GeneratorExit('no key')\n",
        r"cannot start: GeneratorExit: no key \(server.py:3\)",
    ),
    "an interrupt": (
        SERVER + "import select\nselect.select([0], [], [])\nraise KeyboardInterrupt('no key')\n",
        r"cannot start: KeyboardInterrupt: no key \(server.py:5\)",
    ),
    "a hook that fails": (
        "import sys\nsys.excepthook = lambda *_: 1 / 0\n" + SERVER + "raise ValueError('no key')\n",
        r"cannot start: ValueError: no key \(server.py:5\)",
    ),
    "an event loop that cannot be made": (
        SERVER + "def loop():\n    raise OSError('no descriptors')\n"
        "server.run(loop_factory=loop)\n",
        r"cannot start: OSError: no descriptors \(server.py:4\)",
    ),
}
OPENERS = {
    "initialize": INITIALIZE,
    "discover": request("discover", "server/discover", modern=True),
    "legacy discover": request("discover", "server/discover"),
    "legacy tools/list": request("list", "tools/list"),
    "tools/list": request("list", "tools/list", modern=True),
    "ping": request("ping", "ping"),
}


def answer_of(process: Process, opener: Mapping[str, Any]) -> dict[str, Any]:
    """The error that the opener gets.

    The process must then end with 1, without waiting for the end of its input.
    """
    process.send(opener)
    process.pump(lambda: bool(process.messages))
    [answer] = process.messages
    assert answer["id"] == opener["id"]
    assert answer["error"]["code"] == -32603
    assert_failed(process)
    assert SECRET not in repr(answer)
    assert SECRET.encode() not in process.stderr
    return answer["error"]


def assert_failed(process: Process) -> None:
    """Assert that the process ends with 1.

    Python 3.13 and later end a script that raises KeyboardInterrupt by SIGINT, as Ctrl-C does.
    """
    code = process.wait()
    message = process.messages[0]["error"]["message"]
    assert code == 1 or (code == -signal.SIGINT and "KeyboardInterrupt" in message)


def pairs(kinds: Iterable[str], fixed: str) -> list[tuple[str, str]]:
    """Every kind with one opener, and every opener with one kind: more pairs are slow."""
    others = [(fixed, opener) for opener in OPENERS if opener != "initialize"]
    return [*((kind, "initialize") for kind in kinds), *others]


def more_pairs() -> list[tuple[str, str, str]]:
    """Every kind in each way, with another opener as the first request, in turn of both eras.

    `python server.py` cannot tell what fails before it imports concertino.
    """
    openers = ["discover", "legacy discover", "tools/list", "legacy tools/list", "ping"]
    kinds = [("serve", kind) for kind in (*AT_IMPORT, *AT_START)]
    kinds += [("script", kind) for kind in AT_START]
    return [(way, kind, openers[number % len(openers)]) for number, (way, kind) in enumerate(kinds)]


@pytest.mark.parametrize(("kind", "opener"), pairs(AT_IMPORT, "a module that is not installed"))
def test_a_file_that_cannot_be_imported_is_said(kind: str, opener: str, tmp_path: Path) -> None:
    source, expected = AT_IMPORT[kind]
    path = tmp_path / "server.py"
    path.write_text(source)
    with Process([*SERVE, str(path)], env={"MY_TOKEN": SECRET}) as process:
        error = answer_of(process, OPENERS[opener])
        assert re.fullmatch(expected.format(path=re.escape(str(path))), error["message"]), error
        assert re.search(rb"\[ERROR\]", process.stderr)


def test_in_an_environment_of_uvx_a_missing_module_names_interpreter_and_option(
    tmp_path: Path,
) -> None:
    # As `uvx` makes it: without pip, two folders below the tag of a cache.
    environment = tmp_path / "archive-v0" / "k3J"
    venv.create(environment)
    (tmp_path / "CACHEDIR.TAG").touch()
    (tmp_path / "server.py").write_text("import no_such_module_here\n")
    python = environment / "bin" / "python"
    packages = [Path(module.__file__ or "").parents[1] for module in (concertino, msgspec)]
    done = subprocess.run(
        [python, *SERVE, "server.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": os.pathsep.join(map(str, packages))},
        input=json.dumps(INITIALIZE) + "\n",
        capture_output=True,
        text=True,
        timeout=60,
    )
    expected = (
        "ModuleNotFoundError: No module named 'no_such_module_here' (server.py:1);"
        f" {python} runs this server: add --with PACKAGE to the uvx or uv run command,"
        " where PACKAGE is the one that has it"
    )
    assert json.loads(done.stdout)["error"]["message"] == f"cannot start: {expected}"
    assert f"Failed to start server: importing server.py: {expected}\n" in done.stderr


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import os.no_such_part\n", "No module named 'os.no_such_part'; 'os' is not a package"),
        ("raise ModuleNotFoundError('without a name')\n", "without a name"),
    ],
    ids=["a part of a module that is there", "a name that is not known"],
)
def test_a_module_that_no_package_would_bring_is_told_without_a_hint(
    source: str, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "server.py"
    path.write_text(source)
    with Process([*SERVE, str(path)]) as process:
        error = answer_of(process, INITIALIZE)
        assert error["message"] == f"cannot start: ModuleNotFoundError: {reason} (server.py:1)"


@pytest.mark.parametrize(("kind", "opener"), pairs(AT_START, "a lifespan"))
def test_a_script_that_fails_at_its_start_is_said(kind: str, opener: str, tmp_path: Path) -> None:
    source, expected = AT_START[kind]
    path = tmp_path / "server.py"
    path.write_text(source + RUN)
    with Process([str(path)], forked=False) as process:
        error = answer_of(process, OPENERS[opener])
        assert re.fullmatch(expected, error["message"]), error
        assert process.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("way", "kind", "opener"), more_pairs())
def test_any_kind_of_failure_is_said_to_any_opener(
    way: str, kind: str, opener: str, tmp_path: Path
) -> None:
    source, expected = {**AT_IMPORT, **AT_START}[kind]
    path = tmp_path / "server.py"
    expected = expected.format(path=re.escape(str(path))) if kind in AT_IMPORT else expected
    path.write_text(source + (RUN if kind in AT_START else ""))
    # All openers in one process, because a host may send more than one request before it reads.
    others = [request for name, request in OPENERS.items() if name != opener]
    words = SERVE if way == "serve" else []
    with Process([*words, str(path)], env={"MY_TOKEN": SECRET}) as process:
        for sent in (OPENERS[opener], *others):
            process.send(sent)
        process.pump(lambda: len(process.messages) == len(OPENERS))
        assert sorted(str(answer["id"]) for answer in process.messages) == sorted(
            str(sent["id"]) for sent in OPENERS.values()
        )
        for answer in process.messages:
            assert answer["error"]["code"] == -32603
            assert re.fullmatch(expected, answer["error"]["message"]), answer
        assert SECRET not in repr(process.messages)
        assert SECRET.encode() not in process.stderr
        assert_failed(process)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["serve", "--no-such-option", "x.py"], "unrecognized arguments: --no-such-option"),
        (["serve", "--max-result-bytes", "x", "x.py"], "argument --max-result-bytes: "),
        (["serve", "no_such_file.py"], "no_such_file.py: no such file"),
        (["serve", "--resources", ".", "--scheme", "9"], "scheme: expected a small letter"),
        (["bridge", "--orchestrator-addr", "nonsense"], "nonsense"),
        (["bridge", "--no-such-option"], "unrecognized arguments: --no-such-option"),
    ],
)
def test_a_wrong_command_line_is_said(words: list[str], expected: str, tmp_path: Path) -> None:
    with Process(["-m", "concertino", *words], cwd=tmp_path) as process:
        message = answer_of(process, INITIALIZE)["message"]
        assert message.startswith("cannot start: ")
        assert expected in message
        assert expected.encode() in process.stderr


def test_a_wrong_variable_is_said(tmp_path: Path) -> None:
    env = {"CONCERTINO_MAX_IN_FLIGHT": "many"}
    with Process([script(tmp_path, "server = Server('x')\n" + RUN)], env=env) as process:
        assert answer_of(process, INITIALIZE)["message"] == (
            "cannot start: CONCERTINO_MAX_IN_FLIGHT: expected a positive integer, got 'many'"
        )


def test_a_client_that_falls_back_to_initialize_is_told_again(tmp_path: Path) -> None:
    path = tmp_path / "server.py"
    path.write_text("import no_such_module_here\n")
    with Process([*SERVE, str(path)]) as process:
        process.send(OPENERS["discover"])
        process.pump(lambda: len(process.messages) == 1)
        process.send(INITIALIZE)
        process.pump(lambda: len(process.messages) == 2)
        assert {answer["error"]["code"] for answer in process.messages} == {-32603}
        assert process.finish() == 1


@pytest.mark.parametrize("source", ["import no_such_module_here\n", AT_START["a lifespan"][0]])
def test_a_server_that_nobody_asks_ends_after_two_seconds(source: str, tmp_path: Path) -> None:
    path = tmp_path / "server.py"
    path.write_text(source)
    began = time.monotonic()
    with Process([*SERVE, str(path)]) as process:
        process.until_stderr("Failed to start server")
        failed = time.monotonic()
        assert process.wait() == 1
        ended = time.monotonic()
        assert process.messages == []
    assert ended - began >= 2
    # Far from the next longer time limits, 5 and 10 s, on a loaded machine too.
    assert ended - failed < 4


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("code", ["'set API_HOST first'", "3"])
def test_a_script_that_exits_before_it_serves_says_so(
    code: str, opener: str, tmp_path: Path, gate: Path
) -> None:
    path = tmp_path / "server.py"
    path.write_text(f"import sys\n{SERVER}open({str(gate)!r}).close()\nsys.exit({code})\n{RUN}")
    with Process([str(path)]) as process:
        process.send(OPENERS[opener])
        gate.write_bytes(b"")
        process.pump(lambda: bool(process.messages))
        [answer] = process.messages
        assert answer["id"] == OPENERS[opener]["id"]
        assert answer["error"]["code"] == -32603
        text = "cannot start: server.py has ended before it served; its stderr may say why"
        assert answer["error"]["message"] == text
        assert process.wait() == (3 if code == "3" else 1)


def test_a_script_that_exits_waits_for_no_request(tmp_path: Path) -> None:
    patience = "import sys\nimport concertino.runtime.refusal as r\nr.FIRST_S = 600\n"
    (tmp_path / "server.py").write_text(f"{patience}{SERVER}sys.exit(0)\n{RUN}")
    silent, open_end = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "server.py"],
            cwd=tmp_path,
            env=environment(),
            stdin=silent,
            capture_output=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(silent)
        os.close(open_end)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_end_of_input_ends_the_wait(tmp_path: Path) -> None:
    path = tmp_path / "server.py"
    path.write_text("import no_such_module_here\n")
    with Process([*PATIENT_SERVE, str(path)]) as process:
        assert process.finish() == 1


def test_a_script_that_fails_does_not_wait_if_nobody_reads_its_output(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER + "1 / 0\n")
    reading, writing = os.pipe()
    os.close(reading)
    silent, open_end = os.pipe()
    try:
        # Longer than the wait, so that the test shows which of the two ended it.
        done = subprocess.run(
            [*COMMAND, "import concertino.runtime.refusal as r; r.FIRST_S = 600; " + RUN_FILE],
            cwd=tmp_path,
            env=environment(),
            stdin=silent,
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        for descriptor in (writing, silent, open_end):
            os.close(descriptor)
    assert done.returncode == 1
    assert b"ZeroDivisionError" in done.stderr


@pytest.mark.parametrize(
    "leaves",
    [
        "import threading\nthreading.Thread(target=threading.Event().wait).start()\n",
        "import atexit, threading\natexit.register(threading.Event().wait)\n",
    ],
)
def test_a_script_whose_failure_was_said_ends_without_waiting_for_threads_or_functions(
    leaves: str, tmp_path: Path
) -> None:
    path = tmp_path / "server.py"
    path.write_text(SERVER + leaves + "raise ValueError('no key')\n")
    with Process([str(path)]) as process:
        error = answer_of(process, INITIALIZE)
    assert error["message"] == "cannot start: ValueError: no key (server.py:5)"


def test_an_import_that_never_ends_ends_with_its_client(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(
        "import sys\nprint('importing', file=sys.stderr, flush=True)\nwhile True:\n    pass\n"
    )
    with subprocess.Popen(
        [sys.executable, *SERVE, "server.py"],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        try:
            assert process.stderr.readline() == b"importing\n"
            process.stdin.close()
            process.stdout.close()
            assert b"the client has gone" in process.stderr.read()
            assert process.wait(60) == 1
        finally:
            process.kill()


HOOK = """import sys
def hook(kind, exc, trace):
    print("own hook:", kind.__name__, file=sys.stderr)
sys.excepthook = hook
"""
BAD_KEY = """import os
key = os.environ['MY_TOKEN']
raise RuntimeError('bad key ' + key) from OSError(key)
"""


def run_with_secret(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, with SECRET in the environment and without input."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**environment(), "MY_TOKEN": SECRET},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("way", ["script", "serve", "serve --traceback"])
@pytest.mark.parametrize("begins", ["", "try:\n    1 / 0\nexcept ZeroDivisionError:\n    pass\n"])
def test_the_traceback_of_a_script_that_fails_before_it_serves_shows_no_secret(
    begins: str, way: str, tmp_path: Path
) -> None:
    (tmp_path / "server.py").write_text(begins + SERVER + BAD_KEY + RUN)
    _, *options = way.split()
    done = run_with_secret(tmp_path, *([] if way == "script" else [*SERVE, *options]), "server.py")
    assert done.returncode == 1
    assert "RuntimeError: bad key [REDACTED]" in done.stderr
    assert ("OSError: [REDACTED]" in done.stderr) == (way != "serve")
    assert ("raise RuntimeError('bad key ' + key)" in done.stderr) == (way != "serve")
    assert SECRET not in done.stderr + done.stdout


def test_a_script_s_own_hook_gets_the_exception_of_its_failure(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(HOOK + SERVER + BAD_KEY)
    done = run_with_secret(tmp_path, "server.py")
    assert (done.returncode, done.stderr) == (1, "own hook: RuntimeError\n")


def test_a_script_in_a_pipeline_that_fails_writes_nothing_to_its_stdout(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER + "1 / 0\n")
    done = subprocess.run(
        [sys.executable, "server.py"],
        cwd=tmp_path,
        env=environment(),
        input=b'some text\n{"a": 1}\n[]\n',
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"ZeroDivisionError" in done.stderr


def test_a_person_at_a_terminal_does_not_wait(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    path = tmp_path / "server.py"
    path.write_text("import no_such_module_here\n")
    try:
        with Process([*PATIENT_SERVE, str(path)], stdin=theirs, writing=os.dup(ours)) as process:
            process.until_stderr("Failed to start server")
            assert process.wait() == 1
    finally:
        os.close(ours)
        os.close(theirs)


SLOW = """
import asyncio, os
from collections.abc import AsyncIterator
from concertino import Server
server = Server("slow")
@server.lifespan
async def opened() -> AsyncIterator[None]:
    await asyncio.get_running_loop().run_in_executor(None, open, os.environ["GATE"])
    if os.environ.get("FAIL"):
        raise OSError("no database")
    yield
@server.tool
async def echo(text: str) -> str:
    return text
server.run()
"""


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A fifo: the server's lifespan waits until it is opened for writing."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


def slow_server(tmp_path: Path, gate: Path, **more: str) -> Process:
    path = tmp_path / "server.py"
    path.write_text(SLOW)
    return Process([str(path)], env={"GATE": str(gate), **more})


def test_a_long_lifespan_does_not_hold_up_the_opener_and_its_failure_answers_the_first_call(
    tmp_path: Path, gate: Path
) -> None:
    with slow_server(tmp_path, gate, FAIL="1", CONCERTINO_OPENING_S="0.05") as process:
        assert process.ask(INITIALIZE)["result"]["serverInfo"]["name"] == "slow"
        process.send(call(1, "echo", {"text": "x"}))
        gate.write_bytes(b"")
        process.pump(lambda: len(process.messages) == 2)
        assert process.messages[1] == {
            "jsonrpc": "2.0",
            "id": 1,
            "error": {
                "code": -32603,
                "message": "cannot start: OSError: no database (server.py:10)",
            },
        }
        assert process.wait() == 1


def test_the_opener_waits_for_a_lifespan_of_less_than_opening_s(tmp_path: Path, gate: Path) -> None:
    with slow_server(tmp_path, gate, CONCERTINO_OPENING_S="20") as process:
        process.send(INITIALIZE)
        process.until_stderr("Starting slow MCP server")
        gate.write_bytes(b"")
        process.pump(lambda: bool(process.messages))
        assert process.stderr.count(b"started successfully") <= 1
        assert process.messages[0]["result"]["serverInfo"]["name"] == "slow"
        assert process.finish() == 0


@pytest.mark.slow
def test_the_opener_of_a_long_lifespan_is_answered_after_one_second(
    tmp_path: Path, gate: Path
) -> None:
    began = time.monotonic()
    with slow_server(tmp_path, gate) as process:
        process.ask(INITIALIZE)
        assert time.monotonic() - began >= 1
        gate.write_bytes(b"")
        assert process.finish() == 0


def test_input_that_ends_during_the_start_is_answered_like_any_other(
    tmp_path: Path, gate: Path
) -> None:
    with slow_server(tmp_path, gate, FAIL="1", CONCERTINO_OPENING_S="20") as process:
        process.send(INITIALIZE)
        process.until_stderr("Starting slow MCP server")
        process.close_stdin()
        gate.write_bytes(b"")
        process.pump(lambda: bool(process.messages))
        assert process.messages[0]["error"]["message"] == (
            "cannot start: OSError: no database (server.py:10)"
        )
        assert process.wait() == 1
