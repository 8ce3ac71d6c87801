"""secret_sources.py: secrets from files, commands and the keyring, and where they never appear."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from process_waits import wait_for_end
from stdio.harness import INITIALIZE

from concertino.errors import ConcertinoError
from concertino.logs.redact import REDACTED, redactor
from concertino.proxy import secret_sources
from concertino.proxy.secret_sources import (
    SecretReference,
    parse_secret,
    read_secret,
)
from concertino.transports.orphans import find_marked
from concertino.transports.process_marks import marks_of, new_mark

linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc of Linux")


@pytest.mark.parametrize(
    ("text", "kind", "rest"),
    [
        ("github", "name", "github"),
        ("my.api_key-2", "name", "my.api_key-2"),
        ("file:/run/secrets/x", "file", "/run/secrets/x"),
        ("file: ~/x ", "file", "~/x"),
        ("command:op read 'op://a/b c'", "command", "op read 'op://a/b c'"),
    ],
)
def test_a_reference_has_a_kind(text: str, kind: str, rest: str) -> None:
    reference = parse_secret(text)
    assert (reference.kind, reference.text) == (kind, rest)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "expected secret:NAME with letters"),
        ("../etc", "expected secret:NAME with letters"),
        ("..", "expected the name of a secret to begin"),
        ("a/b", "expected secret:NAME with letters"),
        ("fil:/x", "expected secret:NAME with letters"),
        ("file:", "expected secret:file:..., got nothing"),
        ("command: ", "expected secret:command:..., got nothing"),
        ("command:op 'x", "No closing quotation"),
    ],
)
def test_anything_else_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_secret(text)


def test_a_file_is_read_without_its_last_newline(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hunter two \n")
    (tmp_path / "token").chmod(0o600)
    assert read_secret(SecretReference("file", "token"), tmp_path) == "hunter two "


def test_what_was_read_is_hidden_in_logs(tmp_path: Path) -> None:
    # Looks like a number: only the reference says that it is a secret.
    (tmp_path / "pin").write_text("7391")
    read_secret(SecretReference("file", "pin"), tmp_path)
    assert redactor().text("the pin is 7391.") == f"the pin is {REDACTED}."


@pytest.mark.parametrize(
    ("content", "mode", "problem"),
    [
        (b"", 0o600, "it is empty"),
        (b"\n", 0o600, "it is empty"),
        (b"a\0b", 0o600, "it contains a NUL character"),
        (b"\xff\xfe", 0o600, "expected UTF-8"),
        (b"a" * 65537, 0o600, "expected at most 65536 bytes"),
        (b"secret", 0o606, "every user can write this file"),
    ],
)
def test_a_file_that_cannot_be_a_secret_is_refused(
    tmp_path: Path, content: bytes, mode: int, problem: str
) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(ConcertinoError) as caught:
        read_secret(SecretReference("file", str(path)), tmp_path)
    assert str(caught.value).startswith(f"secret:file:{path}: ")
    assert str(caught.value).endswith(problem)


def test_a_file_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConcertinoError, match="none: No such file or directory"):
        read_secret(SecretReference("file", "none"), tmp_path)


def test_a_file_that_others_can_read_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "token").write_text("hunter2hunter2")
    (tmp_path / "token").chmod(0o644)
    read_secret(SecretReference("file", "token"), tmp_path)
    assert "every user can read" in caplog.text
    assert "hunter2" not in caplog.text


def python(code: str) -> SecretReference:
    return SecretReference("command", f'{sys.executable} -c "{code}"')


def test_the_output_of_a_command_is_the_secret(tmp_path: Path) -> None:
    assert read_secret(python("import os; print(os.path.basename(os.getcwd()))"), tmp_path) == (
        tmp_path.name
    )


def test_a_command_is_not_for_a_shell(tmp_path: Path) -> None:
    assert read_secret(SecretReference("command", "echo a;b $HOME"), tmp_path) == "a;b $HOME"


def test_a_command_gets_no_input(tmp_path: Path) -> None:
    assert read_secret(python("import sys; print(repr(sys.stdin.read()))"), tmp_path) == "''"


def test_a_command_that_fails_says_why_but_not_what_it_printed(tmp_path: Path) -> None:
    code = "import sys; print('half-a-secret'); sys.exit('not signed in')"
    with pytest.raises(ConcertinoError) as caught:
        read_secret(python(code), tmp_path)
    assert str(caught.value).endswith("failed with exit code 1: not signed in")
    assert not str(caught.value).endswith("half-a-secret")


def test_a_command_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConcertinoError, match="no-such-program: No such file or directory"):
        read_secret(SecretReference("command", "no-such-program x"), tmp_path)


def test_a_command_that_does_not_end_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret_sources, "COMMAND_S", 0.2)
    # The grandchild holds stdout open: only the end of the whole group ends the wait.
    with pytest.raises(ConcertinoError, match=r"sh did not end within 0\.2 s"):
        read_secret(SecretReference("command", "sh -c 'sleep 1000 & wait'"), tmp_path)


def test_a_command_that_prints_without_end_is_killed_at_the_limit(tmp_path: Path) -> None:
    # Nobody waits for COMMAND_S, and nothing collects the output until then.
    code = f"echo $$ > {tmp_path}/pid; exec yes"
    with pytest.raises(ConcertinoError, match="expected at most 65536 bytes"):
        read_secret(SecretReference("command", f"sh -c '{code}'"), tmp_path)
    wait_for_end(int((tmp_path / "pid").read_text()))


def test_of_what_a_command_writes_to_stderr_only_the_end_is_kept(tmp_path: Path) -> None:
    code = "import sys; sys.stderr.write('x' * 9_000_000 + 'not signed in'); sys.exit(1)"
    with pytest.raises(ConcertinoError, match=r"not signed in$"):
        read_secret(python(code), tmp_path)


@contextmanager
def proxy_that_reads_a_secret(script: str, folder: Path) -> Generator[subprocess.Popen[bytes]]:
    """Serve a file whose only server needs the secret that a shell script prints.

    script: the script, which gets the path of a FIFO as $1.
    """
    os.mkfifo(folder / "pids")
    (folder / "print-secret").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "print-secret").chmod(0o700)
    secret = f"secret:command:{folder}/print-secret {folder}/pids"
    # No program is started for a server at an address, only the command of the secret.
    entry = {"url": "http://127.0.0.1:9/", "headers": {"A": secret}}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"one": entry}}))
    words = [sys.executable, "-m", "concertino", "serve", str(folder / "mcp.json"), "--trust"]
    environment = {**os.environ, "XDG_STATE_HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
    with subprocess.Popen(words, stdin=subprocess.PIPE, env=environment) as process:
        assert process.stdin is not None
        # The servers are started for the first client.
        process.stdin.write(json.dumps(INITIALIZE).encode() + b"\n")
        process.stdin.flush()
        yield process


def test_a_command_that_runs_ends_with_the_process_that_waits_for_it(tmp_path: Path) -> None:
    with proxy_that_reads_a_secret("echo $$ > $1; sleep 1000", tmp_path):
        command = int((tmp_path / "pids").read_text())
    wait_for_end(command)


@linux
def test_a_command_that_runs_ends_when_the_proxy_is_killed(tmp_path: Path) -> None:
    script = "sleep 1000 & echo $$ $! > $1; wait"
    with proxy_that_reads_a_secret(script, tmp_path) as proxy:
        pids = (tmp_path / "pids").read_text().split()
        proxy.kill()
    for pid in pids:
        wait_for_end(int(pid))


@linux
def test_an_agent_that_a_command_has_started_does_not_belong_to_the_proxy(tmp_path: Path) -> None:
    # Such as gpg-agent, which the first call of gpg starts for all later ones.
    script = "setsid sleep 1000 >/dev/null 2>&1 & echo $!"
    agent = int(read_secret(SecretReference("command", f"sh -c '{script}'"), tmp_path))
    try:
        own = new_mark()
        assert agent not in {pid for pid, _ in find_marked(own.owner_suffix, own.started_at)}
        assert marks_of(agent) == []
    finally:
        os.kill(agent, signal.SIGKILL)


@pytest.fixture
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "config" / "concertino" / "secrets"
    folder.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return folder


def test_a_name_is_looked_up_in_the_users_folder(configuration: Path) -> None:
    (configuration / "github").write_text("from-the-folder")
    (configuration / "github").chmod(0o600)
    assert read_secret(parse_secret("github"), configuration) == "from-the-folder"


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has a keyring of its own")
def test_a_name_is_looked_up_in_the_keyring(
    configuration: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "secret-tool"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert read_secret(parse_secret("github"), configuration) == (
        "lookup service concertino username github"
    )


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has a keyring of its own")
def test_a_name_that_is_nowhere_says_where_it_was_looked_for(
    configuration: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConcertinoError) as caught:
        read_secret(parse_secret("github"), configuration)
    assert str(caught.value) == (
        f"secret:github: there is no file {configuration}/github, and no program that reads a "
        "keyring (secret-tool, keyring); write the secret to the file, or install one of the "
        "programs"
    )
