"""What guards cost: instructions of the server process for each call of a small echo, counted by
valgrind.

python bench/guards.py [--only NAME,...] [--calls N] [--text-bytes N] [--json FILE]

Instructions and not time, so that it can be run on a busy machine: two runs differ by less than 1
%. Calls come in batches of 64, where one is cheapest and a guard weighs most; one after the other a
call takes half as many instructions again, but their number varies with the machine's load by more
than a guard. The kernel's share is in neither. The text has 100 bytes, as in run.py: one of five is
shorter than any secret, so that nobody searches it. Needs valgrind.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
SERVER = """
from concertino import Guard, run, Server

server = Server("echo")


@server.tool
async def echo(text: str) -> str:
    return text


run({backend})
"""
RATE, FLIGHT, TIME = "rate_limit='1000000/60'", "max_in_flight=100", "timeout_s=30"
SIZE, CHOICE, SECRETS = "max_result_bytes=100_000_000", "deny='x*'", "redact=True"
VARIANTS = {
    "none": "server",
    "allow, deny": f"Guard(server, {CHOICE})",
    "rate": f"Guard(server, {RATE})",
    "in flight": f"Guard(server, {FLIGHT})",
    "time": f"Guard(server, {TIME})",
    "size": f"Guard(server, {SIZE})",
    "redact": f"Guard(server, {SECRETS})",
    "limits": f"Guard(server, {RATE}, {FLIGHT}, {TIME})",
    "all": f"Guard(server, {RATE}, {FLIGHT}, {TIME}, {SIZE}, {CHOICE}, {SECRETS})",
}
# As many secrets as a developer's environment has.
ENVIRONMENT = {
    f"{name}_TOKEN": f"secret-of-{name.lower()}-0123456789"
    for name in ("GITHUB", "NPM", "OPENAI", "DEPLOY")
}
AT_ONCE = 64
FEWEST = 200  # calls of the shorter of two runs: what lies between them is calls alone


def main() -> int:
    options = parse_arguments()
    if shutil.which("valgrind") is None:
        print("the benchmark counts with valgrind, which is not installed", file=sys.stderr)
        return 2
    names = [name for name in options.only.split(";") if name] or list(VARIANTS)
    if "none" not in names:
        names.insert(0, "none")
    results: dict[str, float] = {}
    print("| guards | instructions a call | more |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            results[name] = count = per_call(Path(folder), VARIANTS[name], options)
            print(
                f"| {name} | {count:,.0f} | {(count / results['none'] - 1) * 100:+.1f} % |",
                flush=True,
            )
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1) + "\n")
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="NAME;...", help=f"of: {'; '.join(VARIANTS)}")
    parser.add_argument("--calls", type=int, default=3200, metavar="N", help="that are counted")
    parser.add_argument(
        "--text-bytes", type=int, default=100, metavar="N", help="of the text that is echoed"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures there, too")
    return parser.parse_args()


def per_call(folder: Path, backend: str, options: argparse.Namespace) -> float:
    """Instructions for one more call."""
    script = folder / "server.py"
    script.write_text(SERVER.format(backend=backend))
    instructions(script, 1, "")  # compiles what it imports
    fewer, more = (
        instructions(script, calls, prose(options.text_bytes))
        for calls in (FEWEST, FEWEST + options.calls)
    )
    return (more - fewer) / options.calls


def prose(length: int) -> str:
    """Words, as texts have them: to search one letter a hundred times for another text takes three
    times as long.
    """
    words = "the quick brown fox jumps over a lazy dog, while five wizards mix the jugs up again; "
    return (words * (length // len(words) + 1))[:length]


def instructions(script: Path, calls: int, text: str) -> int:
    """Of a whole life of the server with so many calls."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(SOURCE),
        "PYTHONHASHSEED": "0",
        **ENVIRONMENT,
    }
    environment["PYTHONPYCACHEPREFIX"] = str(script.parent)
    command = [
        "valgrind",
        "--tool=callgrind",
        "--callgrind-out-file=/dev/null",
        sys.executable,
        str(script),
    ]
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stderr is not None
        opening = {"protocolVersion": "2025-11-25", "capabilities": {}}
        server.stdin.write(frame(0, "initialize", opening))
        server.stdin.flush()
        server.stdout.readline()
        for first in range(1, calls + 1, AT_ONCE):
            ids = range(first, min(first + AT_ONCE, calls + 1))
            server.stdin.write(
                b"".join(
                    frame(id, "tools/call", {"name": "echo", "arguments": {"text": text}})
                    for id in ids
                )
            )
            server.stdin.flush()
            for id in ids:
                answer = json.loads(server.stdout.readline())
                if answer["id"] != id or answer["result"]["content"][0]["text"] != text:
                    raise AssertionError(f"another answer than was expected: {str(answer)[:200]}")
        server.stdin.close()
        said = server.stderr.read().decode()
    counted = re.search(r"Collected : (\d+)", said)
    if counted is None:
        raise AssertionError(f"valgrind counted nothing: {said[-500:]}")
    return int(counted[1])


def frame(id: int, method: str, params: object) -> bytes:
    return (
        json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode()
        + b"\n"
    )


if __name__ == "__main__":
    sys.exit(main())
