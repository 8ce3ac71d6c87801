"""Calls every tool of a folder of Orchestra plugins through a hub, and writes what is answered.

    python upstream_tools.py PROGRAMS ours|theirs FOLDER

PROGRAMS: a folder with upstream's programs. ours: the hub and the bridge of concertino; theirs:
upstream's `orchestrator` and `transport-stdio`. FOLDER: what the plugins work on, their home too.
`FOLDER/tools.json` has the definitions of the tools by name, and is written from the bridge's list
if it is not there. `FOLDER/answers.json` gets the answers, by the name of the call.

Tools write files, start programs and send messages, so this must run as root in namespaces of its
own (network, mount, process ids): test_upstream_tools.py does that. There is no network but the
loopback, and PATH has few programs.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from concertino.orchestra.authority import create_authority
from concertino.orchestra.certificates import Certificates

START_S = 60.0
ANSWER_S = 20.0
HUB = "127.0.0.1:50190"
TCP = "127.0.0.1:50191"
NO_PLUGINS = {
    "echo",
    "orchestrator",
    "transport-quic-bridge",
    "transport-stdio",
    "transport-webtransport",
}
STORAGES = {"storage-markdown": "markdown", "storage-sqlite": "sqlite"}
AI = {"claude", "firecrawl", "gemini", "ollama", "openai"}
# What tools may start.
TOOLS_PATH = ("cat", "echo", "git", "ls", "sh", "sleep", "true")
# The first calls, and the argument that their answer has the value of: other tools need it.
FIRST = {
    "create_project": "",
    "create_person": "person_id",
    "set_current_user": "",
    "create_feature": "feature_id",
    "create_plan": "plan_id",
    "create_request": "request_id",
    "create_hypothesis": "hypothesis_id",
    "create_experiment": "experiment_id",
    "create_discovery_cycle": "cycle_id",
    "create_discovery_review": "review_id",
    "create_assignment_rule": "rule_id",
    "create_test_suite": "suite_id",
    "create_account": "account_id",
    "create_session": "session_id",
    "create_workspace": "workspace_id",
    "create_secret": "secret_id",
    "create_note": "note_id",
    "create_terminal": "terminal_id",
    "define_agent": "agent_id",
    "define_workflow": "workflow_id",
    "db_create_database": "connection_id",
    "db_create_table": "",
    "log_run": "run_id",
}
# Other arguments that take an id.
SAME = {"related_feature": "feature_id", "depends_on_id": "feature_id", "agent": "agent_id"}
# These calls come last, because other tools need what they remove.
LAST = re.compile(r"delete|remove|drop|kill|close|disconnect|abandon|invalidate|logout|stop")
ID = re.compile(
    r"\b(?:[A-Z]{2,5}-[A-Z0-9]{3,4}|(?:note|term|db|run|log|notif)-[0-9a-f]{6,8}"
    r"|[0-9a-f]{8}-[0-9a-f-]{27})\b"
)
# Values of arguments, by tool and name or by name alone. Others are made from their schema.
VALUES: dict[str, Any] = {
    "project_id": "demo",
    "name": "demo",
    "slug": "demo",
    "repo": "",
    "table": "people",
    "column": "name",
    "columns": [{"name": "name", "type": "TEXT"}],
    "query": "SELECT 1 AS one",
    "action": "status",
    "status": "todo",
    "priority": "P1",
    "method": "interview",
    "decision": "continue",
    "start_date": "2026-01-01",
    "end_date": "2026-02-01",
    "auth_method": "api_key",
    "target_type": "agent",
    "role": "developer",
    "email": "ada@example.com",
    "command": "echo hello",
    "url": "http://127.0.0.1:9/",
    "language": "python",
    "content": "# Title\n\nSome *text*, `code` and a [link](a.txt).\n\n- one\n- two\n",
    "markdown": "# Title\n\nSome *text*, `code` and a [link](a.txt).\n\n- one\n- two\n",
    "body": "Some *text*.",
    "framework": "react",
    "branch": "other",
    "driver": "sqlite",
    "provider": "claude",
    "providers": ["claude"],
    "env": "{}",
    "config": "{}",
    "steps": "[]",
    "features": '[{"title": "one", "description": "two"}]',
    "items": "[]",
    "db_create_table.name": "people",
    "db_alter_table.action": "add_column",
    "db_create_index.columns": ["name"],
    "db_create_view.query": "SELECT name FROM people",
    "git_branch.action": "list",
    "git_stash.action": "list",
    "git_tag.action": "list",
    "tag_note.action": "add",
    "notify_config.action": "get",
    "voice_config.action": "get",
    "submit_review.status": "approved",
    "list_sessions.status": "active",
    "update_person.status": "active",
    "respond_permission.decision": "approve",
    "list_directory.path": ".",
    "create_feature.kind": "feature",
    "create_experiment.kind": "survey",
    "create_request.kind": "feature",
    "create_assignment_rule.kind": "feature",
    "db_create_database.path": "data.sqlite",
    "db_connect.dsn": "data.sqlite",
    "write_file.path": "written.txt",
    "move_file.destination": "moved.txt",
    "move_file.source": "b.txt",
    "delete_file.path": "moved.txt",
    "count": 2,
}
WRONG = {"string": [1], "number": "x", "integer": "x", "boolean": "x", "array": "x", "object": "x"}


class Arguments:
    """Makes arguments for tools. ids: the name of an argument -> its value from earlier answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ids: dict[str, str] = {}

    def kinds(self, tool: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the name of each kind of call, and its arguments."""
        schema = tool.get("inputSchema") or {}
        members: dict[str, Any] = schema.get("properties") or {}
        required = set(schema.get("required") or ())
        needed = {name: item for name, item in members.items() if name in required}
        yield "required", {name: self.value(tool["name"], name, needed[name]) for name in needed}
        yield "missing", {}
        yield "wrong", {name: WRONG.get(str(item.get("type"))) for name, item in members.items()}
        if len(needed) < len(members):
            yield "all", {name: self.value(tool["name"], name, members[name]) for name in members}

    def value(self, tool: str, name: str, schema: dict[str, Any]) -> Any:
        known = {**VALUES, **self.ids}
        for key in (f"{tool}.{name}", name, SAME.get(name)):
            if key in known:
                return known[key]
        kind = schema.get("type")
        if "enum" in schema:
            return schema["enum"][0]
        if kind == "array":
            return [self.value(tool, f"{name}[]", schema.get("items") or {"type": "string"})]
        if kind in ("number", "integer"):
            return 1
        if kind in ("boolean", "object"):
            return False if kind == "boolean" else {}
        if re.search("dir|folder|workspace", name):
            return str(self.folder)
        return "a.txt" if re.search("path|file", name) else "x"

    def learn(self, tool: str, text: str) -> None:
        """Take the id from an answer that has one that other tools need."""
        found = ID.search(text)
        if FIRST.get(tool) and found:
            self.ids.setdefault(FIRST[tool], found[0])


class Bridge:
    """An MCP client of a bridge, line by line."""

    def __init__(self, command: list[str], cwd: Path) -> None:
        self._process = subprocess.Popen(
            command,
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(cwd / "bridge.log").open("wb"),
        )
        self._buffer = b""
        self._number = 0

    def write(self, **message: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self._process.stdin.flush()

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the response without its id; `{"timeout": ...}` if it takes too long."""
        assert self._process.stdout is not None
        self._number += 1
        self.write(id=self._number, method=method, params=params)
        until = time.monotonic() + ANSWER_S
        while (left_s := until - time.monotonic()) > 0:
            *lines, self._buffer = self._buffer.split(b"\n")
            for line in map(json.loads, lines):
                if line.get("id") == self._number:
                    return {key: line[key] for key in ("result", "error") if key in line}
            if select.select([self._process.stdout], [], [], left_s)[0]:
                chunk = os.read(self._process.stdout.fileno(), 2**20)
                if not chunk:
                    return {"ended": self._process.wait()}
                self._buffer += chunk
        return {"timeout": ANSWER_S}


def plugins(programs: Path, folder: Path) -> list[dict[str, Any]]:
    """Return the entries of a plugins file: the storages first, because others use them."""
    names = {path.name for path in programs.iterdir() if os.access(path, os.X_OK)} - NO_PLUGINS
    entries: list[dict[str, Any]] = []
    for name in sorted(names, key=lambda name: (name not in STORAGES, name)):
        entry = {"id": name.replace("-", ".", 1), "binary": str(programs / name), "enabled": True}
        if name in STORAGES or name == "tools-marketplace":
            entry["args"] = [f"--workspace={folder}"]
        if name in STORAGES:
            entry["provides_storage"] = [STORAGES[name]]
        kind, _, rest = name.partition("-")
        if kind == "bridge" and rest in AI:
            entry["provides_ai"] = [rest]
        entries.append(entry)
    return entries


def start_hub(programs: Path, side: str, folder: Path) -> Path:
    """Start a hub, and wait until all plugins run. Returns the folder of its certificates."""
    entries = plugins(programs, folder)
    certificates = folder / "certs"
    file = folder / "plugins.yaml"
    # JSON is YAML.
    file.write_text(json.dumps({"tcp_addr": TCP, "plugins": entries}))
    flags = [f"--listen-addr={HUB}", f"--certs-dir={certificates}"]
    if side == "ours":
        create_authority(Certificates(certificates))
        command = [sys.executable, "-m", "concertino", "orchestrate", str(file), *flags]
    else:
        command = [str(programs / "orchestrator"), f"--config={file}", *flags]
    log = folder / "hub.log"
    with log.open("wb") as output:
        subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        text = log.read_text(errors="replace")
        count = text.count("registered with router")
        if f"{len(entries)} of {len(entries)} plugins run" in text or count == len(entries):
            return certificates
        time.sleep(0.05)
    raise TimeoutError(f"the plugins of {side} do not run:\n{text[-3000:]}")


def read_tools(bridge: Bridge, folder: Path) -> dict[str, dict[str, Any]]:
    """Return the definitions of the tools by name: those of tools.json, or the bridge's list.

    Their bridge lists the tools of all plugins in random order, and several have the same name.
    """
    file = folder / "tools.json"
    if not file.exists():
        listed = bridge.ask("tools/list")["result"]["tools"]
        listed.sort(key=lambda tool: json.dumps(tool, sort_keys=True))
        file.write_text(json.dumps({tool["name"]: tool for tool in listed}))
    return json.loads(file.read_text())


def call_all(bridge: Bridge, folder: Path) -> dict[str, dict[str, Any]]:
    """Call every tool in every kind, and return the answers by the name of the call."""
    bridge.ask(
        "initialize",
        protocolVersion="2025-11-25",
        capabilities={},
        clientInfo={"name": "test", "version": "1"},
    )
    bridge.write(method="notifications/initialized")
    tools = read_tools(bridge, folder)
    order = [
        *FIRST,
        *sorted(tools.keys() - FIRST, key=lambda name: (bool(LAST.search(name)), name)),
    ]
    arguments = Arguments(folder)
    answers: dict[str, dict[str, Any]] = {}
    for name in order:
        for kind, given in arguments.kinds(tools[name]):
            answer = bridge.ask("tools/call", name=name, arguments=given)
            arguments.learn(name, json.dumps(answer))
            answers[f"{name}: {kind}"] = answer
    return answers


def main() -> None:
    programs, side, folder = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    with socket.socket() as sock:
        # The loopback interface of a new network namespace is down: SIOCSIFFLAGS, IFF_UP.
        fcntl.ioctl(sock, 0x8914, struct.pack("16sh", b"lo", 1))
    path = folder / "path"
    path.mkdir()
    for name in TOOLS_PATH:
        (path / name).symlink_to(shutil.which(name) or name)
    (folder / "tmp").mkdir()
    os.environ.update(HOME=str(folder), TMPDIR=str(folder / "tmp"), PATH=str(path))
    (folder / ".gitconfig").write_text("[user]\nname = a\nemail = a@example.com\n")
    certificates = start_hub(programs, side, folder)
    flags = [f"--orchestrator-addr={HUB}", f"--certs-dir={certificates}"]
    ours = [sys.executable, "-m", "concertino", "bridge"]
    bridge = ours if side == "ours" else [str(programs / "transport-stdio")]
    answers = call_all(Bridge([*bridge, *flags], folder), folder)
    (folder / "answers.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
