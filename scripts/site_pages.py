"""Write the pages of the documentation site into a folder, from which the generator builds it.

usage: python scripts/site_pages.py FOLDER

FOLDER gets zensical.toml, docs/, and links to src/ and scripts/. In docs/: the pages of docs/, what
they link to elsewhere in the repository (other Markdown as pages, source as pages with a listing),
and a page for each public package with its docstrings. Links lead to pages of the site. Raises
ValueError for a link that leads nowhere.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONTENTS = Path("docs/README.md")
# What the address of a page is not its path in docs/.
MOVED = {
    Path("README.md"): Path("index.md"),
    CONTENTS: Path("contents.md"),
    Path("docs/decisions/README.md"): Path("decisions.md"),  # an index would stand for its section
    Path("bench/README.md"): Path("benchmark.md"),
    Path("LICENSE"): Path("license.md"),
}
LINK = re.compile(r"(?<!`)(!?\[[^\]]*\]\()([^)\s]+)(\))")
OUTSIDE = re.compile(r"^(?:[a-z][a-z+.-]*:|#|/)")
FENCED = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)
LANGUAGES = {".py": "python", ".sh": "sh", ".yaml": "yaml", ".json": "json", ".toml": "toml"}
# The public packages, the most specific first: a name is described on the first page that has it.
PACKAGES = {
    "concertino.server": "Servers",
    "concertino.client": "Clients",
    "concertino.types": "Values of the protocol",
    "concertino.errors": "Errors",
    "concertino.guards": "Guards",
    "concertino.transforms": "Transforms",
    "concertino.backend": "Backends",
    "concertino.transports": "Transports",
    "concertino": "The package concertino",
}


def main() -> None:
    folder = Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    site = Site(folder / "docs")
    (folder / "docs").mkdir(parents=True)
    for name in ("src", "scripts"):
        (folder / name).symlink_to(ROOT / name)
    for path in sorted((ROOT / "docs").rglob("*.md")):
        site.page_of(path.relative_to(ROOT))
    site.page_of(Path("README.md"))
    site.write()
    api = write_api(folder / "docs" / "api")
    styles = folder / "docs" / "stylesheets"
    styles.mkdir()
    shutil.copy(ROOT / "scripts" / "site.css", styles)
    settings = (ROOT / "zensical.toml").read_text()
    marker = "[project.theme]\n"
    nav = f"nav = {as_toml(navigation(site, api))}\n\n"
    (folder / "zensical.toml").write_text(settings.replace(marker, nav + marker, 1))
    tomllib.loads((folder / "zensical.toml").read_text())


class Site:
    """The files of the repository that are pages of the site, and those that still have to be
    written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pages: dict[Path, Path] = {}
        self._waiting: list[Path] = []

    def page_of(self, source: Path) -> Path:
        """Return where a file of the repository is on the site, relative to the site's folder."""
        if source not in self.pages:
            self.pages[source] = MOVED.get(source) or address(source)
            self._waiting.append(source)
        return self.pages[source]

    def write(self) -> None:
        """Write all pages, and those that they link to."""
        while self._waiting:
            source = self._waiting.pop()
            target = self.folder / self.pages[source]
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.suffix == ".svg":
                shutil.copy(ROOT / source, target)
            elif source.suffix == ".md":
                target.write_text(self._rewritten(source))
            else:
                target.write_text(listing(source))

    def _rewritten(self, source: Path) -> str:
        """Return the text of a page with links that lead to pages of the site."""

        def replace(match: re.Match[str]) -> str:
            if OUTSIDE.match(match[2]):
                return match[0]
            path, hash_mark, anchor = match[2].partition("#")
            there = self.page_of(resolve(source, path))
            start = self.pages[source].parent
            return f"{match[1]}{os.path.relpath(there, start)}{hash_mark}{anchor}{match[3]}"

        return outside_fences((ROOT / source).read_text(), lambda part: LINK.sub(replace, part))


def resolve(source: Path, link: str) -> Path:
    """Return the file that a link of a page leads to; of a folder, its README.md."""
    path = Path(os.path.normpath(source.parent / link))
    if (ROOT / path).is_dir():
        path /= "README.md"
    if not (ROOT / path).is_file():
        raise ValueError(f"{source}: the link {link} leads to no file")
    return path


def address(source: Path) -> Path:
    """Return where a file is on the site: pages of docs/ at the top, others below their path."""
    path = source.relative_to("docs") if source.is_relative_to("docs") else source
    if path.suffix in (".md", ".svg"):
        return Path(*path.parts[:-1], path.name.lower()) if len(path.parts) == 1 else path
    return path.with_name(path.name + ".md")


def listing(source: Path) -> str:
    """Return a page that shows a file."""
    text = (ROOT / source).read_text()
    if not source.suffix:
        return text
    return f"# {source}\n\n````{LANGUAGES.get(source.suffix, 'text')}\n{text}````\n"


def outside_fences(text: str, change: Callable[[str], str]) -> str:
    """Return a Markdown text, changed except for its code blocks. A link may span two lines."""
    parts = FENCED.split(text)
    return "".join(part if number % 2 else change(part) for number, part in enumerate(parts))


def write_api(folder: Path) -> list[dict[str, str]]:
    """Write a page for each public package, and return their part of the navigation."""
    folder.mkdir()
    described: dict[int, str] = {}
    pages: list[dict[str, str]] = []
    for package, title in PACKAGES.items():
        module = importlib.import_module(package)
        own: list[str] = []
        elsewhere: list[str] = []
        for name in sorted(module.__all__, key=lambda name: (name[0].islower(), name.lower())):
            known = described.setdefault(identity(module, name), package)
            if known == package:
                own.append(f"::: {package}.{name}\n")
            else:
                anchor = f"{known}.{name}"
                elsewhere.append(f"- [`{name}`]({known.replace('.', '-')}.md#{anchor})")
        text = f"# {title}\n\n*`{package}`: public names and their docstrings.*\n\n"
        if elsewhere:
            text += "Described on other pages:\n\n" + "\n".join(elsewhere) + "\n\n"
        name = package.replace(".", "-")
        (folder / f"{name}.md").write_text(text + "\n".join(own))
        pages.append({title: f"api/{name}.md"})
    return [pages[-1], *pages[:-1]]


def identity(module: object, name: str) -> int:
    """Return what tells two objects apart; constants that are equal have their names."""
    value = vars(module)[name] if name in vars(module) else getattr(module, name)
    return hash(name) if isinstance(value, int | str | float) else id(value)


def navigation(site: Site, api: list[dict[str, str]]) -> list[object]:
    """Return the navigation: the sections of docs/README.md with their pages."""
    sections: dict[str, list[object]] = {}
    title = ""
    for line in (ROOT / CONTENTS).read_text().splitlines():
        if heading := re.match(r"\*\*([^*]+)\*\*", line):
            title = heading[1]
            sections[title] = []
        elif title:
            # Of a line with several links, the text of each is its title.
            for label, link in re.findall(
                r"\[([^\]]+)\]\(([^)#]+)\)", line.partition("): ")[0] + ")"
            ):
                page = site.pages[resolve(CONTENTS, link)]
                sections[title].append({label.replace("`", ""): str(page)})
    return [
        {"Home": "index.md"},
        *({title: pages} for title, pages in sections.items()),
        {"API": list(api)},
        {
            "Project": [
                {"All pages": "contents.md"},
                {"Benchmark": "benchmark.md"},
                {"Changes": "changelog.md"},
                {"Contributing": "contributing.md"},
                {"Security": "security.md"},
                {"Licence": "license.md"},
            ]
        },
    ]


def as_toml(value: object) -> str:
    """Return lists, tables with one key, and strings as TOML."""
    if isinstance(value, list):
        return "[\n" + "".join(f"{as_toml(item)},\n" for item in value) + "]"
    if isinstance(value, dict):
        return (
            "{ "
            + ", ".join(f"{as_toml(key)} = {as_toml(item)}" for key, item in value.items())
            + " }"
        )
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


if __name__ == "__main__":
    main()
