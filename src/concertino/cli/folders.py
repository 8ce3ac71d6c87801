"""Folders of Markdown as targets of `concertino serve`: finds the folders of a library.

A library is a Backend that serves the Markdown files of a folder as resources, and of another
folder as prompts.
The folders come from a target (`concertino serve DIR`), from options such as --resources, or from
the environment variables RESOURCES_PATH and PROMPTS_PATH.
"""

from __future__ import annotations

import os

from msgspec import Struct

from concertino.backend.interface import Backend
from concertino.errors import RegistrationError, TargetError

# Also the default of Library. It does not change, because clients may have stored such URIs.
DEFAULT_SCHEME = "orchestr8"
# The default version of Server and Library.
NO_VERSION = "0.0.0"


class MissingFolders(TargetError):
    """Raised if options or environment variables name folders, and none of the folders exists."""


class LibraryOptions(Struct, frozen=True):
    """The values of the options for a library, a backend that serves Markdown files.

    resources, prompts: the folders of the library's Markdown files; None if no option names one.
    scheme: the scheme of the resources' URIs; None for the default.
    name, version: the name and version of the server that clients see; None for the defaults. If
        `serve` joins several targets, they are those of the joined server, not of the library.
    """

    resources: str | None = None
    prompts: str | None = None
    scheme: str | None = None
    name: str | None = None
    version: str | None = None

    @property
    def names_folder(self) -> bool:
        """Return whether `resources` or `prompts` is given."""
        return self.resources is not None or self.prompts is not None


def folders_from_environment() -> LibraryOptions:
    """Return the folders that RESOURCES_PATH and PROMPTS_PATH name, as LibraryOptions."""
    # An empty variable counts as not set.
    return LibraryOptions(
        resources=os.environ.get("RESOURCES_PATH") or None,
        prompts=os.environ.get("PROMPTS_PATH") or None,
    )


def find_library_folders(
    target: str | None, options: LibraryOptions
) -> tuple[str | None, str | None]:
    """Return the folder of resources and the folder of prompts of a library. Each may be None.

    For each of the two, the option comes first. Without the option, it is the subfolder of the
    target. Without a target, it is the folder in RESOURCES_PATH or PROMPTS_PATH.

    target: a folder with a subfolder `resources` or `prompts`; None for no target.
    Raises TargetError for a target without these subfolders, unless an option names a folder.
    """
    if target is None:
        found = folders_from_environment()
        return options.resources or found.resources, options.prompts or found.prompts
    if not os.path.isdir(target):
        raise TargetError(f"{target}: expected a folder")

    resources, prompts = (
        path if os.path.isdir(path) else None
        for path in (os.path.join(target, name) for name in ("resources", "prompts"))
    )
    # Refuse any other folder, so that a wrong folder is not published by mistake.
    if not (resources or prompts or options.names_folder):
        hint = "--resources DIR serves a folder itself"
        raise TargetError(f"{target}: expected resources/ or prompts/ in it; {hint}")
    return options.resources or resources, options.prompts or prompts


def make_library(target: str | None, options: LibraryOptions) -> Backend:
    """Return a backend that serves the Markdown files in the folders of a library.

    target: a folder, such as `.`; None to take the folders from the options or the environment.
    Raises TargetError if no folder is named, and MissingFolders if none of them exists.
    """
    from concertino.library.library import Library

    resources, prompts = find_library_folders(target, options)
    if resources is None and prompts is None:
        raise TargetError(
            "nothing to serve: expected a target, --resources, --prompts, RESOURCES_PATH or "
            "PROMPTS_PATH"
        )
    named = [path for path in (resources, prompts) if path is not None]
    if not any(map(os.path.isdir, named)):
        paths = " and ".join(named)
        raise MissingFolders(f"a library: expected a folder, there is none at {paths}")
    try:
        return Library(
            resources,
            prompts,
            scheme=options.scheme or DEFAULT_SCHEME,
            name=options.name,
            version=options.version or NO_VERSION,
        )
    except RegistrationError as exc:
        raise TargetError(f"{target}: {exc}" if target else str(exc)) from None
