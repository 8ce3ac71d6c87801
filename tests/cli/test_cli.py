"""cli: arguments, targets, versions, and exit codes. What serving is like is in tests/stdio."""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from warm_commands import run_command

import concertino
from concertino import Limits, Server
from concertino.cli import main
from concertino.cli.targets import load_target, load_targets
from concertino.cli.version import describe_versions
from concertino.errors import TargetError
from concertino.runtime import entry

SRC = str(Path(concertino.__file__).parent.parent)


@pytest.fixture(autouse=True)
def _clean_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """load_target() adds to sys.path and sys.modules, as a script's start does; each test begins
    anew.
    """
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(sys, "modules", sys.modules.copy())


def write_target(folder: Path, source: str, name: str = "target.py") -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("from concertino import Server\n" + source)
    return str(path)


# Targets


def test_the_only_server_of_a_file_is_found(tmp_path: Path) -> None:
    found = load_target(write_target(tmp_path, "anything = Server('only')\nother = 5")).backend
    assert isinstance(found, Server)
    assert found.name == "only"


def test_one_server_under_two_names_is_one(tmp_path: Path) -> None:
    assert (
        load_target(write_target(tmp_path, "a = b = Server('one')")).backend.features().info.name
        == "one"
    )


def test_the_server_that_run_is_called_on_is_meant(tmp_path: Path) -> None:
    source = "a = Server('a')\nb = Server('b')\nb.run()\nafter = 'reached'"
    assert load_target(write_target(tmp_path, source)).backend.features().info.name == "b"
    assert entry.run_calls.get() is None


def test_run_under_the_usual_guard_is_not_called(tmp_path: Path) -> None:
    source = "a = Server('a')\nif __name__ == '__main__':\n    raise SystemExit\n"
    assert load_target(write_target(tmp_path, source)).backend.features().info.name == "a"


def test_a_server_made_in_a_function_is_found_by_its_run(tmp_path: Path) -> None:
    assert (
        load_target(write_target(tmp_path, "def main():\n    Server('inner').run()\nmain()"))
        .backend.features()
        .info.name
        == "inner"
    )


def test_what_a_file_gives_to_run_is_kept(tmp_path: Path) -> None:
    source = (
        "from asyncio import new_event_loop\nfrom concertino import Limits\na = Server('a')\n"
        "b = Server('b')\n"
        "a.run(limits=Limits(max_in_flight=7), loop_factory=new_event_loop)\n"
    )
    path = write_target(tmp_path, source)
    for target in (path, f"{path}:a"):
        found = load_target(target)
        assert found.backend.features().info.name == "a"
        assert found.limits == Limits(max_in_flight=7)
        assert found.loop_factory is asyncio.new_event_loop
    other = load_target(f"{path}:b")
    assert (other.limits, other.loop_factory) == (None, None)


def test_serving_uses_what_a_file_gives_to_run(tmp_path: Path) -> None:
    source = (
        "import sys\nfrom asyncio import new_event_loop\n"
        "def loop():\n    print('its own loop', file=sys.stderr)\n    return new_event_loop()\n"
        "Server('a').run(loop_factory=loop)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "concertino", "serve", write_target(tmp_path, source)],
        env={**os.environ, "PYTHONPATH": SRC},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert "its own loop" in done.stderr


def test_a_path_may_hold_a_colon(tmp_path: Path) -> None:
    path = write_target(tmp_path, "s = Server('s')", "a:b/c:d.py")
    assert load_target(path).backend.features().info.name == "s"
    assert load_target(f"{path}:s").backend.features().info.name == "s"


def test_a_class_is_not_a_server(tmp_path: Path) -> None:
    path = write_target(tmp_path, "class Mine(Server): ...")
    with pytest.raises(TargetError, match="got the class Mine; give an object"):
        load_target(f"{path}:Mine")


def test_an_attribute_names_one_of_several(tmp_path: Path) -> None:
    path = write_target(tmp_path, "a = Server('a')\nclass box:\n    b = Server('b')")
    assert load_target(f"{path}:a").backend.features().info.name == "a"
    assert load_target(f"{path}:box.b").backend.features().info.name == "b"


def test_any_backend_will_do(tmp_path: Path) -> None:
    source = (
        "from concertino.backend import BackendWrapper\nserver = Server('inner')\n"
        "guarded = BackendWrapper(server)"
    )
    assert (
        load_target(f"{write_target(tmp_path, source)}:guarded").backend.features().info.name
        == "inner"
    )


def test_a_module_is_found_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_target(tmp_path, "s = Server('s')", "shop_for_test/floor.py")
    monkeypatch.chdir(tmp_path)
    assert load_target("shop_for_test.floor:s").backend.features().info.name == "s"


def test_a_file_can_import_its_neighbours_and_itself(tmp_path: Path) -> None:
    write_target(tmp_path, "word = 'neighbour'", "neighbour_for_test.py")
    path = write_target(
        tmp_path,
        "import neighbour_for_test, itself_for_test\ns = Server(neighbour_for_test.word)",
        "itself_for_test.py",
    )
    assert load_target(path).backend.features().info.name == "neighbour"


def test_a_file_named_as_a_module_that_is_loaded_does_not_take_its_place(tmp_path: Path) -> None:
    path = write_target(tmp_path, "import json\ns = Server(json.dumps([1]))", "json.py")
    assert load_target(path).backend.features().info.name == "[1]"
    import json

    assert json.dumps([1]) == "[1]"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("word", "expected file.py, file.py:attribute, package.module:attribute or a folder"),
        ("", "expected file.py"),
        ("no_such.py", "no_such.py: no such file"),
        ("no_such.py:x", "no_such.py: no such file"),
        (".", "expected resources/ or prompts/ in it"),
        (":x", "expected file.py"),
        (".m:x", "expected file.py"),
        ("..:x", "expected file.py"),
        ("os:", "expected file.py"),
        ("os.:x", "no such module"),
        ("no_such_module_at_all:x", "no_such_module_at_all: no such module"),
        ("os.no_such:x", "no such module"),
        ("os:no_such", "os has no attribute 'no_such'"),
        ("os:path.no_such", "os has no attribute 'path.no_such'"),
        ("os:sep", "expected a Server or another Backend, got str"),
    ],
)
def test_a_target_that_leads_nowhere_says_what_was_found(target: str, said: str) -> None:
    with pytest.raises(TargetError) as refused:
        load_target(target)
    assert said in str(refused.value)


def test_a_mistyped_name_of_a_server_names_those_that_are_there(tmp_path: Path) -> None:
    path = write_target(tmp_path, "a = Server('a')\nb = Server('b')", "two.py")
    with pytest.raises(TargetError, match=r"has no attribute 'c'; the servers in it: .*:a, .*:b$"):
        load_target(f"{path}:c")


def test_the_name_of_a_tool_in_place_of_a_server_names_the_servers(tmp_path: Path) -> None:
    path = write_target(tmp_path, add_tool("a"))
    with pytest.raises(TargetError, match=r"got function; the servers in it: .*:server$"):
        load_target(f"{path}:f")


def test_no_server_and_several_servers_are_said(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"no concertino\.Server found"):
        load_target(write_target(tmp_path, "x = 5", "none.py"))
    with pytest.raises(TargetError, match=r"several servers \(a, b\).*:ATTRIBUTE"):
        load_target(write_target(tmp_path, "a = Server('a')\nb = Server('b')", "two.py"))


def test_a_backend_that_is_no_server_is_served_when_run_is_called_on_it(tmp_path: Path) -> None:
    source = (
        "import concertino\na = Server('a')\nguarded = concertino.backend.BackendWrapper(a)\n"
        "concertino.run(guarded)"
    )
    assert type(load_target(write_target(tmp_path, source)).backend).__name__ == "BackendWrapper"


def add_tool(name: str) -> str:
    return f"server = Server({name!r})\n@server.tool\ndef f() -> str: return {name!r}"


def test_several_targets_are_composed_under_their_names(tmp_path: Path) -> None:
    one, other = (
        write_target(tmp_path, add_tool("one"), "one_t.py"),
        write_target(tmp_path, add_tool("other"), "other_t.py"),
    )
    assert list(load_targets([one, f"my_name={other}", f"c={other}:server"]).backend.parts) == [
        "one_t",
        "my_name",
        "c",
    ]
    assert list(load_targets([f"a={one}"]).backend.parts) == ["a"]
    assert isinstance(load_targets([one]).backend, Server)


def test_a_file_with_an_equals_sign_in_its_name_is_a_target(tmp_path: Path) -> None:
    assert isinstance(
        load_targets([write_target(tmp_path, add_tool("x"), "a=b.py")]).backend, Server
    )


def test_names_that_collide_are_said(tmp_path: Path) -> None:
    one = write_target(tmp_path, add_tool("one"), "same_t.py")
    with pytest.raises(TargetError, match=r"two with the name 'same_t'.*NAME="):
        load_targets([one, one])
    with pytest.raises(TargetError, match="could get the same name"):
        load_targets([f"a={one}", f"a_b={one}"])


def test_what_importing_raises_is_raised_and_leaves_run_as_it_was(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        load_target(write_target(tmp_path, "1 / 0"))
    assert entry.run_calls.get() is None


def test_a_module_that_a_target_lacks_is_its_own_failure_not_a_wrong_target(tmp_path: Path) -> None:
    write_target(tmp_path, "import no_such_module_inside", "lacking_for_test.py")
    sys.path.insert(0, str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="no_such_module_inside"):
        load_target("lacking_for_test:server")


# The command


def load_server(target: str) -> subprocess.CompletedProcess[str]:
    return run_command("serve", target, env={**os.environ, "PYTHONPATH": SRC})


def test_a_start_that_fails_late_counts_although_nobody_speaks(tmp_path: Path) -> None:
    # Its input has ended long before: a failure that is not waited for would look like a good end.
    source = (
        "import asyncio\nfrom collections.abc import AsyncIterator\nserver = Server('a')\n"
        "@server.lifespan\n"
        "async def database() -> AsyncIterator[None]:\n"
        "    for _ in range(100): await asyncio.sleep(0)\n"
        "    raise OSError('no such database')\n    yield\n"
    )
    run = load_server(write_target(tmp_path, source))
    assert run.returncode == 1
    assert "Failed to start server: OSError: no such database" in run.stderr


@pytest.mark.parametrize(
    "source",
    [
        "import json\njson.loads('{')",
        "a = Server('a')\n@a.tool\ndef f(*args): ...",
        "\nimport part",
    ],
)
def test_a_failed_import_names_the_place_in_what_was_written_not_in_a_library(
    source: str, tmp_path: Path
) -> None:
    (tmp_path / "part.py").write_text("\n\nimport json; json.loads('{')")
    run = load_server(write_target(tmp_path, source))
    assert run.returncode == 1
    assert run.stderr.splitlines()[0].endswith(
        "(part.py:3)" if "part" in source else "(target.py:3)"
    )


def test_version_names_package_python_protocol_and_extras(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert said == describe_versions() + "\n"
    assert f"concertino {concertino.__version__}" in said
    assert platform.python_version() in said
    assert "2024-11-05, 2025-03-26, 2025-06-18, 2025-11-25, 2026-07-28" in said
    assert "validate (installed)" in said or "validate (not installed)" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "usage: concertino"),
        (["fly"], "there is no command 'fly'"),
        (["serve"], "expected a target"),
        (["serve", "a.py", "--allow-remote"], "--allow-remote and --max-connections are for"),
        (["--no-such"], "unrecognized arguments: --no-such"),
    ],
)
def test_wrong_usage_ends_with_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    written = capsys.readouterr()
    assert said in written.err
    assert written.out == ""


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"]])
def test_help_ends_with_0(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    assert "usage: concertino" in capsys.readouterr().out


def test_importing_the_package_loads_nothing_that_is_not_used() -> None:
    """PERFORMANCE: nothing but asyncio and msgspec belongs on the way to the first answer; import
    alone needs neither.
    """
    source = (
        "import sys, concertino; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", source],
        env={**os.environ, "PYTHONPATH": SRC},
        capture_output=True,
        text=True,
        check=True,
    )
    assert not {"asyncio", "msgspec", "argparse", "typing_extensions"} & set(done.stdout.split())


# A stdout that cannot be written

PRINTING = {
    "help": ["--help"],
    "a command's help": ["serve", "--help"],
    "a subcommand's help": ["certs", "show", "--help"],
    "versions": ["--version"],
    "lint": ["lint", "FOLDER", "--json"],
    "search": ["search", "FOLDER", "word"],
    "manifest": ["plugin", "sqlite", "--manifest"],
    "new": ["new", "project"],
}


@pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("words", PRINTING.values(), ids=PRINTING)
def test_a_stdout_that_cannot_be_written_is_said_and_is_no_success(
    words: list[str], buffered: bool, tmp_path: Path
) -> None:
    (tmp_path / "resources").mkdir()
    (tmp_path / "resources" / "a.md").write_text("# A word\n\nText.\n")
    command = [word.replace("FOLDER", str(tmp_path)) for word in words]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "concertino", *command],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": SRC, "PYTHONUNBUFFERED": "" if buffered else "1"},
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=30,
            check=False,
        )
    said = done.stderr.decode().splitlines()
    assert done.returncode == 1, said
    assert "stdout: No space left on device" in said[-1]
    assert "Traceback" not in done.stderr.decode()


@pytest.mark.parametrize(
    "words",
    [
        ["call", "add", "a=1", "b=2", "--", sys.executable, "-m", "concertino.cli.demo_server"],
        ["check", "--list"],
        ["completion", "bash"],
        ["demo"],
        ["docs"],
        ["new", "adder"],
    ],
    ids=lambda words: words[0],
)
def test_a_closed_stdout_is_said_before_anything_is_done(words: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "concertino", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": SRC},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=30,
        check=False,
    )
    text = f"concertino {words[0]}: stdout is closed, so there is nowhere to show anything\n"
    assert (done.returncode, done.stderr.decode()) == (1, text)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["lint", "--help"]])
def test_help_whose_reader_is_gone_needs_no_words(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "concertino", *words],
        env={**os.environ, "PYTHONPATH": SRC, "PYTHONUNBUFFERED": ""},
        stdout=writing,
        stderr=subprocess.PIPE,
        timeout=30,
        check=False,
    )
    os.close(writing)
    assert done.stderr == b""
