"""yaml_core.py against yaml.v3, Go's library, which upstream's store of Markdown files uses; the
store's globs and paths against Go's.

The judge (yaml_v3/main.go) is built once into .tools, with the module from the Go module proxy.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from interop.tools import alone_in, go, not_available
from yaml_documents import difference, make_object, make_request, numbers

from concertino.yaml_writer import write_mapping

pytestmark = pytest.mark.slow
SOURCE = Path(__file__).parent / "yaml_v3"
# Read by tests/test_yaml_core.py, where Go is not needed. If it is deleted, the test below writes
# it.
ANSWERS = Path(__file__).parents[1] / "yaml_v3_answers.jsonl"
BUILD_S = 600


@pytest.fixture(scope="module")
def judge() -> Path:
    program = go()
    files = [SOURCE / name for name in ("main.go", "go.mod", "go.sum")]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
    with alone_in(f"yaml-v3-{digest}") as folder:
        built = folder / "judge"
        if not built.exists():
            done = subprocess.run(
                [program, "build", "-o", built, "."],
                cwd=SOURCE,
                env={**os.environ, "GOFLAGS": "-mod=readonly -buildvcs=false"},
                capture_output=True,
                text=True,
                timeout=BUILD_S,
            )
            if done.returncode and "proxy" in done.stderr:
                not_available(f"the Go module of the judge cannot be had: {done.stderr[-500:]}")
            assert done.returncode == 0, done.stderr
    return built


def ask(judge: Path, requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    done = subprocess.run([judge], input=lines, capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.split("\n") if line]
    assert len(answers) == len(requests)
    return answers


@pytest.mark.parametrize("seed", range(10))
def test_both_read_and_write_ten_thousand_documents_alike(seed: int, judge: Path) -> None:
    source = random.Random(seed)
    requests = [make_request(source) for _ in range(10_000)]
    differences = [
        (request, found)
        for request, answer in zip(requests, ask(judge, requests), strict=True)
        if (found := difference(request, answer))
    ]
    assert differences == []


@pytest.mark.parametrize("seed", range(2))
def test_what_is_written_here_is_read_there(seed: int, judge: Path) -> None:
    """Also the texts that yaml.v3 itself writes so that it cannot read them."""
    source = random.Random(seed)
    written = [make_object(source) for _ in range(10_000)]
    answers = ask(judge, [{"read": write_mapping(value, max_depth=32)} for value in written])
    for value, answer in zip(written, answers, strict=True):
        assert answer.get("error") is None, (value, answer)
        assert numbers(answer["value"]) == numbers(value)


def test_the_kept_answers_are_those_of_yaml_v3(judge: Path) -> None:
    source = random.Random("kept")
    requests = [make_request(source) for _ in range(500)]
    answers = ask(judge, requests)
    lines = "".join(
        json.dumps({"request": request, "answer": answer}) + "\n"
        for request, answer in zip(requests, answers, strict=True)
    )
    if not ANSWERS.exists():
        ANSWERS.write_text(lines)
    assert ANSWERS.read_text() == lines
