"""A Go client on our QUIC server: the CPU time of a call, as upstream's programs make it.

    python bench/orchestra_go.py PEER                    64 calls in flight
    python bench/orchestra_go.py PEER --seconds 5 --pinned

PEER is the program in tests/interop/quic_go, built with `go build`. It makes the call of
bench/orchestra.py, `apart`: header, payload and end are three writes and travel apart, as
upstream's; and `whole`: one write. Reported for each: CPU time of both processes for a call, that
of the server alone, and calls a second; and the same for a server in Go. Goal: 600 us for a call
that is written apart, on a machine where bench/orchestra.py takes 360 us for one of 64 in flight.
Needs the extra [orchestra], installed or with PYTHONPATH=src.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestra import IN_FLIGHT

from concertino.orchestra.authority import create_authority, issue
from concertino.orchestra.certificates import Certificates

OURS = Path(__file__).with_name("orchestra.py")


@contextmanager
def serving(peer: str, language: str, certs: Path) -> Iterator[tuple[str, int]]:
    """A server; its address and its process id."""
    command = [sys.executable, str(OURS), "--serve", "127.0.0.1:0", "--certs-dir", str(certs)]
    if language == "go":
        command = [peer, "serve", str(certs), "tools.echo"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if language == "go" else None,
        text=True,
    ) as process:
        output = process.stderr if language == "go" else process.stdout
        assert output is not None
        yield output.readline().split()[-1], process.pid
        process.kill()


def measure(peer: str, language: str, writes: str, seconds: float, certs: Path) -> str:
    with serving(peer, language, certs) as (address, pid):
        # All threads of that process, as clock_getcpuclockid(3) makes it on Linux.
        clock = (~pid << 3) | 2
        command = [peer, "load", str(certs), "bench-client", address, writes, str(IN_FLIGHT)]
        subprocess.run([*command, "0.5"], check=True, capture_output=True)
        before, began = time.clock_gettime(clock), time.perf_counter()
        done = subprocess.run([*command, str(seconds)], check=True, capture_output=True, text=True)
        server = (time.clock_gettime(clock) - before) * 1e6
        taken = time.perf_counter() - began
    count, client = map(int, done.stdout.split())
    return (
        f"{language:8} {writes:7} {(server + client) / count:8.0f} {server / count:9.0f}"
        f" {count / taken:9,.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("peer")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--pinned", action="store_true", help="both processes on one core")
    given = parser.parse_args()
    if given.pinned:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory(prefix="bench") as name:
        certificates = Certificates(Path(name) / "certs")
        create_authority(certificates)
        for item in ("tools.echo", "bench-client"):
            issue(certificates, item)
        print("server   writes    CPU us  server us   calls/s")
        # Not apart to a server in Go: it overlooks an end that comes later, and stands still.
        for language, writes in (("python", "apart"), ("python", "whole"), ("go", "whole")):
            print(measure(given.peer, language, writes, given.seconds, certificates.folder))


if __name__ == "__main__":
    main()
