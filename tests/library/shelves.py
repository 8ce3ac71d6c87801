"""Folders of Markdown to test with, and the corpus, which is read from where it lies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

__all__ = ["CORPUS", "corpus", "fill"]

CORPUS = Path(os.environ.get("CONCERTINO_CORPUS") or Path(__file__).parents[3] / "shared" / "corpus")
corpus = pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no corpus at {CORPUS}")


def fill(folder: Path, files: dict[str, str | bytes]) -> Path:
    """Write files below a folder, and give it back."""
    for path, content in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    folder.mkdir(parents=True, exist_ok=True)
    return folder
