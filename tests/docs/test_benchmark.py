"""bench/results.json, and what shows it: the chart in docs/images, the table in bench/README.md."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from docs.pages import ROOT

RESULTS = json.loads((ROOT / "bench" / "results.json").read_text())
CHART = ROOT / "docs" / "images" / "benchmark.svg"
TABLE = (ROOT / "bench" / "README.md").read_text()
ROWS_OF_THE_CHART = {
    "concertino": "concertino",
    "Go SDK": "go",
    "TypeScript SDK 1": "ts1",
    "TypeScript SDK 2": "ts2",
    "mcp": "mcp-server",
    "FastMCP": "fastmcp",
}
PANELS = [("cold", "cpu_ms"), ("sequential", "p50_us"), ("memory", "rss_mb")]


def texts(kind: str) -> list[str]:
    found = ElementTree.parse(CHART).iter("{http://www.w3.org/2000/svg}text")
    return [item.text or "" for item in found if kind in item.attrib["class"].split()]


def number(text: str) -> float:
    return float(text.replace(",", ""))


@pytest.mark.parametrize("file", sorted((ROOT / "bench").glob("*.py")), ids=lambda file: file.stem)
def test_a_program_imports_what_exists(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("concertino."):
            exec(ast.unparse(node))


def test_the_files_are_those_of_the_data() -> None:
    done = subprocess.run(
        [sys.executable, "bench/charts.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_each_value_of_the_chart_is_in_the_data() -> None:
    labels, values = texts("label"), [number(text) for text in texts("value")]
    rows = [ROWS_OF_THE_CHART[label] for label in labels]
    assert len(rows) == len(values) == len(PANELS) * len(set(rows))
    assert {"concertino", "ts2", "mcp-server", "fastmcp"} <= set(rows)
    for position, (row, value) in enumerate(zip(rows, values, strict=True)):
        measure, figure = PANELS[position // len(set(rows))]
        # Three digits are shown.
        assert value == pytest.approx(RESULTS["results"][row][measure][figure], rel=0.006)


def test_each_bar_is_as_long_as_its_value() -> None:
    rectangles = ElementTree.parse(CHART).iter("{http://www.w3.org/2000/svg}rect")
    widths = [
        float(item.attrib["width"]) for item in rectangles if "bar" in item.attrib["class"].split()
    ]
    values = [number(text) for text in texts("value")]
    count = len(values) // len(PANELS)
    for start in range(0, len(values), count):
        scale = max(widths[start : start + count]) / max(values[start : start + count])
        for width, value in list(zip(widths, values, strict=True))[start : start + count]:
            assert width == pytest.approx(value * scale, abs=1.1)


def test_the_chart_names_its_date_and_versions_and_has_a_dark_form() -> None:
    [_, measured, versions] = texts("small")
    assert RESULTS["date"][:10] in measured
    assert RESULTS["versions"]["mcp"] in versions
    assert RESULTS["versions"]["fastmcp"] in versions
    assert "prefers-color-scheme: dark" in CHART.read_text()


def test_the_table_has_the_figures_of_the_data() -> None:
    [line] = re.findall(r"^\| FastMCP \| 2025-11-25 \| (.*) \|$", TABLE, re.MULTILINE)
    [head] = re.findall(r"^\| server \| revision \| (.*) \|$", TABLE, re.MULTILINE)
    cells = dict(zip(head.split(" | "), line.split(" | "), strict=True))
    fastmcp = RESULTS["results"]["fastmcp"]
    assert number(cells["p50 us"]) == pytest.approx(fastmcp["sequential"]["p50_us"], rel=0.006)
    assert number(cells["idle MB"]) == pytest.approx(fastmcp["memory"]["rss_mb"], rel=0.006)
    assert RESULTS["date"] in TABLE


def test_the_table_of_the_readme_is_gone(tmp_path: Path) -> None:
    assert "| 2025-11-25 |" not in (ROOT / "README.md").read_text()
