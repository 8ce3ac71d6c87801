"""The pages of the documentation site, before the generator builds them: scripts/site does that."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docs.pages import environment

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
PUBLIC = ("server", "client", "types", "errors", "guards", "backend", "transports")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    run("site_pages.py", str(folder / "site"))
    return folder / "site"


def run(script: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / script), *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def pages_in(navigation: object) -> list[str]:
    match navigation:
        case str():
            return [navigation]
        case dict():
            return [page for value in navigation.values() for page in pages_in(value)]
        case list():
            return [page for value in navigation for page in pages_in(value)]
    raise AssertionError(navigation)


def settings(site: Path) -> dict[str, Any]:
    return tomllib.loads((site / "zensical.toml").read_text())["project"]


def test_the_navigation_leads_to_every_page_for_readers_once(site: Path) -> None:
    listed = pages_in(settings(site)["nav"])
    assert len(set(listed)) == len(listed)
    assert {page for page in listed if not (site / "docs" / page).is_file()} == set()
    for folder in ("tutorial", "how-to", "reference"):
        pages = {f"{folder}/{path.name}" for path in (ROOT / "docs" / folder).glob("*.md")}
        assert pages <= set(listed)
    others = {"index.md", "comparison.md", "architecture.md", "decisions.md", "benchmark.md"}
    assert others <= set(listed)


def test_the_sections_are_those_of_the_table_of_contents(site: Path) -> None:
    titles = [title for section in settings(site)["nav"] for title in section]
    assert titles == [
        "Home",
        "Tutorials",
        "How-to guides",
        "Reference",
        "Explanation",
        "API",
        "Project",
    ]


def test_links_lead_to_pages_of_the_site(site: Path) -> None:
    checked = 0
    for page in (site / "docs").rglob("*.md"):
        text = re.sub(r"^(`{3,}).*?^\1$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"(?<!`)\]\((?![a-z]+:|#)([^)#\s]+)", text):
            checked += 1
            assert (page.parent / target).is_file(), (page.name, target)
    assert checked > 300


def test_what_pages_link_to_outside_of_docs_is_on_the_site(site: Path) -> None:
    page = (site / "docs" / "examples" / "orchestre" / "server.py.md").read_text()
    source = (ROOT / "examples" / "orchestre" / "server.py").read_text()
    assert page == f"# examples/orchestre/server.py\n\n````python\n{source}````\n"
    assert (site / "docs" / "images" / "benchmark.svg").is_file()


def test_a_link_that_spans_two_lines_is_followed(site: Path) -> None:
    split = r"\[[^\]\n]*\n[^\]\n]*\]\(([^)#\s]+)"
    # Wherever the text is wrapped, some links span two lines; one to source code leaves the site.
    pages = [*(site / "docs").rglob("*.md")]
    links = [(page, link) for page in pages for link in re.findall(split, page.read_text())]
    assert links
    local = [(page, link) for page, link in links if "://" not in link]
    assert [link for page, link in local if not (page.parent / link).is_file()] == []


def test_every_public_name_has_its_docstring_on_one_page(site: Path) -> None:
    described = [
        name
        for page in (site / "docs" / "api").glob("*.md")
        for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
    ]
    assert len(set(described)) == len(described)
    names = [name.rpartition(".")[2] for name in described]
    for package in ("", *(f".{name}" for name in PUBLIC)):
        module = importlib.import_module(f"concertino{package}")
        assert [name for name in module.__all__ if name not in names] == []


def test_a_link_to_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    site_pages = importlib.import_module("site_pages")
    with pytest.raises(ValueError, match=r"docs/README\.md: the link gone\.md leads to no file"):
        site_pages.resolve(Path("docs/README.md"), "gone.md")


def test_parameters_in_docstrings_become_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    # griffe is in the generator's environment only; the text is what is tested here.
    monkeypatch.setitem(sys.modules, "griffe", SimpleNamespace(Extension=object))
    docstring_parameters = importlib.import_module("docstring_parameters")
    text = """Read a file.

path: where it is; on
a disk. size, limit: in bytes. The rest: is read later.
Returns the text.

Next: close it."""
    shown = docstring_parameters.as_list(text, {"path", "size", "limit"})
    assert (
        shown
        == """Read a file.

- `path`: where it is; on a disk.
- `size`, `limit`: in bytes. The rest: is read later.

Returns the text.

Next: close it."""
    )
    assert docstring_parameters.as_list("Note: none.", set()) == "Note: none."


def test_each_version_stays_and_the_newest_is_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    site_versions = importlib.import_module("site_versions")
    built, folder = tmp_path / "built", tmp_path / "published"
    built.mkdir()
    (built / "objects.inv").write_text("")
    for version in ("0.9", "0.10", "0.2"):
        (built / "index.html").write_text(version)
        site_versions.publish(built, folder, version)
    listed = json.loads((folder / "versions.json").read_text())
    assert [(item["version"], item["aliases"]) for item in listed] == [
        ("0.10", ["latest"]),
        ("0.9", []),
        ("0.2", []),
    ]
    assert (folder / "0.9" / "index.html").read_text() == "0.9"
    assert 'url=0.10/"' in (folder / "index.html").read_text()
