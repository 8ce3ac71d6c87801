"""docs/images/demo.svg shows what `concertino demo` prints today; scripts/record_demo.py
draws it.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from docs.pages import environment

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "images" / "demo.svg"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("record_demo")


def lines_of(picture: str) -> list[str]:
    return ["".join(item.itertext()) for item in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def comparable(text: str) -> list[str]:
    """Lines without what differs between two runs: durations, process ids, folders, and where a
    command is wrapped.
    """
    text = text.replace(" \\\n", " ")
    text = re.sub(r"/\S*/concertino\b", "PROGRAM", text)
    text = re.sub(r"\S+ -m concertino\b|\bconcertino(?= new)", "PROGRAM", text)
    text = re.sub(r"\d+\.\d+ s|\d{3,}", "N", text)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


@pytest.mark.slow
def test_the_picture_shows_what_the_demo_prints() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("concertino")), "demo"],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    command, *shown = lines_of(PICTURE.read_text())
    assert command == "$ concertino demo"
    assert comparable("\n".join(shown)) == comparable(done.stdout)


def test_the_picture_names_no_folder_of_the_machine_that_recorded() -> None:
    paths = re.findall(r"/[\w.-]+/[\w./-]+", "\n".join(lines_of(PICTURE.read_text())))
    assert paths
    assert all(path.startswith("/home/ann/") for path in paths)


def test_colours_become_styles_that_a_dark_page_changes(recorder: Any) -> None:
    picture = recorder.draw("\x1b[1;31mno\x1b[0m & yes\n\n  \x1b[2mend\x1b[0m\n")
    assert lines_of(picture) == ["no & yes", "  end"]
    spans = ElementTree.fromstring(picture).iter(f"{SVG}tspan")
    assert [(item.attrib["class"], item.text) for item in spans] == [
        ("bold red", "no"),
        ("dim", "end"),
    ]
    rows = [float(item.attrib["y"]) for item in ElementTree.fromstring(picture).iter(f"{SVG}text")]
    assert rows[1] - rows[0] == 2 * recorder.LINE
    light, dark = picture.split("@media (prefers-color-scheme: dark)")
    assert ".red {" in light
    assert ".red {" in dark


def test_what_is_more_than_colours_is_refused(recorder: Any) -> None:
    with pytest.raises(ValueError, match="cannot draw"):
        recorder.draw("one\x1b[2Jtwo")


def test_a_program_gets_a_terminal_of_80_columns(recorder: Any) -> None:
    code = "import os, sys; print(sys.stdout.isatty(), os.get_terminal_size().columns)"
    assert recorder.run_in_terminal([sys.executable, "-c", code]) == (0, "True 80\n")
