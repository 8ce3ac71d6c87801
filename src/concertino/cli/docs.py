"""`concertino docs [TOPIC]`: list the pages of the documentation, or show one.

The pages are part of the wheel, so they describe the installed version.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

import concertino
from concertino.cli import UsageError, discard_stdout
from concertino.cli.page_layout import lay_out
from concertino.cli.serving import reject_extra_args

DESCRIPTION = (
    "List the pages of the documentation, or show one: laid out and paged on a terminal, as "
    "Markdown otherwise. Exit codes: 0 success, 2 usage."
)

# Folder -> the heading of its pages in the list. "docs" is the folder of the documentation itself.
# Pages of folders that are not named here, such as decisions/, are not listed.
SECTIONS = {
    "tutorial": "Tutorials",
    "how-to": "How-to guides",
    "reference": "Reference",
    "docs": "Explanation",
}
START_PAGE = "README.md"
# A page is not laid out wider than this, in columns, even if the terminal is wider.
WIDEST = 100


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `concertino docs` to its parser."""
    parser.add_argument(
        "topic", metavar="TOPIC", nargs="?", help="page to show; without it, all are listed"
    )


def run(args: Namespace, server: Sequence[str]) -> int:
    """Print the list of pages, or the page of `args.topic`. Returns the exit code 0.

    args: the parsed arguments.
    server: the words after `--`. This command accepts none.
    Raises UsageError if there is no such page.
    """
    reject_extra_args(args, server)
    pages = find_pages()
    if args.topic is None:
        _print(format_list(pages))
        return 0
    page = pages[find_topic(args.topic, pages)]
    text = page.read_text(encoding="utf-8")
    if not sys.stdout.isatty():
        _print(text)
        return 0

    import pydoc

    # The same options as in git: less does not stay open if the page fits the screen.
    os.environ.setdefault("LESS", "FRX")
    # Some terminals report 0 columns.
    width = min(os.get_terminal_size(sys.stdout.fileno()).columns or WIDEST, WIDEST)
    pydoc.pager(lay_out(text, width))
    return 0


def find_pages() -> dict[str, Path]:
    """Return topic -> path of each page of the documentation.

    A topic is the name of a page's file without `.md`. If two pages have the same name, the name of
    the folder comes before it. The order is that of the links on the start page.
    """
    package = Path(concertino.__file__).parent
    # In a checkout, the documentation is in the folder that contains src.
    folders = (package / "docs", package.parents[1] / "docs")
    folder = next((path for path in folders if path.is_dir()), folders[0])
    start = (folder / START_PAGE).read_text(encoding="utf-8")

    def order_on_start_page(path: Path) -> int:
        index = start.find(f"({path.relative_to(folder).as_posix()}")
        return len(start) if index < 0 else index

    sections = [folder if name == folder.name else folder / name for name in SECTIONS]
    paths = [path for parent in sections for path in parent.glob("*.md") if path.name != START_PAGE]
    paths.sort(key=lambda path: (order_on_start_page(path), path))
    names = [path.stem for path in paths]
    return {
        path.stem if names.count(path.stem) == 1 else f"{path.parent.name}/{path.stem}": path
        for path in paths
    }


def find_topic(words: str, pages: Mapping[str, Path]) -> str:
    """Return the topic that the user means.

    words: what the user has typed: a topic, or the name of a page's file.
    pages: topic -> path, as find_pages() returns it.
    Raises UsageError if there is no such page, or more than one. The error has similar topics.
    """
    topic = words.lower().removesuffix(".md")
    if topic in pages:
        return topic
    folder, _, name = topic.rpartition("/")
    same = [
        other
        for other, path in pages.items()
        if path.stem == name and folder in ("", path.parent.name)
    ]
    if len(same) == 1:
        return same[0]
    if same:
        raise UsageError(f"there are several pages about {words}", "\n".join(same))

    from difflib import get_close_matches

    near = [other for other in pages if name and name in other]
    near += [
        other for other in get_close_matches(name, pages, n=3, cutoff=0.7) if other not in near
    ]
    hint = f"did you mean {' or '.join(near[:3])}?" if near else "concertino docs lists all"
    raise UsageError(f"there is no page {words!r}", hint)


def format_list(pages: Mapping[str, Path]) -> str:
    """Return the list of pages as text: below headings, a line with topic and title for each.

    pages: topic -> path, as find_pages() returns it.
    """
    width = max(map(len, pages), default=0)
    lines = ["concertino docs TOPIC shows a page."]
    for section, heading in SECTIONS.items():
        lines += ["", heading]
        for topic, path in pages.items():
            if path.parent.name == section:
                with open(path, encoding="utf-8") as file:
                    title = file.readline().lstrip("# ").strip()
                lines.append(f"  {topic:{width}}  {title.replace('`', '')}")
    return "\n".join(lines) + "\n"


def _print(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone, as with `| head`.
        discard_stdout()
