"""Programs in Go, Rust and Java with the official SDKs, built once into .tools.

    python -m interop.programs

builds all of them. That takes minutes in a fresh clone, longer than one test may take, so
scripts/interop does it before it runs tests. Tests only look for the programs. If one cannot be
built, its tests fail where CI=true and are skipped otherwise; both name the reason.

Go and its modules come from their indexes, and so do the crates and the jars. Maven and a Java
compiler come from the system's packages, if root runs this (tools.py). Rust has to be there:
`cargo` on PATH.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from interop.tools import TOOLS, alone_in, go, not_available, system_program

__all__ = [
    "CLIENT_REPORT",
    "go_client",
    "go_server",
    "java_client",
    "java_server",
    "rust_client",
    "rust_server",
    "rust_stdio_client",
]

SERVERS = Path(__file__).parent / "servers"
BUILD_S = 900
# What the clients in Rust and Java print, as JSON, after their calls to tests/http/
# server_for_http.py; besides the version, the tools, and the error for a missing resource.
CLIENT_REPORT = {
    "server": "http-tests",
    "sums": [str(number) for number in range(1, 21)],
    "large": 500_000,
    "counted": "counted",
    "progress": [1.0, 2.0],
    "asked": "hello Ada",
    "refused": True,
    "note": "a note",
}
# Downloads the jars of a pom.xml, without compiling anything.
COPY_JARS = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"


class Source(NamedTuple):
    """The sources of some programs.

    name: the folder of the sources in SERVERS, and the folder of the programs in .tools.
    find_commands: returns the commands that build the programs, each with {folder} for the latter.
    """

    name: str
    find_commands: Callable[[], Sequence[Sequence[str]]]

    @property
    def digest(self) -> str:
        """The checksum of the sources."""
        files = sorted(path for path in (SERVERS / self.name).rglob("*") if path.is_file())
        return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _go_commands() -> Sequence[Sequence[str]]:
    flags = ["-mod=readonly", "-buildvcs=false"]
    return [
        [go(), "build", *flags, "-o", "{folder}/server", "."],
        [go(), "build", *flags, "-o", "{folder}/client", "./client"],
    ]


def _rust_commands() -> Sequence[Sequence[str]]:
    cargo = shutil.which("cargo") or not_available("cargo is not on PATH")
    return [[cargo, "build", "--quiet", "--locked", "--target-dir", "{folder}"]]


def _java_commands() -> Sequence[Sequence[str]]:
    javac = system_program("javac", package="default-jdk-headless")
    maven = system_program("mvn", package="maven")
    return [
        [maven, "--quiet", "--batch-mode", COPY_JARS, "-DoutputDirectory={folder}/jars"],
        [javac, "-nowarn", "-cp", "{folder}/jars/*", "-d", "{folder}", "Client.java"],
        [javac, "-nowarn", "-cp", "{folder}/jars/*", "-d", "{folder}", "Server.java"],
    ]


GO = Source("go_sdk", _go_commands)
RUST = Source("rmcp", _rust_commands)
JAVA = Source("java_sdk", _java_commands)


def go_server() -> Path:
    """Return the echo server of the Go SDK."""
    return _find(GO) / "server"


def go_client() -> Path:
    """Return the client of the Go SDK, which starts a server and lists its tools."""
    return _find(GO) / "client"


def rust_server() -> Path:
    """Return the echo server of rmcp, for stdio and HTTP."""
    return _find(RUST) / "debug" / "echo"


def rust_client() -> Path:
    """Return the client of rmcp, which talks to tests/http/server_for_http.py."""
    return _find(RUST) / "debug" / "client"


def rust_stdio_client() -> Path:
    """Return the client of rmcp that starts a server and lists its tools."""
    return _find(RUST) / "debug" / "stdio_client"


def java_server() -> list[str | Path]:
    """Return the command of the Java SDK's echo server, which speaks HTTP."""
    return _java("Server")


def java_client() -> list[str | Path]:
    """Return the command of the Java SDK's client, which talks to tests/http/server_for_http.py."""
    return _java("Client")


def _java(program: str) -> list[str | Path]:
    folder = _find(JAVA)
    return [system_program("java"), "-cp", f"{folder}:{folder}/jars/*", program]


def _find(source: Source) -> Path:
    """Return the folder with the programs of a source, or end the test with the reason."""
    folder = TOOLS / source.name
    if _read(folder / "complete") != source.digest:
        reason = _read(folder / "failure") or "run `PYTHONPATH=tests python -m interop.programs`"
        not_available(f"the programs of {source.name} are not built: {reason}")
    return folder


def _read(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def _build(source: Source) -> str:
    """Build the programs of a source if necessary. Return the reason if that fails, else ""."""
    with alone_in(source.name) as folder:
        if _read(folder / "complete") == source.digest:
            return ""
        (folder / "complete").unlink(missing_ok=True)
        try:
            for command in source.find_commands():
                subprocess.run(
                    [word.replace("{folder}", str(folder)) for word in command],
                    cwd=SERVERS / source.name,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=BUILD_S,
                    check=True,
                )
        except (pytest.fail.Exception, pytest.skip.Exception) as exc:
            failure = str(exc)
        except subprocess.TimeoutExpired:
            failure = f"the build takes longer than {BUILD_S} s"
        except subprocess.CalledProcessError as exc:
            failure = f"{' '.join(exc.cmd)} ended with {exc.returncode}: {exc.output[-1500:]}"
        else:
            (folder / "failure").unlink(missing_ok=True)
            (folder / "complete").write_text(source.digest)
            return ""
        (folder / "failure").write_text(failure)
        return failure


def _report(source: Source) -> bool:
    """Build the programs of a source, print how that went, and return whether they are there."""
    start = time.monotonic()
    failure = _build(source)
    outcome = f"NOT BUILT: {failure}" if failure else "ok"
    print(f"    {source.name}: {outcome}, {time.monotonic() - start:.0f} s", flush=True)
    return not failure


def main() -> int:
    """Build all programs, side by side. 1 if one fails where CI=true, else 0."""
    # Downloads and compilers take turns well: the first wait, the second compute.
    with ThreadPoolExecutor() as pool:
        built = list(pool.map(_report, (RUST, JAVA, GO)))
    return 0 if all(built) or os.environ.get("CI") != "true" else 1


if __name__ == "__main__":
    sys.exit(main())
