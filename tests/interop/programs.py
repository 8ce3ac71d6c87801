"""Servers in Go and Rust with the official SDKs, built once into .tools.

Go and its modules come from their indexes, see tools.py. Rust has to be there: `cargo` on PATH.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from interop.tools import alone_in, go, not_available

__all__ = ["go_server", "rust_server"]

SERVERS = Path(__file__).parent / "servers"
BUILD_S = 600


def go_server() -> Path:
    """Return the echo server of the Go SDK."""
    environment = {"GOFLAGS": "-mod=readonly -buildvcs=false"}
    return _build("go_sdk", [go(), "build", "-o", "{folder}/server", "."], environment, "server")


def rust_server() -> Path:
    """Return the echo server of rmcp."""
    cargo = shutil.which("cargo") or not_available("cargo is not on PATH")
    command = [cargo, "build", "--quiet", "--locked", "--target-dir", "{folder}"]
    return _build("rmcp", command, {}, "debug/echo")


def _build(
    name: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    program: str,
) -> Path:
    """Build the server in a folder of SERVERS. command: with {folder} for where to put it."""
    source = SERVERS / name
    files = sorted(path for path in source.rglob("*") if path.is_file())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]
    with alone_in(f"{name}-{digest}") as folder:
        built = folder / program
        if not built.exists():
            done = subprocess.run(
                [word.replace("{folder}", str(folder)) for word in command],
                cwd=source,
                env={**os.environ, **environment},
                capture_output=True,
                text=True,
                timeout=BUILD_S,
                check=False,
            )
            if done.returncode:
                not_available(f"the server of {name} cannot be built: {done.stderr[-1500:]}")
    return built
