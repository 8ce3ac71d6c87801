"""New projects from templates: folders of real files beside this one, in which `{{projectName}}` stands for the name.

A project is there with all of its files or not at all: it is written beside its place, and moved there in one step. Nothing is
written outside of one folder, ORCHESTRE_ROOT or the current one.
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
    """files: written, relative to path. next_steps: commands to run there."""

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
    """Their names, as NEXT_STEPS has them."""
    return [name for name in NEXT_STEPS if (TEMPLATES / name).is_dir()]


def create(name: str, template: str, path: str) -> Project:
    """Make a project in a folder of its own in `path`. Raises ToolError for whatever is in the way."""
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
        parent = Path(os.path.realpath(root / path))  # links followed: where it really is
        if not parent.is_relative_to(root):
            raise PermissionError
        parent.mkdir(parents=True, exist_ok=True)
        target = parent / name
        target.mkdir()  # whoever makes it has it
    except FileExistsError:
        if target is None:
            raise _unfit(path) from None
        raise ToolError(
            "PROJECT_EXISTS",
            f"There is something at {target} already",
            suggestion="Choose another name, or remove what is there",
        ) from None
    except (OSError, ValueError) as why:  # ValueError: a NUL
        raise _denied(path, root) if _is_denied(why) else _unfit(path) from None
    return Project(
        name, template, str(target), _write(target, root, name, template), NEXT_STEPS[template]
    )


def _unfit(path: str) -> ToolError:
    return ToolError(
        "INVALID_PROJECT_PATH",
        f"{path[:200]!r} is no folder, and cannot become one",
        suggestion="Give the folder that the project's own folder is to be made in",
    )


def _is_denied(why: BaseException) -> bool:
    return isinstance(why, OSError) and why.errno in (
        None,
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
    )  # None: ours, above


def _denied(path: str, root: Path) -> ToolError:
    return ToolError(
        "PERMISSION_DENIED",
        f"Projects cannot be written to {path[:200]!r}",
        suggestion=f"Choose a folder inside of {root} that may be written, or start the server with another ORCHESTRE_ROOT",
    )


def _write(target: Path, root: Path, name: str, template: str) -> list[str]:
    """All files, or none. target: an empty folder, which becomes the project."""
    source = TEMPLATES / template
    files = sorted(each.relative_to(source) for each in source.rglob("*") if each.is_file())
    beside = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
    try:
        beside.chmod(0o755)
        for file in files:
            (beside / file).parent.mkdir(parents=True, exist_ok=True)
            text = (source / file).read_text(encoding="utf-8").replace(PLACEHOLDER, name)
            (beside / file).write_text(text, encoding="utf-8")
        beside.rename(target)  # takes the place of the empty folder
    except BaseException as why:
        shutil.rmtree(beside, ignore_errors=True)
        try:
            target.rmdir()
        except OSError:  # somebody else has put something there
            pass
        if _is_denied(why):
            raise _denied(str(target.parent), root) from None
        raise
    return [str(file) for file in files]
