"""Kill hosts, proxies, servers and wrappers a thousand times, and check what is left and what came.

    python soak/proxy_kills.py [--rounds 1000] [--at-once 4] [--within 2] [--seed N] [--for S]

Problems are printed when they are found. With `--for`, no round begins later than S seconds after
the start; the last line says how many were run.

A round starts a host, `concertino proxy` and a server behind a wrapper: none, `sh -c`, `npx -c` or
`uv run`, as far as they are installed. While calls are on their way, one of them gets SIGKILL. Half
of the servers ignore the end of their input and SIGTERM, and have a child in a session of its own
that does so, too. Then:

- No process of the round is left, `--within` seconds after a host or proxy was killed, or after the
  end of a proxy whose input has ended.
- Each call to a killed server or wrapper has exactly one response, and each answer that the server
  has written arrives. No call is done twice. The next call is answered.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from concertino.transports.process_table import (
    live_processes,
    program_name,
    read_environment,
    read_process_state,
)

VARIABLE = "CONCERTINO_SOAK_KILLS"
CALLS = 20
# Ends a round that hangs, which is a finding.
PATIENCE_S = 60.0
VICTIMS = ("host", "proxy", "server", "wrapper")

# Starts the proxy and copies its stdin and stdout, as a host does that shows messages.
HOST = """
import os, subprocess, sys, threading
proxy = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def copy(reading, writing):
    while chunk := os.read(reading, 65536):
        while chunk:
            chunk = chunk[os.write(writing, chunk):]
    os.close(writing)
threading.Thread(target=copy, args=(0, proxy.stdin.fileno()), daemon=True).start()
copy(proxy.stdout.fileno(), 1)
proxy.wait()
"""
# Notes in a file what it does, with one write each, before and after each answer.
SERVER = """
import json, os, signal, sys, time
log = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
def note(text):
    os.write(log, (text + "\\n").encode())
stubborn = sys.argv[2] == "stubborn"
if stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if not os.fork():
        os.setsid()
        time.sleep(600)
note(f"start {os.getpid()}")
for line in sys.stdin:
    message = json.loads(line)
    method, id = message["method"], message.get("id")
    result = {}
    if method == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                  "serverInfo": {"name": "killed", "version": "1"}}
    elif method == "tools/call":
        number = message["params"]["arguments"]["number"]
        note(f"read {number}")
        result = {"content": [{"type": "text", "text": str(number)}]}
    elif id is None:
        continue
    elif method == "server/discover":
        answer = {"error": {"code": -32601, "message": "method not found"}}
        os.write(1, (json.dumps({"jsonrpc": "2.0", "id": id, **answer}) + "\\n").encode())
        continue
    os.write(1, (json.dumps({"jsonrpc": "2.0", "id": id, "result": result}) + "\\n").encode())
    if method == "tools/call":
        note(f"wrote {number}")
if stubborn:
    time.sleep(600)
"""


def wrappers() -> dict[str, Callable[[list[str]], list[str]]]:
    """Return the wrappers that are installed, by name: functions from a command to a command."""
    found: dict[str, Callable[[list[str]], list[str]]] = {
        "no wrapper": lambda command: command,
        "sh": lambda command: ["sh", "-c", f"{shlex.join(command)}; true"],
    }
    if npx := shutil.which("npx"):
        found["npx"] = lambda command: [npx, "--offline", "-c", shlex.join(command)]
    if uv := shutil.which("uv"):
        found["uv"] = lambda command: [uv, "run", "--no-project", "--offline", *command]
    return found


class Round:
    """One host with a proxy and a server. name: the value of VARIABLE in all their environments."""

    def __init__(self, name: str, server: list[str], log: Path) -> None:
        self.name = name
        self.log = log
        self.responses: list[dict[str, Any]] = []
        self._came = threading.Condition()
        self._ended = False
        env = os.environ | {VARIABLE: name, "LOG_LEVEL": "warning"}
        proxy = [sys.executable, "-m", "concertino", "proxy", "--era", "legacy"]
        proxy += ["--env", f"{VARIABLE}={name}", "--", *server]
        self.host = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", HOST, *proxy],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.host.stdout is not None
        for line in self.host.stdout:
            with self._came:
                self.responses.append(json.loads(line))
                self._came.notify_all()
        with self._came:
            self._ended = True
            self._came.notify_all()

    def send(self, **message: Any) -> None:
        assert self.host.stdin is not None
        self.host.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.host.stdin.flush()

    def call(self, number: int) -> None:
        params = {"name": "number", "arguments": {"number": number}}
        self.send(id=number, method="tools/call", params=params)

    def wait_for(self, ids: set[int]) -> set[int]:
        """Wait for the responses to all of these requests. Returns those that did not come."""

        def is_over() -> bool:
            return self._ended or ids <= {item.get("id") for item in self.responses}

        with self._came:
            self._came.wait_for(is_over, PATIENCE_S)
            return ids - {item.get("id") for item in self.responses}

    def open(self) -> bool:
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "soak", "version": "1"},
        }
        self.send(id=0, method="initialize", params=params)
        if self.wait_for({0}):
            return False
        self.send(method="notifications/initialized")
        self.call(1)
        return not self.wait_for({1})

    def notes(self, kind: str) -> list[int]:
        """Return the numbers that the server has noted for one kind of event."""
        words = [line.split() for line in self.log.read_text().splitlines()]
        return [int(number) for word, number in words if word == kind]

    def victim(self, kind: str) -> int:
        """Return the id of the process to kill."""
        if kind == "host":
            return self.host.pid
        server = self.notes("start")[-1]
        if kind == "server":
            return server
        chain = [server]
        while chain[-1] != self.host.pid:
            state = read_process_state(chain[-1])
            assert state is not None, f"process {chain[-1]} has ended before it was killed"
            chain.append(state.parent)
        # The last is the host, before it the proxy, and before that the child of the proxy.
        return chain[-2] if kind == "proxy" else chain[-3]

    def left(self) -> list[int]:
        """Return the ids of the processes of this round that have not ended."""
        mark = f"{VARIABLE}={self.name}\0".encode()
        return [pid for pid, _ in live_processes() if mark in (read_environment(pid) or b"")]

    def wait_for_end(self, within_s: float) -> str:
        """Wait until nothing is left. Returns what is, after the time limit.

        Then waits on, to tell processes that end late, as on a busy machine, from those that stay.
        """
        began = time.monotonic()
        late = ""
        while left := self.left():
            waited_s = time.monotonic() - began
            if waited_s > within_s and not late:
                names = ", ".join(f"{program_name(pid)} ({pid})" for pid in left)
                late = f"left after {within_s:g} s: {names}"
            if waited_s > within_s + PATIENCE_S:
                return f"{late}; STILL THERE after {waited_s:.0f} s"
            time.sleep(0.02)
        return late and f"{late}; gone after {time.monotonic() - began:.1f} s"

    def close_input(self) -> None:
        assert self.host.stdin is not None
        try:
            self.host.stdin.close()
        except BrokenPipeError:
            pass

    def clean_up(self) -> None:
        for pid in self.left():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.close_input()
        self.host.wait()
        # All that had the pipe open have ended.
        self._reader.join()
        assert self.host.stdout is not None
        self.host.stdout.close()


def check_answers(one: Round) -> str:
    """Return what is wrong with the answers of a server that was killed, or an empty string."""
    expected = set(range(2, CALLS + 2))
    if missing := one.wait_for(expected):
        return f"no response to {sorted(missing)}"
    if problem := check_next_call(one):
        return problem
    many = [
        id for id, times in Counter(item.get("id") for item in one.responses).items() if times > 1
    ]
    if many:
        return f"more than one response to {many}"
    results = {item["id"]: item["result"] for item in one.responses if "result" in item}
    for number in expected & results.keys():
        if results[number]["content"][0]["text"] != str(number):
            return f"the response to {number} is {results[number]}"
    if lost := set(one.notes("wrote")) - results.keys():
        return f"written by the server, and lost: {sorted(lost)}"
    twice = [number for number, times in Counter(one.notes("read")).items() if times > 1]
    return f"done twice: {twice}" if twice else ""


def check_next_call(one: Round) -> str:
    """Return what is wrong with the calls after the kill, or an empty string.

    The first one may have been read by a server whose wrapper was killed, and which ends with it.
    """
    response: dict[str, Any] = {}
    for id in (CALLS + 2, CALLS + 3):
        one.call(id)
        if one.wait_for({id}):
            return f"call {id} has no response"
        response = next(item for item in one.responses if item.get("id") == id)
        if "result" in response:
            return ""
    return f"the next calls fail: {response}"


def run_round(
    name: str,
    dice: random.Random,
    wrapper: Callable[[list[str]], list[str]],
    victim: str,
    folder: Path,
    within_s: float,
) -> str:
    """Run one round. Returns what was wrong, or an empty string."""
    log = folder / f"{name}.log"
    log.touch()
    kind = dice.choice(("stubborn", "plain"))
    delay_s = dice.uniform(0, 0.004)
    server = wrapper([sys.executable, "-I", "-S", "-c", SERVER, str(log), kind])
    one = Round(name, server, log)
    try:
        if not one.open():
            return "the server did not start"
        pid = one.victim(victim)
        for number in range(2, CALLS + 2):
            one.call(number)
            if number == CALLS // 2:
                time.sleep(delay_s)
                os.kill(pid, signal.SIGKILL)
                if victim in ("host", "proxy"):
                    break
        if victim in ("host", "proxy"):
            return one.wait_for_end(within_s)
        if problem := check_answers(one):
            return problem
        one.close_input()
        one.host.wait(PATIENCE_S)
        return one.wait_for_end(within_s)
    except Exception as exc:
        return f"{type(exc).__name__}: {exc}"
    finally:
        one.clean_up()
        log.unlink()


def run(rounds: int, at_once: int, within_s: float, seed: int, for_s: float) -> tuple[int, int]:
    """Run many rounds, and print what was wrong. Returns how many were run, and how many failed."""
    dice = random.Random(seed)
    kinds = wrappers()
    until = time.monotonic() + for_s
    done = wrong = 0

    def run_one(number: int, own: random.Random) -> str | None:
        """Run a round, and return what was wrong; None if it is too late for a round."""
        if time.monotonic() > until:
            return None
        wrapper = list(kinds)[number // len(VICTIMS) % len(kinds)]
        victim = VICTIMS[number % len(VICTIMS)]
        name = f"{os.getpid()}-{number}"
        problem = run_round(name, own, kinds[wrapper], victim, Path(folder), within_s)
        return problem and f"round {number}, {victim} killed, {wrapper}: {problem}"

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(at_once) as pool:
        pending = [
            pool.submit(run_one, number, random.Random(dice.random())) for number in range(rounds)
        ]
        for work in pending:
            problem = work.result()
            done += problem is not None
            if problem:
                wrong += 1
                sys.stdout.write(f"{problem}\n")
                sys.stdout.flush()
    return done, wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--within", type=float, default=2.0, help="seconds until nothing is left")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--for", type=float, default=math.inf, dest="for_s", metavar="S")
    args = parser.parse_args()
    began = time.monotonic()
    done, wrong = run(args.rounds, args.at_once, args.within, args.seed, args.for_s)
    took_s = time.monotonic() - began
    sys.stdout.write(f"{done} rounds in {took_s:.0f} s ({', '.join(wrappers())}): {wrong} wrong\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
