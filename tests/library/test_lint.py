"""lint(): a library whose files change while it is read."""

from __future__ import annotations

import os
from pathlib import Path

from library.shelves import fill

from concertino.library.folder import Folder, FoundFile
from concertino.library.lint import lint


class Vanishing(Folder):
    """A directory whose files are removed by another process when they have been read once."""

    def read(self, found: FoundFile) -> tuple[bytes, os.stat_result]:
        result = super().read(found)
        os.unlink(os.path.join(self.path, found.target))
        return result


def test_a_file_that_is_removed_meanwhile_ends_nothing(tmp_path: Path) -> None:
    fill(tmp_path, {"agents/one.md": "---\ntitle: One\ntags: [a]\n---\n# One\n\nText.\n"})
    resources = Vanishing(tmp_path, max_file_bytes=2**20, max_files=100)
    report = lint(resources, None, "orchestr8", lambda text: len(text))
    assert not (tmp_path / "agents/one.md").exists()
    assert report.documents == 1
    assert {problem.path for problem in report.findings} == {"agents/one.md"}


def test_an_id_that_two_documents_share_is_reported_once_for_each(tmp_path: Path) -> None:
    text = "---\nid: go\n---\n# Go\n\nText.\n"
    fill(tmp_path, {"agents/one.md": text, "agents/two.md": text})
    resources = Folder(tmp_path, max_file_bytes=2**20, max_files=100)
    report = lint(resources, None, "orchestr8", lambda text: len(text))
    assert [
        (finding.path, finding.rule, finding.message)
        for finding in report.findings
        if finding.rule in ("duplicate-id", "ambiguous-name")
    ] == [
        ("agents/one.md", "duplicate-id", "'go' could be orchestr8://agents/two too"),
        ("agents/two.md", "duplicate-id", "'go' could be orchestr8://agents/one too"),
    ]
