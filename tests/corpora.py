"""Folders of Markdown that a library is tried on: examples/library always, and a larger one where
there is one.

That is `../shared/corpus` beside the repository, or CONCERTINO_CORPUS. A test with the mark
`each_corpus` has an argument `corpus`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

__all__ = ["EXAMPLE", "FOLDERS", "each_corpus"]

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "library"
_LARGER = Path(os.environ.get("CONCERTINO_CORPUS") or ROOT.parent / "shared" / "corpus")
FOLDERS = [EXAMPLE, _LARGER] if _LARGER.is_dir() else [EXAMPLE]

each_corpus = pytest.mark.parametrize("corpus", FOLDERS, ids=lambda folder: folder.name)
