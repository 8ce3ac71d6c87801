"""cli/demo.py: `concertino demo`, in real processes, as people and scripts run it."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from warm_commands import run_python

import concertino
from concertino import Client
from concertino.cli.client_configuration import format_command
from concertino.cli.demo import format_configuration

# Together they take long, and they do not depend on the version of Python.
pytestmark = pytest.mark.slow

SOURCE = str(Path(concertino.__file__).parents[1])
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if name not in ("NO_COLOR", "FORCE_COLOR", "LOG_LEVEL")
} | {"PYTHONPATH": SOURCE}
DEMO = [sys.executable, "-m", "concertino", "demo"]


def demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_python(
        [*DEMO, *arguments],
        env=ENVIRONMENT | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def output() -> str:
    """What the demo prints into a pipe."""
    done = demo()
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_it_shows_function_tool_call_refusal_print_and_restart(output: str) -> None:
    places = [
        output.index(text)
        for text in (
            "async def add(a: int, b: int) -> int:",
            "add(a: integer, b: integer) -> integer   Add two integers.",
            "add(a=40, b=2)  ->  42",
            'add(a="forty")',
            "Invalid arguments: a: expected int, got str; Missing required field: b",
            "a print at calculator.py:11 ",
            "adding 40 2",
            "kill -9 ",
            "add(a=20, b=3)  ->  23",
            '{"mcpServers": ',
            "claude mcp add calculator -- ",
            "concertino new my_server",
        )
    ]
    assert places == sorted(places)


def test_it_fits_a_screen_of_80_columns(output: str) -> None:
    lines = output.splitlines()
    # Without the empty lines between the steps.
    assert len(list(filter(None, lines))) <= 30
    # The lines to paste have paths, which cannot be broken.
    explained = lines[: next(n for n, line in enumerate(lines) if line.startswith("{"))]
    assert max(map(len, explained)) <= 80
    assert "\x1b" not in output


def test_the_process_that_was_killed_is_not_the_one_that_answers(output: str) -> None:
    [killed] = re.findall(r"^kill -9 (\d+):", output, re.MULTILINE)
    [answered] = re.findall(r"  ->  23, from process (\d+),", output, re.MULTILINE)
    assert killed != answered
    for pid in (killed, answered):
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_the_lines_to_paste_start_the_server(output: str, tmp_path: Path) -> None:
    [text] = re.findall(r"^\{.*?\}\}\}$", output, re.MULTILINE | re.DOTALL)
    entry = json.loads(text)["mcpServers"]["calculator"]
    [line] = re.findall(
        r"^claude mcp add calculator -- (.*?)\n\n", output, re.MULTILINE | re.DOTALL
    )
    assert line.replace("\\\n", "").split() == [entry["command"], *entry["args"]]
    assert Path(entry["command"]).is_absolute()

    async def call() -> int:
        async with Client([entry["command"], *entry["args"]]) as client:
            return await client.call_tool("add", {"a": 40, "b": 2}, into=int)

    assert asyncio.run(call()) == 42


def test_wire_shows_every_message() -> None:
    done = demo("--wire")
    assert (done.returncode, done.stderr) == (0, "")
    joined = re.sub(r"\n {6}", " ", done.stdout)
    sent = [json.loads(line) for line in re.findall(r"^ +-> (\{.*\})$", joined, re.MULTILINE)]
    received = [json.loads(line) for line in re.findall(r"^ +<- (\{.*\})$", joined, re.MULTILINE)]
    methods = [message["method"] for message in sent]
    assert methods[:4] == ["server/discover", "tools/list", "tools/call", "tools/call"]
    # The second server is asked, too; the last call may have been sent to both.
    assert methods.count("server/discover") == 2
    answered = {message["id"] for message in received}
    assert len({message["id"] for message in sent} - answered) <= 1
    contents = [message["result"].get("content") for message in received]
    assert {"type": "text", "text": "42"} in [items[0] for items in contents if items]


def on_terminal(**environment: str) -> str:
    """Run the demo on a terminal, and return what it wrote there."""
    ours, its = pty.openpty()
    child = subprocess.Popen(
        DEMO, stdin=its, stdout=its, stderr=its, env=ENVIRONMENT | {"TERM": "xterm"} | environment
    )
    os.close(its)
    written = b""
    try:
        while chunk := os.read(ours, 65536):
            written += chunk
    except OSError:  # Linux reports the end of a terminal so
        pass
    os.close(ours)
    assert child.wait(60) == 0, written
    return written.decode()


@pytest.mark.parametrize(
    ("environment", "is_coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_colours_are_for_terminals_that_want_them(
    environment: dict[str, str], is_coloured: bool
) -> None:
    assert ("\x1b[" in on_terminal(**environment)) is is_coloured


def test_it_works_in_a_folder_that_cannot_be_written_and_in_the_c_locale(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    done = subprocess.run(
        DEMO,
        cwd=tmp_path,
        env=ENVIRONMENT | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii()
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_goes_away_is_no_error_to_report() -> None:
    with subprocess.Popen(
        DEMO, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.readline()
        child.stdout.close()
        assert child.stderr.read() == b""
    assert child.returncode == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk_is_one_sentence() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            DEMO, env=ENVIRONMENT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120
        )
    assert done.returncode == 1
    assert re.fullmatch(r"concertino demo: .*No space left on device\n", done.stderr)


def test_without_a_temporary_folder_it_says_so() -> None:
    # Not the variable alone: the system has other folders for this.
    code = (
        "import sys, tempfile\n"
        "from concertino.cli import main\n"
        "tempfile._candidate_tempdir_list = lambda: ['/nowhere']\n"
        "main(['demo'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.startswith("concertino demo: ")
    assert "No usable temporary directory" in done.stderr
    assert "Traceback" not in done.stderr


SERVER = (Path(concertino.__file__).parent / "cli" / "demo_server.py").read_text()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            lambda text: text.replace("a + b", "a - b"),
            r"the result of add\(40, 2\): expected 42, got 38",
        ),
        (
            lambda text: text.replace("a: int, b: int", "a: int | str, b: int = 0").replace(
                "return a + b", "return int(a) + b if isinstance(a, int) else 0"
            ),
            r"the types of add's arguments: .*",
        ),
        (
            lambda text: text.replace("b: int)", "b: int = 0)"),
            r"the arguments named in 'Invalid arguments: .*': expected \['a', 'b'\], got \['a'\]",
        ),
        (
            lambda text: text.replace('print("adding", a, b)', "pass"),
            r"the server's log has no line with 'a print at calculator.py:\\\\d\+ \.\*'; it "
            r"has:\n.*",
        ),
        (lambda text: text.replace("@server.tool", ""), r"the server's tools: .*"),
        (lambda text: f"import no_such_module\n{text}", r".*No module named 'no_such_module'.*"),
    ],
    ids=["another sum", "other types", "an optional argument", "no print", "no tool", "no start"],
)
def test_a_server_that_differs_ends_it_with_1_and_a_sentence(
    change: Callable[[str], str], problem: str, tmp_path: Path
) -> None:
    (tmp_path / "other.py").write_text(change(SERVER))
    code = (
        "from pathlib import Path\n"
        "from concertino.cli import demo, main\n"
        "demo.PATIENCE_S = 5.0\n"
        f"demo.SOURCE = Path({str(tmp_path / 'other.py')!r})\n"
        "main(['demo'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert re.match(f"concertino demo: {problem}\n", done.stderr, re.DOTALL), done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_ends_it_and_its_server() -> None:
    with subprocess.Popen(DEMO, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if match := re.match(r"kill -9 (\d+)", line):
                child.send_signal(2)
                break
        child.stdout.read()
        assert child.wait(60) in (130, 0)  # 0: it was at its end already
    assert match
    with pytest.raises(ProcessLookupError):
        os.kill(int(match[1]), 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_its_server_and_leaves_no_folder(
    number: signal.Signals, tmp_path: Path
) -> None:
    environment = ENVIRONMENT | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        DEMO,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        # It may be ignored here, as under nohup.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if match := re.match(r"kill -9 (\d+)", line):
                assert len(list(tmp_path.iterdir())) == 1
                child.send_signal(number)
                break
        child.stdout.read()
        assert child.wait(60) == 128 + number
    assert match
    assert list(tmp_path.iterdir()) == []


def test_it_takes_no_server() -> None:
    done = demo("--", "python", "server.py")
    assert done.returncode == 2
    assert "this command takes no words after --, got 'python'" in done.stderr


def test_a_long_path_is_not_broken() -> None:
    path = f"/opt/{'x' * 90}/uvx"
    text = format_configuration(path, ["--from", "/a b/concertino.whl", "concertino", "x" * 50])
    assert json.loads(text) == {
        "mcpServers": {
            "calculator": {
                "command": path,
                "args": ["--from", "/a b/concertino.whl", "concertino", "x" * 50],
            }
        }
    }
    assert max(len(line) for line in text.splitlines() if path not in line) <= 80
    words = ["claude", "mcp", "add", "calculator", "--", path, "--from", "/a b/concertino.whl"]
    assert format_command(words) == (
        f"claude mcp add calculator -- \\\n    {path} \\\n    --from '/a b/concertino.whl'"
    )
