"""The published results: results.json, the table in README.md, and the chart in docs/images.

    python bench/charts.py                  draw from results.json
    python bench/charts.py --take FILE      take the figures of `bench/run.py --json FILE` first
    python bench/charts.py --check          fail if table or chart is not that of results.json

`python bench/run.py --charts` measures and does all of it. Numbers come from results.json alone,
which names its date, machine and versions.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from rows import ROWS
from table import COLUMNS, fine, markdown, tenth

__all__ = ["publish"]

BENCH = Path(__file__).resolve().parent
RESULTS = BENCH / "results.json"
README = BENCH / "README.md"
CHART = BENCH.parent / "docs" / "images" / "benchmark.svg"
FACTS = ("date", "machine", "python", "python_optimised", "load_average", "plan")
NAMED = (
    "concertino",
    "msgspec",
    "mcp",
    "fastmcp",
    "pydantic",
    "node",
    "@modelcontextprotocol/sdk",
    "@modelcontextprotocol/server",
    "go",
    "github.com/modelcontextprotocol/go-sdk",
)


@dataclass(frozen=True)
class Panel:
    title: str
    unit: str
    measure: str
    figure: str


PANELS = (
    Panel("Start: CPU time until the first answer", "ms", "cold", "cpu_ms"),
    Panel("One call after the other: median", "us", "sequential", "p50_us"),
    Panel("Memory at rest", "MB", "memory", "rss_mb"),
)
# The rows of the chart, from the top; those without results are left out.
SERVERS = {
    "concertino": "concertino",
    "go": "Go SDK",
    "ts1": "TypeScript SDK 1",
    "ts2": "TypeScript SDK 2",
    "mcp-server": "mcp",
    "fastmcp": "FastMCP",
}

WIDTH, LABELS, VALUES = 560, 150, 80
BAR, GAP, HEAD, FOOT = 18, 8, 44, 62
STYLE = """\
text { font: 14px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; \
fill: #1f2328 }
.title { font-weight: 600 } .small { font-size: 11px; fill: #59636e } .ours { font-weight: 700 }
.page { fill: #ffffff; stroke: #d1d9e0 } .bar { fill: #8c959f } .bar.ours { fill: #0969da }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .small { fill: #9198a1 }
.page { fill: #0d1117; stroke: #3d444d } .bar { fill: #656c76 } .bar.ours { fill: #4493f8 }
}"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Draw the chart and the table from bench/results.json."
    )
    parser.add_argument("--take", metavar="FILE", help="a result of bench/run.py --json")
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; fail if a file differs from results.json",
    )
    options = parser.parse_args()
    if options.take:
        publish(json.loads(Path(options.take).read_text()))
        return 0
    results = json.loads(RESULTS.read_text())
    if not options.check:
        write_pages(results)
        return 0
    old = [path for path, content in pages(results).items() if path.read_text() != content]
    for path in old:
        print(f"{path} differs from {RESULTS}: run python bench/charts.py")
    return bool(old)


def publish(content: Mapping[str, Any]) -> None:
    """Write results.json, the table and the chart from everything that a run has measured."""
    results = reduce(content)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    write_pages(results)


def reduce(content: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the figures that the table shows, without single rounds."""
    wanted = {(measure, figure) for _, measure, figure, _ in COLUMNS}
    return {
        **{name: content[name] for name in FACTS},
        "versions": {
            name: version
            for place in content["versions"].values()
            for name, version in place.items()
        },
        "results": {
            row: {
                measure: {name: figures[name] for name in figures if (measure, name) in wanted}
                for measure, figures in measures.items()
            }
            for row, measures in content["results"].items()
        },
    }


def pages(results: Mapping[str, Any]) -> dict[Path, str]:
    """The files that show the results, with the content that they should have."""
    marked = f"<!-- bench -->\n{draw_table(results)}\n<!-- /bench -->"
    pattern = re.compile(r"<!-- bench -->\n.*?<!-- /bench -->", re.DOTALL)
    return {CHART: draw(results), README: pattern.sub(lambda _: marked, README.read_text())}


def write_pages(results: Mapping[str, Any]) -> None:
    CHART.parent.mkdir(exist_ok=True)
    for path, content in pages(results).items():
        path.write_text(content)


def draw_table(results: Mapping[str, Any]) -> str:
    build = "" if results["python_optimised"] else " built without optimisations"
    rounds = results["plan"]["rounds"]
    versions = ", ".join(
        f"{name} {version}" for name, version in results["versions"].items() if name in NAMED
    )
    return (
        f"Measured on {results['date']}: {results['machine']}; {results['python']}{build}; "
        f"{versions}. Client and server share one core; rounds: {rounds}.\n\n"
        f"{markdown(ROWS, results['results'])}"
    )


def draw(results: Mapping[str, Any]) -> str:
    """One SVG with a panel for each figure, light or dark as its reader has it."""
    servers = {name: label for name, label in SERVERS.items() if name in results["results"]}
    panel_height = HEAD + len(servers) * (BAR + GAP)
    height = len(PANELS) * panel_height + FOOT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" aria-labelledby="title described">',
        '<title id="title">concertino beside other MCP SDKs: start, time of a call, memory</title>',
        f'<desc id="described">{escape(describe(results, servers))}</desc>',
        f"<style>{STYLE}</style>",
        f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
    ]
    for number, panel in enumerate(PANELS):
        parts += draw_panel(panel, number * panel_height, results["results"], servers)
    kind = results["machine"].split(",")[0].split("(R)")[0].strip()
    foot = (
        "Lower is better. An echo of 100 bytes over stdio; client and server share one core.",
        f"{results['date'][:10]}, {kind}, {results['python']}; concertino"
        f" {results['versions']['concertino']},",
        f"{named_versions(results['versions'])}.",
    )
    for number, line in enumerate(foot):
        parts.append(text(16, height - FOOT + 20 + 15 * number, line, "small"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def draw_panel(
    panel: Panel, top: int, results: Mapping[str, Any], servers: Mapping[str, str]
) -> list[str]:
    values = {name: results[name][panel.measure][panel.figure] for name in servers}
    longest = max(values.values())
    parts = [text(16, top + 30, f"{panel.title}, {unit(panel)}", "title")]
    for number, (name, label) in enumerate(servers.items()):
        y = top + HEAD + number * (BAR + GAP)
        width = max(1.0, values[name] / longest * (WIDTH - LABELS - VALUES))
        ours = " ours" if name == "concertino" else ""
        parts += [
            text(16, y + 14, label, f"label{ours}"),
            f'<rect class="bar{ours}" x="{LABELS}" y="{y}" width="{width:.1f}" height="{BAR}" '
            f'rx="2"/>',
            text(LABELS + width + 6, y + 14, write(panel, values[name]), f"value{ours}"),
        ]
    return parts


def describe(results: Mapping[str, Any], servers: Mapping[str, str]) -> str:
    panels = []
    for panel in PANELS:
        listed = ", ".join(
            f"{label} {write(panel, results['results'][name][panel.measure][panel.figure])}"
            for name, label in servers.items()
        )
        panels.append(f"{panel.title}, {unit(panel)}: {listed}.")
    return " ".join(panels)


def unit(panel: Panel) -> str:
    return panel.unit.replace("us", "µs")


def write(panel: Panel, value: float) -> str:
    return tenth(value) if panel.unit == "MB" else fine(value)


def named_versions(versions: Mapping[str, str]) -> str:
    short = {
        "mcp": "mcp",
        "fastmcp": "FastMCP",
        "@modelcontextprotocol/sdk": "TypeScript",
        "@modelcontextprotocol/server": "and",
        "github.com/modelcontextprotocol/go-sdk": "Go",
    }
    named = ", ".join(
        f"{label} {versions[name]}" for name, label in short.items() if name in versions
    )
    return named.replace(", and ", " and ")


def text(x: float, y: float, content: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(content)}</text>'


if __name__ == "__main__":
    sys.exit(main())
