"""project_version(): finds the version of the project that a module belongs to, for Server(...).

The version is in the project's pyproject.toml, or in the name of the .dist-info directory of the
installed distribution. importlib.metadata is not used, because its import takes 10 ms.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["find_root", "project_version"]

# A longer pyproject.toml is not read.
MAX_BYTES = 2**20
INSTALLED = ("site-packages", "dist-packages")


def project_version(file: str) -> str:
    """Return the version of the project of a Python file; "" if none is found. Raises nothing.

    For an installed module, this is the version of the distribution that has the module's name. For
    any other file, it is the version in the pyproject.toml next to the module or to its top-level
    package. If these are in a directory named `src`, its parent may have the pyproject.toml.
    """
    root, name = find_root(file)
    try:
        if root.name in INSTALLED:
            return _installed_version(root, name)
        version = _read_version(root / "pyproject.toml")
        if not version and root.name == "src":
            version = _read_version(root.parent / "pyproject.toml")
        return version
    except OSError:
        return ""


def find_root(file: str) -> tuple[Path, str]:
    """Return the directory from which a file is imported, and the name of what is imported.

    The name is that of the top-level package, or of the module if it is in no package.
    """
    path = Path(file).absolute()
    folder, name = path.parent, path.stem
    while (folder / "__init__.py").is_file():
        folder, name = folder.parent, folder.name
    return folder, name


def _read_version(path: Path) -> str:
    """Return `version` of the table `project` of a pyproject.toml; "" without one."""
    if not path.is_file():
        return ""
    import tomllib

    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        return ""
    try:
        version = tomllib.loads(data.decode()).get("project", {}).get("version")
    except (AttributeError, ValueError):
        return ""
    return version if isinstance(version, str) else ""


def _installed_version(root: Path, name: str) -> str:
    """Return the version of the distribution `name` in a directory of packages; "" without one."""
    wanted = _normalize(name)
    for item in root.glob("*.dist-info"):
        project, _, version = item.stem.rpartition("-")
        if _normalize(project) == wanted:
            return version
    return ""


def _normalize(name: str) -> str:
    """Return the name of a distribution in lower case with "_" for "-" and "." (PEP 503)."""
    return name.lower().replace("-", "_").replace(".", "_")
