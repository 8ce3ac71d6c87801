"""`concertino search DIR "words"`, as a user runs it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from warm_commands import run_command

ROLLBACK = """---
id: rollback
tags: [Deploy, safety]
useWhen:
  - A release went wrong
---

# Going back

How to roll back a deployment in kubernetes.

## First

Stop.
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    folder = tmp_path / "library"
    for name, text in {
        "guides/rollback.md": ROLLBACK,
        "guides/other.md": "# Another\n\nAbout kubernetes alone.\n",
        "skills/evil.md": "# Terminal \x1b[31mred\n\nsteering\n",
    }.items():
        path = folder / "resources" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def run_search(*words: str, cwd: Path, status: int = 0, **variables: str) -> str:
    environment = os.environ | {"XDG_CACHE_HOME": str(cwd / "cache")} | variables
    done = run_command("search", *words, cwd=cwd, env=environment)
    assert done.returncode == status, done.stderr
    return done.stdout if status < 2 else done.stderr


def test_each_hit_says_what_made_it_fit(library: Path) -> None:
    said = run_search("library", "kubernetes rollbacks", cwd=library.parent).splitlines()
    assert said[0].startswith("  1.")
    assert said[0].endswith("  orchestr8://guides/rollback  (31 tokens)")
    assert said[1].strip() == "Going back"
    assert said[2].strip().startswith("kubernet ")
    assert said[3].strip().startswith("rollback ")
    score = float(said[0].split()[1])
    assert score == pytest.approx(sum(float(line.split()[1]) for line in said[2:4]), abs=0.02)
    assert said[4].startswith("  2.")
    assert "orchestr8://guides/other" in said[4]


def test_json_has_the_same_and_sums_that_are_right(library: Path) -> None:
    said: dict[str, Any] = json.loads(
        run_search("library", "kuberntes", "blurble", "--json", cwd=library.parent)
    )
    assert said["repairs"] == {"kuberntes": "kubernetes"}
    assert said["unknown"] == ["blurble"]
    assert (said["query"], said["documents"]) == ("kuberntes blurble", 3)
    assert {each["uri"] for each in said["found"]} == {
        "orchestr8://guides/rollback",
        "orchestr8://guides/other",
    }
    for each in said["found"]:
        assert sum(part["score"] for part in each["parts"]) == pytest.approx(
            each["score"], abs=1e-3
        )


def test_a_mode_prints_what_a_client_gets(library: Path) -> None:
    said = run_search("library", "release", "--mode", "index", cwd=library.parent)
    assert said.startswith("orchestr8://guides/rollback - Going back (31 tokens)\n")
    cut = run_search(
        "library", "release", "--mode", "full", "--max-tokens", "60", cwd=library.parent
    )
    assert "<!-- orchestr8://guides/rollback -->\n\n# Going back\n" in cut


def test_filters_narrow_what_is_found(library: Path) -> None:
    assert "guides/other" not in run_search(
        "library", "kubernetes", "--tag", "deploy", cwd=library.parent
    )
    assert run_search(
        "library", "kubernetes", "--category", "skill", cwd=library.parent, status=1
    ).startswith("None of 3")
    assert "  2." not in run_search(
        "library", "kubernetes", "--max-results", "1", cwd=library.parent
    )


def test_no_document_steers_the_terminal(library: Path) -> None:
    said = run_search("library", "steering", cwd=library.parent)
    assert "\x1b" not in said
    assert "Terminal \ufffd[31mred" in said


def test_the_folder_can_come_from_the_environment(library: Path) -> None:
    resources = str(library / "resources")
    assert "guides/rollback" in run_search(
        "-", "release", cwd=library.parent, RESOURCES_PATH=resources
    )
    assert "mine://guides/rollback" in run_search(
        "library", "release", "--scheme", "mine", cwd=library.parent
    )


def test_an_edit_is_found_and_without_a_cache_nothing_is_kept(library: Path) -> None:
    assert run_search("library", "giraffe", "--no-cache", cwd=library.parent, status=1)
    assert not (library.parent / "cache").exists()
    assert run_search("library", "giraffe", cwd=library.parent, status=1)
    (library / "resources/guides/other.md").write_text("# Now of a giraffe\n")
    assert "guides/other" in run_search("library", "giraffe", cwd=library.parent)
    assert len(list((library.parent / "cache/concertino/library").glob("*.cache"))) == 1


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["nowhere", "x"], "concertino search: nowhere: expected a folder\n"),
        (
            ["library", "x", "--mode", "big"],
            "concertino search: --mode: expected full, catalog, index or minimal, got 'big'\n",
        ),
        (
            ["library", "x", "--max-tokens", "0"],
            "concertino search: --max-tokens: expected a number from 1 to 10000000, got 0\n",
        ),
        (
            ["library", "x", "--tokenizer", "gpt9"],
            "concertino search: tokenizer: expected one of estimate, cl100k_base, o200k_base, "
            "got 'gpt9'\n",
        ),
    ],
)
def test_what_does_not_fit_is_named(words: list[str], why: str, library: Path) -> None:
    assert run_search(*words, cwd=library.parent, status=2) == why
