"""Folders of Markdown to test with."""

from __future__ import annotations

from pathlib import Path

__all__ = ["fill"]


def fill(folder: Path, files: dict[str, str | bytes]) -> Path:
    """Write files below a folder, and give it back."""
    for path, content in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    folder.mkdir(parents=True, exist_ok=True)
    return folder
