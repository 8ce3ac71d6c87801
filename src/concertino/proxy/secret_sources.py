"""Reads the secrets that a server file refers to: from a keyring, a file, or a command.

    secret:NAME              $XDG_CONFIG_HOME/concertino/secrets/NAME, or the user's keyring
    secret:file:PATH         the content of a file
    secret:command:WORDS     the output of a command, which is started without a shell

The values are put into the environment of a server or into headers, never into arguments or logs.
"""

from __future__ import annotations

import logging
import os
import selectors
import shlex
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shutil import which
from typing import Literal, cast

from msgspec import Struct

from concertino.errors import ConcertinoError
from concertino.logs.redact import learn_secrets, redactor
from concertino.transports.guardian import Guardian
from concertino.transports.process_groups import add_process_group, remove_process_group
from concertino.user_files import user_folder

__all__ = ["SECRET", "SecretReference", "parse_secret", "read_secret"]

log = logging.getLogger("concertino.proxy")

# The beginning of a reference to a secret.
SECRET = "secret:"
SecretKind = Literal["name", "file", "command"]
# The largest secret, in bytes. Keys and tokens are shorter; a larger file is a wrong file.
MAX_BYTES = 2**16
# The limit for a command, in seconds: a long time, because some commands ask for a fingerprint.
COMMAND_S = 60.0
# The environment variable with the mark of a command, by which a guardian finds the command and the
# processes that it has started. With STARTED_BY (process_marks.py), agents that a command leaves
# behind, such as gpg-agent, would end with this process, but they also serve other programs.
MARK_VARIABLE = "CONCERTINO_SECRET_COMMAND"
# The name of the service to which the secrets belong in a keyring.
SERVICE = "concertino"
# Programs that read a keyring -> their arguments before the name of the secret.
KEYRINGS: Mapping[str, Sequence[str]] = {
    "secret-tool": ("lookup", "service", SERVICE, "username"),
    "keyring": ("get", SERVICE),
}
MAC_KEYRING = ("security", "find-generic-password", "-w", "-s", SERVICE, "-a")


class SecretReference(Struct, frozen=True):
    """A reference to a secret: where it is stored, and not the secret itself.

    kind: "name" for `secret:NAME`, "file" for `secret:file:PATH`, "command" for
        `secret:command:WORDS`.
    text: the name, the path or the command. str(reference) returns the whole reference.
    """

    kind: SecretKind
    text: str

    def __str__(self) -> str:
        if self.kind == "name":
            return f"{SECRET}{self.text}"
        return f"{SECRET}{self.kind}:{self.text}"


def parse_secret(text: str) -> SecretReference:
    """Parse a reference to a secret.

    text: what follows `secret:`: `NAME`, `file:PATH` or `command:WORDS`.
    Raises ValueError for any other text. Its message names the forms that are expected.
    """
    kind, colon, rest = text.partition(":")
    if colon and kind in ("file", "command"):
        if not rest.strip():
            raise ValueError(f"expected secret:{kind}:..., got nothing after the last colon")
        if kind == "command":
            # Raises ValueError if a closing quote is missing.
            shlex.split(rest)
        return SecretReference(cast("SecretKind", kind), rest.strip())
    is_name = all(letter.isalnum() or letter in "_.-" for letter in text)
    if not text or not is_name:
        raise ValueError(
            "expected secret:NAME with letters, digits, '_', '.' and '-', secret:file:PATH or "
            "secret:command:WORDS"
        )
    if text.startswith("."):
        raise ValueError("expected the name of a secret to begin with a letter or digit")
    return SecretReference("name", text)


def read_secret(reference: SecretReference, folder: Path) -> str:
    """Return a secret without the newline at its end, and hide it in logs from now on.

    Blocks while a command runs, at most a minute.
    folder: the directory for relative paths, in which commands also run.
    Raises ConcertinoError if there is no such secret, or if it cannot be read, is empty or too
    large. The text says where the secret was searched for.
    """
    if reference.kind == "command":
        value = _run(shlex.split(reference.text), folder, str(reference))
    elif reference.kind == "file":
        value = _read_file(folder / Path(reference.text).expanduser(), str(reference))
    else:
        value = _read_named(reference.text, folder)
    value = value.removesuffix("\n").removesuffix("\r")
    if not value or "\0" in value:
        problem = "it is empty" if not value else "it contains a NUL character"
        raise ConcertinoError(f"{reference}: {problem}")
    learn_secrets((value,))
    return value


def secrets_folder(environment: Mapping[str, str]) -> Path:
    """Return the directory with a file for each `secret:NAME`: $XDG_CONFIG_HOME/concertino/secrets.

    The default of the variable is ~/.config.
    environment: the environment variables.
    """
    return user_folder("XDG_CONFIG_HOME", ".config", environment) / "concertino" / "secrets"


def _read_named(name: str, folder: Path) -> str:
    """Return the secret `secret:NAME`: from the user's directory of secrets, or a keyring."""
    path = secrets_folder(os.environ) / name
    label = f"{SECRET}{name}"
    if path.exists():
        return _read_file(path, label)
    if sys.platform == "darwin":
        return _run((*MAC_KEYRING, name), folder, label)
    for program, words in KEYRINGS.items():
        if which(program) is not None:
            return _run((program, *words, name), folder, label)
    raise ConcertinoError(
        f"{label}: there is no file {path}, and no program that reads a keyring "
        f"({', '.join(KEYRINGS)}); write the secret to the file, or install one of the programs"
    )


def _read_file(path: Path, label: str) -> str:
    """Return the content of a file. label: the reference to the secret, for errors."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(MAX_BYTES + 1)
    except OSError as exc:
        raise ConcertinoError(f"{label}: {path}: {exc.strerror}") from None
    if mode & stat.S_IWOTH:
        raise ConcertinoError(f"{label}: {path}: every user can write this file")
    # In /run/secrets, Docker makes every file readable for all users of the container.
    if mode & stat.S_IROTH and not path.is_relative_to("/run/secrets"):
        log.warning("%s: every user can read %s; chmod 600 hides it", label, path)
    return _decode(data, label)


def _run(
    command: Sequence[str],
    folder: Path,
    label: str,
) -> str:
    """Return the output of a command. No error message quotes the output."""
    mark = os.urandom(12).hex()
    # If this process is killed while the command runs, the guardian ends the command.
    guardian = Guardian(mark)
    guardian.acquire()
    try:
        return _run_marked(command, folder, label, mark)
    finally:
        guardian.release()


def _run_marked(
    command: Sequence[str],
    folder: Path,
    label: str,
    mark: str,
) -> str:
    """Run a command with a mark in its environment, and return its output."""
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | {MARK_VARIABLE: mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # This lets _kill() kill all processes of the command together.
            start_new_session=True,
        )
    except OSError as exc:
        raise ConcertinoError(f"{label}: {command[0]}: {exc.strerror}") from None
    until = time.monotonic() + COMMAND_S
    # If this process ends before the command, the command is killed, too.
    add_process_group(process.pid)
    with process:
        try:
            try:
                out, err = _read_output(process, until)
            finally:
                # Before wait(), after which the system may give the id to another process.
                remove_process_group(process.pid)
            if len(out) > MAX_BYTES:
                # Then the exit code means nothing, and _decode() raises the error.
                _kill(process)
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            _kill(process)
            raise ConcertinoError(
                f"{label}: {command[0]} did not end within {COMMAND_S:g} s"
            ) from None
    if process.returncode != 0 and len(out) <= MAX_BYTES:
        # The end of stderr says most about the failure. Known secrets in it are hidden.
        reason = redactor().text(err.decode("utf-8", "replace").strip()[-200:])
        text = f"{label}: {command[0]} failed with exit code {process.returncode}"
        raise ConcertinoError(f"{text}: {reason}" if reason else text)
    return _decode(out, label)


def _read_output(process: subprocess.Popen[bytes], until: float) -> tuple[bytes, bytes]:
    """Return the stdout and the end of the stderr of a command, when both are closed.

    Returns early when stdout exceeds MAX_BYTES. At most MAX_BYTES of stderr are kept.
    until: the time limit, by time.monotonic(). Raises TimeoutExpired after it.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, out)
        selector.register(process.stderr, selectors.EVENT_READ, err)
        while selector.get_map() and len(out) <= MAX_BYTES:
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise subprocess.TimeoutExpired(process.args, COMMAND_S)
            for key, _ in selector.select(left_s):
                data = os.read(key.fd, MAX_BYTES)
                key.data.extend(data)
                if not data:
                    selector.unregister(key.fileobj)
            del err[:-MAX_BYTES]
    return bytes(out), bytes(err)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a command, and all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _decode(data: bytes, label: str) -> str:
    if len(data) > MAX_BYTES:
        raise ConcertinoError(f"{label}: expected at most {MAX_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ConcertinoError(f"{label}: expected UTF-8") from None
