"""What tests install once and keep below .tools. Several runs and workers may want the same at the same time: they take turns."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TOOLS = Path(__file__).parents[2] / ".tools"


@contextmanager
def alone_in(name: str) -> Iterator[Path]:
    """A folder that is kept, which nobody else fills in the meantime."""
    folder = TOOLS / name
    folder.mkdir(parents=True, exist_ok=True)
    with open(TOOLS / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def python_with(name: str, requirement: str) -> Path:
    """An interpreter that has a package, in an environment made once."""
    with alone_in(f"{name}-venv-{sys.version_info.major}.{sys.version_info.minor}") as folder:
        python = folder / "bin" / "python"
        if not (folder / "complete").exists():
            venv.create(folder, clear=True, with_pip=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", requirement], check=True)
            (folder / "complete").touch()
        return python
