"""Run `concertino demo` in a terminal of 80 columns, and draw what it showed: docs/images/demo.svg.

usage: python scripts/record_demo.py

The picture has the colours of a light or a dark page, as its reader has it. Of the text, only the
folder in which the programs are is replaced, by one that a reader may have.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from dataclasses import dataclass
from html import escape
from pathlib import Path

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "demo.svg"
COMMAND = "concertino demo"
COLUMNS, ROWS = 80, 50
PROGRAMS = "/home/ann/.venv/bin"
CHARACTER, LINE = 7.83, 18
MARGIN, BAR = 18, 34
STYLES = {"1": "bold", "2": "dim", "31": "red", "32": "green", "33": "yellow", "34": "blue"}
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f]")
SEQUENCE = re.compile(r"\x1b\[([\d;]*)m")
STYLE = """\
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; \
fill: #1f2328; white-space: pre }
.bold { font-weight: 700 } .dim { fill: #59636e } .red { fill: #cf222e } .green { fill: #116329 }
.yellow { fill: #7d4e00 } .blue { fill: #0969da }
.page { fill: #f6f8fa; stroke: #d1d9e0 } .dot { fill: #d1d9e0 }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .dim { fill: #9198a1 } .red { fill: #ff7b72 } .green { fill: #56d364 }
.yellow { fill: #e3b341 } .blue { fill: #79c0ff }
.page { fill: #151b23; stroke: #3d444d } .dot { fill: #3d444d }
}"""


@dataclass(frozen=True)
class Span:
    """Characters of one line with the same styles."""

    text: str
    styles: tuple[str, ...]


def main() -> int:
    programs = Path(sys.executable).parent
    status, output = run_in_terminal([str(programs / "concertino"), "demo"])
    if status:
        print(output, file=sys.stderr)
        return status
    shown = f"\x1b[2m$\x1b[0m {COMMAND}\n" + output.replace(str(programs), PROGRAMS)
    PICTURE.write_text(draw(shown))
    return 0


def run_in_terminal(command: list[str]) -> tuple[int, str]:
    """Return the exit code of a program, and what it wrote to a terminal, with its sequences."""
    process, terminal = pty.fork()
    if process == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        os.environ.update(TERM="xterm-256color", COLUMNS=str(COLUMNS), LINES=str(ROWS))
        os.environ["PATH"] = os.pathsep.join([str(Path(command[0]).parent), os.environ["PATH"]])
        os.environ.pop("NO_COLOR", None)
        os.execv(command[0], command)
    output = b""
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # Linux reports the end of a terminal as an error
            break
        if not chunk:
            break
        output += chunk
    _, status = os.waitpid(process, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), output.decode().replace("\r\n", "\n")


def draw(output: str) -> str:
    """Return an SVG of what a terminal shows after this output.

    Raises ValueError for a sequence that is no colour: such output needs more than this.
    """
    lines = read_spans(output.rstrip("\n"))
    width = round(COLUMNS * CHARACTER + 2 * MARGIN)
    height = BAR + len(lines) * LINE + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-labelledby="title">',
        f'<title id="title">A terminal after `{COMMAND}`</title>',
        f"<style>{STYLE}</style>",
        f'<rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
        *(f'<circle class="dot" cx="{22 + 18 * number}" cy="18" r="5"/>' for number in range(3)),
    ]
    for number, line in enumerate(lines):
        written = "".join(element(span) for span in line)
        if written:
            y = BAR + (number + 1) * LINE - 5
            parts.append(f'<text x="{MARGIN}" y="{y}" xml:space="preserve">{written}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def read_spans(output: str) -> list[list[Span]]:
    """Return the lines of an output in pieces of one style."""
    lines: list[list[Span]] = [[]]
    styles: tuple[str, ...] = ()
    for position, piece in enumerate(SEQUENCE.split(output)):
        if position % 2:
            codes = [code for code in piece.split(";") if code]
            ends = codes in ([], ["0"])
            styles = () if ends else (*styles, *(STYLES[code] for code in codes))
            continue
        if unknown := CONTROL.search(piece):
            raise ValueError(f"cannot draw {unknown[0]!r} in {piece[:60]!r}")
        for number, text in enumerate(piece.split("\n")):
            if number:
                lines.append([])
            if text:
                lines[-1].append(Span(text, styles))
    return lines


def element(span: Span) -> str:
    text = escape(span.text, quote=False)
    return f'<tspan class="{" ".join(span.styles)}">{text}</tspan>' if span.styles else text


if __name__ == "__main__":
    sys.exit(main())
