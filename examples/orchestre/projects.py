"""Creates projects from templates: folders of files with the placeholder `{{projectName}}`.

A project is created with all of its files or not at all: it is written to a temporary folder, which
is then renamed. Nothing is written outside ORCHESTRE_ROOT (by default: the current folder).
"""

import errno
import os
import re
import shutil
import tempfile
from pathlib import Path

from msgspec import Struct

from concertino import ToolError

__all__ = ["Project", "create", "templates"]

TEMPLATES = Path(__file__).parent / "templates"
NAME = re.compile(r"[a-z0-9-]{1,100}")
PLACEHOLDER = "{{projectName}}"


class Project(Struct, frozen=True, rename="camel"):
    """A new project. files: relative to path. next_steps: commands to run in it."""

    project_name: str
    template: str
    path: str
    files: list[str]
    next_steps: list[str]


NEXT_STEPS = {
    "makerkit-nextjs": ["cp .env.example .env.local", "npm install", "npm run dev"],
    "cloudflare-hono": ["npm install", "npm run dev", "npm run deploy"],
}


def templates() -> list[str]:
    """Return the names of the available templates."""
    return [name for name in NEXT_STEPS if (TEMPLATES / name).is_dir()]


def create(name: str, template: str, path: str) -> Project:
    """Create a project in a new folder inside `path`. Raises ToolError if it cannot be created."""
    if NAME.fullmatch(name) is None:
        raise ToolError(
            "INVALID_PROJECT_NAME",
            f"Invalid project name: {name[:100]!r}",
            suggestion="Use 1 to 100 of the characters a-z, 0-9 and -",
        )
    if template not in templates():
        raise ToolError(
            "TEMPLATE_NOT_FOUND",
            "Template not found",
            availableTemplates=templates(),
            suggestion="Choose one of the available templates",
        )
    root = Path(os.environ.get("ORCHESTRE_ROOT") or Path.cwd()).resolve()
    target = None
    try:
        # Symbolic links are resolved first, since they could lead out of the root.
        parent = Path(os.path.realpath(root / path))
        if not parent.is_relative_to(root):
            raise PermissionError
        parent.mkdir(parents=True, exist_ok=True)
        target = parent / name
        # Only one of several concurrent calls can create the folder.
        target.mkdir()
    except FileExistsError:
        if target is None:
            raise _unfit(path) from None
        raise ToolError(
            "PROJECT_EXISTS",
            f"{target} already exists",
            suggestion="Choose another name, or remove the existing folder",
        ) from None
    except (OSError, ValueError) as exc:
        # A NUL in the path raises ValueError.
        raise _denied(path, root) if _is_denied(exc) else _unfit(path) from None
    return Project(
        name, template, str(target), _write(target, root, name, template), NEXT_STEPS[template]
    )


def _unfit(path: str) -> ToolError:
    return ToolError(
        "INVALID_PROJECT_PATH",
        f"{path[:200]!r} is not a folder and cannot be created",
        suggestion="Pass the folder in which the project's folder is to be created",
    )


def _is_denied(exc: BaseException) -> bool:
    # create() raises a PermissionError without errno.
    denied = (None, errno.EACCES, errno.EPERM, errno.EROFS)
    return isinstance(exc, OSError) and exc.errno in denied


def _denied(path: str, root: Path) -> ToolError:
    return ToolError(
        "PERMISSION_DENIED",
        f"Projects cannot be written to {path[:200]!r}",
        suggestion=(
            f"Choose a folder inside {root} that is writable, or start the server with "
            "another ORCHESTRE_ROOT"
        ),
    )


def _write(target: Path, root: Path, name: str, template: str) -> list[str]:
    """Write all files or none, and return their paths. target: an empty folder; it is replaced."""
    source = TEMPLATES / template
    files = sorted(file.relative_to(source) for file in source.rglob("*") if file.is_file())
    beside = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
    try:
        beside.chmod(0o755)
        for file in files:
            (beside / file).parent.mkdir(parents=True, exist_ok=True)
            text = (source / file).read_text(encoding="utf-8").replace(PLACEHOLDER, name)
            (beside / file).write_text(text, encoding="utf-8")
        # This replaces the empty folder.
        beside.rename(target)
    except BaseException as exc:
        shutil.rmtree(beside, ignore_errors=True)
        try:
            target.rmdir()
        except OSError:
            # Another process has put a file there.
            pass
        if _is_denied(exc):
            raise _denied(str(target.parent), root) from None
        raise
    return [str(file) for file in files]
