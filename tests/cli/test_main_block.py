"""What `concertino serve FILE` serves however the file ends, and run() in a file that is
imported.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from concertino.cli.targets import load_target
from concertino.errors import TargetError
from concertino.guards import Guard
from concertino.server import Server

SERVER = """
import asyncio, sys
from concertino import Guard, Limits, Server, run
import concertino

server = Server("shop")

@server.tool
def add(a: int, b: int) -> int:
    return a + b

"""
MAIN = "if __name__ == '__main__':\n    "


def write_file(folder: Path, ending: str) -> str:
    path = folder / "shop.py"
    path.write_text(SERVER + ending)
    return str(path)


@pytest.mark.parametrize(
    "ending",
    [
        "run(Guard(server, max_in_flight=1))",
        "concertino.run(Guard(server, max_in_flight=1))",
        "guarded = Guard(server, max_in_flight=1)\n    run(guarded)",
    ],
)
@pytest.mark.parametrize("start", ["", MAIN], ids=["bare", "main block"])
def test_a_guard_in_the_call_of_run_is_served(tmp_path: Path, start: str, ending: str) -> None:
    if not start:
        ending = ending.replace("\n    ", "\n")
    target = load_target(write_file(tmp_path, start + ending + "\n"))
    assert isinstance(target.backend, Guard)
    assert isinstance(target.backend.inner, Server)


def test_the_limits_of_the_main_block_apply(tmp_path: Path) -> None:
    ending = MAIN + "server.run(limits=Limits(max_in_flight=7))\n"
    target = load_target(write_file(tmp_path, ending))
    assert target.limits is not None
    assert target.limits.max_in_flight == 7


@pytest.mark.parametrize(
    ("ending", "guards"),
    [
        ("guarded = Guard(server, max_in_flight=1)\n", 1),
        ("guarded = Guard(Guard(server, max_in_flight=2), max_in_flight=1)\n", 2),
        ("inner = Guard(server, max_in_flight=2)\nguarded = Guard(inner, max_in_flight=1)\n", 2),
    ],
)
def test_the_outermost_guard_of_a_file_without_run_is_served(
    tmp_path: Path, ending: str, guards: int
) -> None:
    backend = load_target(write_file(tmp_path, ending)).backend
    for _ in range(guards):
        assert isinstance(backend, Guard)
        backend = backend.inner
    assert isinstance(backend, Server)


def test_a_composition_stands_for_its_parts(tmp_path: Path) -> None:
    ending = "from concertino import compose\nboth = compose(a=server, b=Server('other'))\n"
    backend = load_target(write_file(tmp_path, ending)).backend
    assert sorted(backend.parts) == ["a", "b"]  # type: ignore[attr-defined]


def test_two_servers_are_still_too_many(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="several servers"):
        load_target(write_file(tmp_path, "other = Server('other')\n"))


@pytest.mark.parametrize(
    "block",
    ["asyncio.run(asyncio.sleep(0))\n    sys.exit(3)", "print('side effect')\n    sys.exit(3)"],
)
def test_a_main_block_that_serves_nothing_is_not_executed(
    tmp_path: Path, block: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert isinstance(load_target(write_file(tmp_path, MAIN + block + "\n")).backend, Server)
    assert capsys.readouterr().out == ""


# run() in a file that is imported


def run_python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_pytest_fails_with_the_reason_instead_of_passing_without_a_test(tmp_path: Path) -> None:
    path = write_file(tmp_path, "server.run()\n")
    line = Path(path).read_text().splitlines().index("server.run()") + 1
    (tmp_path / "test_shop.py").write_text(
        "from shop import server\n\ndef test_it() -> None:\n    assert server\n"
    )
    done = run_python(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_shop.py")
    assert done.returncode not in (0, 5)
    expected = (
        f"shop.py:{line}: server.run() called while test_shop.py imports it; "
        "put it under `if __name__ == '__main__':`"
    )
    assert expected in done.stdout

    write_file(tmp_path, MAIN + "server.run()\n")
    done = run_python(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_shop.py")
    assert done.returncode == 0
    assert "1 passed" in done.stdout


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("main.py", "from shop import server\nserver.run()\n"),
        ("main.py", "import shop\ndef main():\n    shop.server.run()\nmain()\n"),
    ],
)
def test_a_server_of_another_module_can_be_run(tmp_path: Path, file: str, code: str) -> None:
    write_file(tmp_path, "")
    (tmp_path / file).write_text(code)
    done = run_python(tmp_path, file)
    assert done.returncode == 0, done.stderr
    assert "Starting shop MCP server" in done.stderr


def test_a_console_script_runs_a_server_of_a_module_that_it_has_imported(tmp_path: Path) -> None:
    write_file(tmp_path, "def main():\n    server.run()\n")
    done = run_python(tmp_path, "-c", "from shop import main; main()")
    assert done.returncode == 0, done.stderr


def test_a_function_that_is_called_during_the_import_is_found_too(tmp_path: Path) -> None:
    write_file(tmp_path, "def main():\n    server.run()\nmain()\n")
    done = run_python(tmp_path, "-c", "import shop")
    assert done.returncode == 1
    assert "server.run() called while <string> imports it" in done.stderr
