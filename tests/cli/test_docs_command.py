"""cli/docs.py, cli/page_layout.py: pages of the documentation, and help, fit the terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import termios
import tomllib
from pathlib import Path

import pytest

from concertino.cli import UsageError, main
from concertino.cli.docs import find_pages, find_topic
from concertino.cli.page_layout import lay_out

# Together they take long, and they do not depend on the version of Python.
pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"
FOLDERS = ("tutorial", "how-to", "reference", "")


def pages_in(folder: str) -> list[Path]:
    """Return the pages of a folder below docs; without the start page, which lists them."""
    return [path for path in (DOCS / folder).glob("*.md") if path != DOCS / "README.md"]


def test_the_wheel_has_every_page_that_the_list_has() -> None:
    with (DOCS.parent / "pyproject.toml").open("rb") as file:
        targets = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]
    included = targets["wheel"]["force-include"]
    # A page is included itself, or its folder is.
    pages = [path for name in FOLDERS for path in pages_in(name)]
    for path in [DOCS / "README.md", *pages]:
        source = next(
            str(part.relative_to(DOCS.parent))
            for part in (path, path.parent)
            if str(part.relative_to(DOCS.parent)) in included
        )
        assert included[source] == f"concertino/{source}"


def run_docs(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["docs", *words])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_the_list_has_every_page_and_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run_docs(capsys).splitlines()
    assert max(map(len, lines)) <= 80
    titles = [re.split(r"  +", line)[2] for line in lines if line.startswith("  ")]
    pages = [path.read_text().splitlines()[0] for name in FOLDERS for path in pages_in(name)]
    assert sorted(titles) == sorted(page.removeprefix("# ").replace("`", "") for page in pages)
    # In the order in which they are to be read.
    assert titles.index("A first server") < titles.index("A first client")


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_topic_is_a_page_as_it_is(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    paths = pages_in(folder)
    assert paths
    for path in paths:
        topic = str(path.relative_to(DOCS).with_suffix(""))
        assert run_docs(capsys, topic) == path.read_text()


def test_a_name_is_enough_if_there_is_one_page_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_docs(capsys, "Sockets.md").startswith("# Serve over sockets\n")


@pytest.mark.parametrize(
    ("topic", "message"),
    [
        ("guards", "there are several pages about guards\nhow-to/guards\nreference/guards"),
        ("guard", "there is no page 'guard'\ndid you mean how-to/guards or reference/guards?"),
        ("trobleshooting", "there is no page 'trobleshooting'\ndid you mean troubleshooting?"),
        ("how-to/socket", "there is no page 'how-to/socket'\ndid you mean sockets?"),
        ("xyzzy", "there is no page 'xyzzy'\nconcertino docs lists all"),
        ("", "there is no page ''\nconcertino docs lists all"),
    ],
)
def test_an_unknown_topic_names_those_that_are_like_it(topic: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        find_topic(topic, find_pages())
    assert f"{error.value}\n{error.value.hint}" == message


def run_on_terminal(columns: int, *arguments: str, **env: str) -> str:
    """Return what `concertino ARGUMENTS` writes to a terminal."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    words = [sys.executable, "-m", "concertino", *arguments]
    environment = {**os.environ, "TERM": "xterm", **env}
    process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    chunks: list[bytes] = []
    try:
        while chunk := os.read(ours, 65536):
            chunks.append(chunk)
    # Linux reports the end of a terminal as an error.
    except OSError:
        pass
    os.close(ours)
    assert process.wait(20) == 0
    return b"".join(chunks).decode().replace("\r\n", "\n")


def test_a_terminal_gets_the_page_through_a_pager_in_its_width() -> None:
    text = run_on_terminal(60, "docs", "sockets", PAGER="sed 's/^/| /'")
    lines = text.splitlines()
    assert lines[0] == "| # Serve over sockets"
    outside_code = "\n".join(lines).split("| ```")[::2]
    assert max(len(line) for part in outside_code for line in part.splitlines()) <= 62


# tests/cli/test_help.py has every command, at 80 columns.
@pytest.mark.parametrize("words", [["--help"], ["serve", "--help"]])
def test_help_fits_the_terminal(words: list[str]) -> None:
    text = run_on_terminal(80, *words)
    assert max(map(len, text.splitlines())) <= 80
    assert text.startswith("usage: concertino")


def test_a_reader_that_stops_early_is_no_error() -> None:
    words = [sys.executable, "-m", "concertino", "docs", "command-line"]
    done = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.stdout
    assert done.stderr
    done.stdout.close()
    assert done.stderr.read() == b""
    assert done.wait(20) == 0
    done.stderr.close()


PAGE = """\
# A title that is longer than the terminal is wide

One paragraph
in two lines, with [a link](other.md#place) and [another](https://example.com/a).

- an item that goes on
  in a second line
- a second item
1. numbered

| name | effect |
|---|---|
| `--a` | one thing \\| another, in many words |

| name | type | effect |
|---|---|---|
| a | int | |
| b | str | [see](x.md) |

```sh
a line of code that is longer than the terminal is wide   stays
# as it is
```

After it.
"""
LAID_OUT = """\
# A title that is longer than the terminal is wide

One paragraph in two lines, with a link
and another (https://example.com/a).

- an item that goes on in a second line
- a second item
1. numbered

`--a`
    one thing | another, in many words

a
    type: int
b
    type: str
    effect: see

```sh
a line of code that is longer than the terminal is wide   stays
# as it is
```

After it.
"""


def test_a_page_is_laid_out_for_a_terminal() -> None:
    assert lay_out(PAGE, 40) == LAID_OUT


def test_what_is_laid_out_has_all_words_of_the_page() -> None:
    for path in find_pages().values():
        text = path.read_text()
        words = set(re.findall(r"[A-Za-z]{4,}", re.sub(r"\]\([^)]*\)", "]", text)))
        missing = words - set(re.findall(r"[A-Za-z]{4,}", lay_out(text, 80)))
        headings = {
            word
            for line in re.findall(r"^\|.*(?=\n\|[-:| ]+\|$)", text, re.MULTILINE)
            for word in re.findall(r"[A-Za-z]{4,}", line)
        }
        assert missing <= headings, path
