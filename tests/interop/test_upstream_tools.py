"""Every tool of upstream's plugins gives the same answers through our hub and bridge as through
upstream's, call by call, on copies of one folder.

ORCHESTRA_BIN names a folder with upstream's programs; there is nothing to compare without it. Needs
root, because upstream_tools.py runs in namespaces. An answer counts as equal if it is one that two
runs of upstream's programs gave, after NORMALISATIONS.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from interop.test_upstream import SOURCES

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("upstream_tools.py")
RUN_S = 120
# What differs from one run to the next.
NORMALISATIONS = {
    "times": (
        r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|[+-]\d\d:?\d\d)?( UTC)?"
        r"|\b\d\d-\d\d-\d{4}\b|\b\d{2}:\d{2}:\d{2}\b",
        "<time>",
    ),
    "durations": (
        r'\b(\d+\.)?\d+ ?(µs|ms|s)\b|(?<="duration_ms": )\d+|\b\d+ seconds? ago\b',
        "<duration>",
    ),
    "UUIDs": (r"\b[0-9a-f]{8}-[0-9a-f-]{27}", "<uuid>"),
    "ids": (r"\b([A-Z]{2,5})-[A-Z0-9]{3,8}\b", r"\1-<id>"),
    "ids in small letters": (
        r"\b(note|term|db|run|log|notif|proc|agent|wf)-[0-9a-f]{4,12}\b",
        r"\1-<id>",
    ),
    "hashes and numbers of tests": (r"\b[0-9a-f]{7,64}\b", "<hash>"),
    "secrets of OAuth": (r'\b(state|code_challenge)=(\\?"?)[\w%-]+', r"\1=\2<secret>"),
    "process ids": (r"(PID:\*\* |\| (?:finished|running|killed|exited) \| )\d+", r"\1<pid>"),
    "sizes of files, such as logs": (r" *\b\d+(\.\d+)? (B|KB)\b", " <size>"),
}
# These take the first of several things whose ids are random.
RANDOM = {"get_next_feature: required"}
# What upstream's hub cannot do, and ours does: the text of its answer.
MORE = {
    "tools that stream": r'tool "[\w]+" not found',
    "tools of plugins with provides_ai": r'no plugin provides tool "[\w]+"',
}


def normalised(answer: dict[str, Any]) -> str:
    """Return an answer as text that equal answers share, whatever the run.

    Besides NORMALISATIONS: the order of JSON members and items, and of the lines of a text, which
    Go's maps and directories decide; an empty `text` and `isError: false`, which upstream omits;
    and `structuredContent`, which its bridge does not have.
    """
    result = answer.get("result")
    if result is None:
        return replaced(json.dumps(answer, sort_keys=True))
    content: list[Any] = []
    for block in result["content"]:
        text = block.get("text", "")
        try:
            lines: Any = in_order(json.loads(text))
        except ValueError:
            lines = sorted(replaced(text).split("\n"))
        content.append({**block, "text": lines})
    return replaced(json.dumps([content, bool(result.get("isError"))], sort_keys=True))


def in_order(value: Any) -> Any:
    """Return a JSON value with its lists sorted by their items' JSON text."""
    if isinstance(value, dict):
        return {key: in_order(member) for key, member in value.items()}
    if isinstance(value, list):
        items = map(in_order, value)
        return sorted(items, key=lambda item: replaced(json.dumps(item, sort_keys=True)))
    return value


def replaced(text: str) -> str:
    for pattern, replacement in NORMALISATIONS.values():
        text = re.sub(pattern, replacement, text)
    return text


def make_folder(folder: Path) -> None:
    """Make what the plugins work on: a git repository with some files."""
    folder.mkdir()
    files = {"a.txt": "hello\nworld\n", "b.txt": "b\n", "main.py": "def one():\n    return 1\n"}
    for name, text in files.items():
        (folder / name).write_text(text)
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    for words in (["init", "-q", "-b", "main"], ["add", "."], [*identity, "commit", "-qm", "one"]):
        subprocess.run(["git", *words], cwd=folder, check=True)


def answers_of(programs: Path, side: str, folder: Path, place: Path) -> dict[str, Any]:
    """Return what upstream_tools.py writes, in namespaces in which the folder is at `place`.

    The other files are read-only, and with the last process the namespaces end.
    """
    python = ["env", "-i", f"PATH={os.environ['PATH']}", f"PYTHONPATH={SOURCES}", sys.executable]
    command = [*python, "-B", str(PROGRAM), str(programs), side, str(place)]
    mounts = f"mount --bind {folder} {place} && mount -o remount,ro,bind /"
    done = subprocess.run(
        ["unshare", "-nmp", "-f", "--mount-proc", "sh", "-c", f"{mounts} && {shlex.join(command)}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "answers.json").read_text())


def test_every_call_of_every_tool_is_answered_alike_by_both_hubs(tmp_path: Path) -> None:
    if not (wanted := os.environ.get("ORCHESTRA_BIN")):
        pytest.skip("ORCHESTRA_BIN does not name a folder with upstream's programs")
    if os.geteuid() or not shutil.which("unshare"):
        pytest.skip("upstream's tools run programs: root and `unshare` are needed to contain them")
    programs = Path(wanted).absolute()
    make_folder(tmp_path / "base")
    answers: list[dict[str, Any]] = []
    # A short path, because the hub makes its socket below it: its path may have 107 bytes.
    with tempfile.TemporaryDirectory() as place:
        for number, side in enumerate(("theirs", "theirs", "ours")):
            folder = tmp_path / str(number)
            shutil.copytree(tmp_path / "base", folder)
            if number:
                shutil.copy(tmp_path / "0" / "tools.json", folder)
            answers.append(answers_of(programs, side, folder, Path(place)))
    first, second, ours = answers

    assert ours.keys() == first.keys() == second.keys()
    differ: dict[str, tuple[str, str]] = {}
    counts = dict.fromkeys(("equal", *MORE), 0)
    for name, answer in ours.items():
        expected, shown = normalised(first[name]), normalised(answer)
        more = [kind for kind, text in MORE.items() if re.search(text, expected.replace("\\", ""))]
        if shown in (expected, normalised(second[name])) or name in RANDOM:
            counts["equal"] += 1
        elif more:
            counts[more[0]] += 1
        else:
            differ[name] = expected, shown
    tools = {name.partition(":")[0] for name in ours}
    print(f"{len(tools)} tools, {len(ours)} calls: {counts}, {len(differ)} differ", file=sys.stderr)
    report = "".join(f"\n{name}\n  {theirs}\n  {text}" for name, (theirs, text) in differ.items())
    assert not differ, report
