"""The files of examples/library, taken apart."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

__all__ = [
    "CATEGORIES",
    "DOCUMENTS",
    "FENCE",
    "FIELDS",
    "PROMPTS",
    "RESOURCES",
    "ROOT",
    "URI",
    "URIS",
    "Page",
    "document",
]

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "examples" / "library"
RESOURCES = LIBRARY / "resources"
CATEGORIES = {  # folder -> the category in front matter
    "agents": "agent",
    "best-practices": "best-practice",
    "examples": "example",
    "guides": "guide",
    "patterns": "pattern",
    "skills": "skill",
    "workflows": "workflow",
}
FIELDS = {
    "id": str,
    "title": str,
    "description": str,
    "category": str,
    "tags": list,
    "capabilities": list,
    "useWhen": list,
    "estimatedTokens": int,
    "relatedResources": list,
}
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
URI = re.compile(r"orchestr8://[\w/?=&+.-]*[\w]")
FILE = re.compile(r"# (\w+)\.py\n")


@dataclass(frozen=True)
class Page:
    """One file of the library."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path.relative_to(RESOURCES).with_suffix(""))

    @property
    def uri(self) -> str:
        return f"orchestr8://{self.name}"

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def front(self) -> dict[str, Any]:
        return yaml.safe_load(self._parts[0])

    @property
    def body(self) -> str:
        return self._parts[1]

    @property
    def _parts(self) -> tuple[str, str]:
        found = re.fullmatch(r"---\n(.*?\n)---\n(.*)", self.text, re.DOTALL)
        assert found, f"{self.path}: no front matter"
        return found[1], found[2]

    def blocks(self, *languages: str) -> list[str]:
        return [source for language, source in FENCE.findall(self.body) if language in languages]

    def files(self) -> dict[str, str]:
        """The Python files of the page; the first line of each block names it."""
        named: dict[str, str] = {}
        for source in self.blocks("python"):
            name = FILE.match(source)
            assert name, (
                f"{self.uri}: a Python block names its file in its first line: {source[:40]!r}"
            )
            named[name[1]] = source
        return named


DOCUMENTS = [Page(path) for path in sorted(RESOURCES.rglob("*.md"))]
PROMPTS = [Page(path) for path in sorted((LIBRARY / "prompts").rglob("*.md"))]
URIS = {page.uri for page in DOCUMENTS}


def document(name: str) -> Page:
    return Page(RESOURCES / f"{name}.md")
