"""`concertino serve DIR` and `concertino lint DIR` as processes: what is said and when, which
folders, what is missing.

BEHAVIOUR.md, "Named by the source documents": the variables, and the lines on stderr in their order
and form.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from library.shelves import fill
from warm_commands import run_python

import concertino

SOURCE = str(Path(concertino.__file__).parents[1])
CONCERTINO = [sys.executable, "-m", "concertino"]
OPENING = ("initialize", {"protocolVersion": "2025-11-25"})
READ = ("resources/read", {"uri": "orchestr8://agents/one"})
Asked = list[tuple[str, dict[str, Any]]]


def folder(tmp_path: Path) -> Path:
    fill(tmp_path / "resources", {"agents/one.md": "# One\n\nalpha\n", "agents/two.md": "# Two\n"})
    fill(tmp_path / "prompts", {"p.md": "Do {{x}}"})
    return tmp_path


def ran(words: list[str], asked: Asked, cwd: Path, **more: str) -> tuple[dict[int, Any], str, int]:
    """Answers by number (1 is the first that was asked), stderr, and the exit code."""
    # On a busy machine, a large folder takes more than the 2 s after the end of stdin.
    environment = {**os.environ, "PYTHONPATH": SOURCE, "CONCERTINO_DRAIN_S": "20", **more}
    stdin = "".join(
        json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\n"
        for number, (method, params) in enumerate([OPENING, *asked])
    )
    done = run_python(
        [*CONCERTINO, *words],
        cwd=cwd,
        input=stdin,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    return (
        # The others are notifications, such as that a part has started late.
        {item["id"]: item.get("result") or item["error"] for item in messages if "id" in item},
        done.stderr,
        done.returncode,
    )


def test_the_lines_on_stderr_come_in_their_order_and_form(tmp_path: Path) -> None:
    match = ("resources/read", {"uri": "orchestr8://agents/match?query=alpha"})
    answers, stderr, code = ran(["serve", "."], [READ, match], folder(tmp_path), LOG_LEVEL="debug")
    assert code == 0
    assert answers[1]["contents"][0]["text"] == "# One\n\nalpha\n"
    lines = [line for line in stderr.splitlines() if "[host]" not in line]
    form = re.compile(r"\[\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z\] \[(\w+)\] \[orchestr8\] (.*)")
    said = [found.groups() for line in lines if (found := form.fullmatch(line))]
    assert len(said) == len(lines)
    texts = [text for level, text in said if level == "INFO"]
    start = [
        "Starting orchestr8 MCP server v0.0.0",
        "Loaded 1 prompts",
        "Loaded 2 resources",
        "Resource index pre-loaded for dynamic matching",
        "orchestr8 MCP server started successfully",
    ]
    assert [text for text in texts if text in start] == start
    assert ("DEBUG", "Loading resource: orchestr8://agents/one") in said
    assert "Dynamic resource request: orchestr8://agents/match?query=alpha" in texts
    assert any(re.fullmatch(r"Assembled 1 fragments \(\d+ tokens\)", text) for text in texts)
    assert "Served 1 files (0 from memory) and 1 matches" in texts[-1]


def test_the_opening_is_answered_before_anything_is_loaded(tmp_path: Path) -> None:
    fill(
        tmp_path / "resources",
        {f"agents/{number}.md": f"# Number {number}\n" for number in range(500)},
    )
    answers, stderr, code = ran(
        ["serve", "."], [("resources/list", {})], tmp_path, LOG_LEVEL="debug"
    )
    assert code == 0
    assert "prompts" not in answers[0]["capabilities"]  # there is no such folder
    assert "resources" in answers[0]["capabilities"]
    assert len(answers[1]["resources"]) == 500
    answered = stderr.index('Sending response: {"jsonrpc":"2.0","id":0,')
    assert (
        answered
        < stderr.index("Loaded 500 resources")
        < stderr.index('Sending response: {"jsonrpc":"2.0","id":1,')
    )


def test_nothing_of_the_extras_is_loaded_before_the_load(tmp_path: Path) -> None:
    """The way from start to the first answer is asyncio's and msgspec's alone: what else is needed
    comes beside it.
    """
    code = (
        "import sys, concertino.runtime.process, concertino.cli.targets\nbefore ="
        " set(sys.modules)\nfrom concertino.library.library import"
        " Library\nLibrary('.').features()\nprint(*sorted(set(sys.modules) - before))"
    )
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert {name for name in done.stdout.split() if not name.startswith("concertino.library")} <= {
        "concertino.runtime.result_sizes",
        "concertino.runtime.result_turns",
        "concertino.runtime.thread_jobs",
        "concertino.runtime.thread_trials",
        "concertino.runtime.threads",
    }
    assert len(done.stdout.split()) <= 9


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        ([], {"RESOURCES_PATH": "in/resources", "PROMPTS_PATH": "in/prompts"}),
        (["--resources", "in/resources", "--prompts", "in/prompts"], {}),
        (
            ["--resources", "in/resources"],
            {"RESOURCES_PATH": "nothing", "PROMPTS_PATH": "in/prompts"},
        ),
        (["in"], {"RESOURCES_PATH": "nothing", "PROMPTS_PATH": "nothing"}),
        (["other", "--resources", "in/resources"], {}),
    ],
)
def test_folders_are_named_by_target_option_and_variable(
    words: list[str], variables: dict[str, str], tmp_path: Path
) -> None:
    folder(tmp_path / "in")
    fill(tmp_path / "other", {"resources/agents/one.md": "no", "prompts/p.md": "Do {{x}}"})
    asked: Asked = [READ, ("prompts/list", {})]
    answers, stderr, code = ran(["serve", *words], asked, tmp_path, **variables)
    assert code == 0, stderr
    assert answers[1]["contents"][0]["text"] == "# One\n\nalpha\n"
    assert [item["name"] for item in answers[2]["prompts"]] == ["p"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (
            ["empty"],
            1,
            "expected resources/ or prompts/ in it; --resources DIR serves a folder itself",
        ),
        (["in", "--scheme", "A b"], 1, "scheme: expected a small letter"),
        (["in", "also", "--prompts", "in/prompts"], 1, "are for one folder, got in, also"),
    ],
)
def test_what_cannot_be_served_is_said(
    words: list[str], code: int, said: str, tmp_path: Path
) -> None:
    folder(tmp_path / "in")
    folder(tmp_path / "also")
    (tmp_path / "empty").mkdir()
    answers, stderr, ended = ran(["serve", *words], [], tmp_path)
    assert (answers[0]["code"], ended) == (-32603, code)
    assert said in answers[0]["message"]
    assert said in stderr


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (["serve"], {"RESOURCES_PATH": "no-resources", "PROMPTS_PATH": "no-prompts"}),
        (["serve", "--resources", "no-resources", "--prompts", "no-prompts"], {}),
        (["serve", "--resources", "no-resources"], {}),
    ],
)
def test_folders_that_are_all_missing_fail_the_start(
    words: list[str], variables: dict[str, str], tmp_path: Path
) -> None:
    """ "Error Shutdown" of the source documents: the line, and exit code 1."""
    environment = {**os.environ, "PYTHONPATH": SOURCE, **variables}
    # With a client that is told, and with nobody at stdin.
    for asked in ('{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}\n', ""):
        done = run_python(
            [*CONCERTINO, *words],
            cwd=tmp_path,
            input=asked,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 1
        assert "[ERROR] [concertino] Failed to start server: a library: expected a folder" in (
            done.stderr
        )
        assert "no-resources" in done.stderr
        assert ("cannot start: a library: expected a folder" in done.stdout) is bool(asked)


def test_a_folder_and_a_server_are_served_as_one(tmp_path: Path) -> None:
    folder(tmp_path / "shelf")
    (tmp_path / "sums.py").write_text(
        "from concertino import Server\nserver = Server('sums')\n@server.tool\ndef add(a: int, b:"
        " int) -> int:\n    return a + b\n"
    )
    bad = ("resources/read", {"uri": "orchestr8://match?query=a&maxTokens=x"})
    asked: Asked = [
        ("tools/list", {}),
        READ,
        ("prompts/get", {"name": "shelf_p"}),
        bad,
        ("resources/read", {"uri": "x://y"}),
    ]
    answers, stderr, code = ran(["serve", "shelf", "sums.py"], asked, tmp_path)
    assert code == 0, stderr
    assert [item["name"] for item in answers[1]["tools"]] == ["sums_add"]
    assert answers[2]["contents"][0]["text"] == "# One\n\nalpha\n"
    assert answers[3]["messages"][0]["content"]["text"] == "Do {{x}}"
    assert answers[4]["data"]["parameter"] == "maxTokens"
    assert (answers[5]["code"], answers[5]["data"]) == (-32002, {"uri": "x://y"})


def test_several_folders_have_their_names_as_schemes(tmp_path: Path) -> None:
    folder(tmp_path / "one")
    folder(tmp_path / "two")
    asked: Asked = [("resources/read", {"uri": f"{name}://agents/one"}) for name in ("one", "b")]
    answers, stderr, code = ran(["serve", "one", "b=two"], asked, tmp_path)
    assert code == 0, stderr
    assert [answers[number]["contents"][0]["uri"] for number in (1, 2)] == [
        "one://agents/one",
        "b://agents/one",
    ]


def test_a_file_with_a_library_is_a_target(tmp_path: Path) -> None:
    folder(tmp_path)
    (tmp_path / "shelf.py").write_text(
        "from concertino import Library\nshelf = Library('resources', scheme='s')\n"
    )
    answers, stderr, code = ran(
        ["serve", "shelf.py"], [("resources/read", {"uri": "s://agents/one"})], tmp_path
    )
    assert code == 0, stderr
    assert answers[1]["contents"][0]["text"] == "# One\n\nalpha\n"


def path_without(tmp_path: Path, *modules: str) -> str:
    """A path on which these modules cannot be imported."""
    missing = tmp_path / "missing"
    for name in modules:
        fill(missing, {f"{name}.py": f"raise ModuleNotFoundError(name={name!r})\n"})
    return os.pathsep.join((str(missing), SOURCE))


def test_without_tantivy_all_but_a_match_is_served(tmp_path: Path) -> None:
    match = ("resources/read", {"uri": "orchestr8://match?query=alpha"})
    path = path_without(tmp_path, "tantivy", "watchfiles")
    answers, stderr, code = ran(
        ["serve", "."], [READ, match, ("prompts/list", {})], folder(tmp_path), PYTHONPATH=path
    )
    assert code == 0
    assert answers[1]["contents"][0]["text"] == "# One\n\nalpha\n"
    assert re.fullmatch(
        r".*searching a library needs the extra 'library' .*: .*pip install .*\[library\]'",
        answers[2]["message"],
    )
    assert len(answers[3]["prompts"]) == 1
    assert "pre-loaded" not in stderr
    assert "started successfully" in stderr


def test_without_pyyaml_front_matter_ends_the_start_and_says_why(tmp_path: Path) -> None:
    path = path_without(tmp_path, "yaml")
    answers, _, code = ran(["serve", "."], [READ], folder(tmp_path), PYTHONPATH=path)
    assert (code, answers[1]["contents"][0]["text"]) == (0, "# One\n\nalpha\n")
    fill(tmp_path / "resources", {"agents/three.md": "---\nid: three\n---\n"})
    _, stderr, code = ran(["serve", "."], [READ], tmp_path, PYTHONPATH=path)
    assert code == 1
    assert re.search(
        r"Failed to start server: front matter needs the extra 'library' .*: "
        r".*pip install .*\[library\]'",
        stderr,
    )


# lint

GOOD = """\
---
title: One
description: About alpha.
tags: [greek]
capabilities: [Counting letters]
useWhen: [Letters are to be counted]
estimatedTokens: {tokens}
relatedResources: [{related}]
---
# One

alpha, and {link}
"""


def run_lint(tmp_path: Path, *words: str) -> tuple[list[dict[str, Any]], int]:
    done = run_python(
        [*CONCERTINO, "lint", ".", "--json", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": SOURCE},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    return json.loads(done.stdout)["problems"], done.returncode


def good(tokens: int = 12, related: str = "", link: str = "beta and gamma, delta") -> str:
    return GOOD.format(tokens=tokens, related=related, link=link)


def test_a_library_without_mistakes_ends_with_0(tmp_path: Path) -> None:
    related = "orchestr8://agents/two, two, orchestr8://match?query=x, orchestr8://agents"
    fill(
        tmp_path / "resources",
        {
            "agents/one.md": good(
                related=related, link="[beta](two.md#x), `[no](nothing.md)`, [web](https://a.b/c)"
            ),
            "agents/two.md": good(12).replace("One", "Two"),
        },
    )
    fill(
        tmp_path / "prompts",
        {
            "p.md": (
                "---\ndescription: d\narguments: [x]\n---\n{{x}} ${HOME}"
                " orchestr8://match?query={{x}}"
            )
        },
    )
    found, code = run_lint(tmp_path, "--ignore", "tokens")
    assert (found, code) == ([], 0)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a/x.md": good(tokens=100)}, [("resources/a/x.md", 0, "tokens")]),
        ({"a/x.md": good(related="orchestr8://a/none")}, [("resources/a/x.md", 0, "broken-link")]),
        (
            {"a/x.md": good(link="see orchestr8://a/none.")},
            [("resources/a/x.md", 12, "broken-link")],
        ),
        (
            {"a/x.md": good(link="see orchestr8://match?querry=a")},
            [("resources/a/x.md", 12, "broken-link")],
        ),
        ({"a/x.md": good(link="[y](../b/y.md) to it")}, [("resources/a/x.md", 12, "broken-link")]),
        (
            {"a/x.md": good(link="```orchestr8://a/none```")},
            [("resources/a/x.md", 12, "broken-link")],
        ),
        (
            {"a/x.md": good().replace("tags: [greek]\n", "")},
            [("resources/a/x.md", 0, "missing-field")],
        ),
        ({"a/x.md": good().replace("tags:", "\ttags:")}, [("resources/a/x.md", 4, "front-matter")]),
        (
            {"a/x.md": good().replace("tags: [greek]", "tags: {a: [b]}")},
            [("resources/a/x.md", 0, "field")],
        ),
        ({"a/x.md": b"\xff\xfe"}, [("resources/a/x.md", 1, "unreadable")]),
        ({"a/x.png": b"x" * (4 * 2**20 + 1)}, [("resources/a/x.png", 0, "oversized")]),
        (
            {"a/x.md": good(), "b/x.md": good()},
            [("resources/a/x.md", 0, "duplicate-id"), ("resources/b/x.md", 0, "duplicate-id")],
        ),
        (
            {"a/x.md": good(), "a/y.md": good().replace("title", "id: x\ntitle")},
            [("resources/a/x.md", 0, "duplicate-id"), ("resources/a/y.md", 0, "duplicate-id")],
        ),
        ({"a/x.md": good(), "a/x": "text"}, [("resources/a/x", 0, "shadowed")]),
        ({"a/x.md": ""}, [("resources/a/x.md", 0, "missing-field")]),
    ],
    ids=lambda value: "" if isinstance(value, list) else None,
)
def test_each_mistake_is_found_where_it_is(
    files: dict[str, str | bytes], expected: list[tuple[str, int, str]], tmp_path: Path
) -> None:
    fill(tmp_path / "resources", files)
    found, code = run_lint(tmp_path)
    assert code == 1
    said = [(item["path"], item["line"], item["rule"]) for item in found]
    rules = {rule for _, _, rule in expected}
    assert [item for item in said if item[2] in rules][: len(expected)] == expected, found
    assert all(item["message"] for item in found)


def test_what_is_like_many_others_cannot_be_reached(tmp_path: Path) -> None:
    """Thirty files that say the same of themselves: a match shows fifteen of them, by
    their URIs.
    """
    fill(
        tmp_path / "resources",
        {
            f"a/{number:02}.md": good().replace("title: One", "id: same\ntitle: One")
            for number in range(30)
        },
    )
    found, _ = run_lint(tmp_path)
    assert [item["path"] for item in found if item["rule"] == "unreachable"] == [
        f"resources/a/{number:02}.md" for number in range(15, 30)
    ]


def test_prompts_are_looked_at_too(tmp_path: Path) -> None:
    fill(
        tmp_path / "prompts",
        {
            "a.md": "---\ndescription: d\narguments: [x, y]\n---\n{{x}} {{z}}\norchestr8://none",
            "b.md": "---\nname: a\ndescription: d\n---\ntext",
        },
    )
    found, code = run_lint(tmp_path)
    assert code == 1
    assert [(item["path"], item["line"], item["rule"], item["message"]) for item in found] == [
        ("prompts/a.md", 0, "prompt", "arguments: 'y' is nowhere in the text"),
        ("prompts/a.md", 0, "prompt", "{{z}} stays as it is: there is no argument of this name"),
        ("prompts/a.md", 6, "broken-link", "orchestr8://none: there is no such resource"),
        (
            "prompts/b.md",
            0,
            "prompt",
            "name: a.md has the name 'a' too, and is the one that is served",
        ),
    ]


def test_lint_says_it_in_lines_and_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    fill(tmp_path / "resources", {"a/x.md": good(related="orchestr8://a/none")})
    environment = {**os.environ, "PYTHONPATH": SOURCE}

    def said(*words: str) -> tuple[str, str, int]:
        done = run_python(
            [*CONCERTINO, "lint", *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.stdout, done.stderr, done.returncode

    lines, summary, code = said(".", "--ignore", "tokens")
    assert (
        lines
        == "resources/a/x.md: broken-link: relatedResources: orchestr8://a/none: there is no such"
        " resource\n"
    )
    assert (summary, code) == ("1 documents, 0 prompts, 1 problems\n", 1)
    for words, text in (
        ((".", "--ignore", "nothing"), "--ignore: expected one of front-matter,"),
        (("nowhere",), "nowhere: expected a folder"),
        ((), "nothing to check"),
        ((".", "--tokenizer", "x"), "tokenizer: expected one of"),
    ):
        stdout, stderr, code = said(*words)
        assert (stdout, code) == ("", 2)
        assert text in stderr
