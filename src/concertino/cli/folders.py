"""Folders of Markdown as targets: `concertino serve DIR`, and --resources, --prompts, --scheme.

The variables RESOURCES_PATH and PROMPTS_PATH apply if no target is given.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from concertino.backend.interface import Backend
from concertino.errors import RegistrationError, TargetError

if TYPE_CHECKING:
    # The type of a parser or an argument group has no public name.
    from argparse import _ActionsContainer  # pyright: ignore[reportPrivateUsage]

__all__ = ["Folders", "add_options", "folders_of", "library", "places"]


class Folders(Struct, frozen=True):
    """The options for a library, and the values of the variables for it. None if not given."""

    resources: str | None = None
    prompts: str | None = None
    scheme: str | None = None

    def __bool__(self) -> bool:
        return self.resources is not None or self.prompts is not None


def add_options(group: _ActionsContainer) -> None:
    """Add the options that say where a library is."""
    group.add_argument(
        "--resources",
        metavar="DIR",
        help="folder of resources (default: DIR/resources, or RESOURCES_PATH)",
    )
    group.add_argument(
        "--prompts", metavar="DIR", help="folder of prompts (default: DIR/prompts, or PROMPTS_PATH)"
    )
    group.add_argument(
        "--scheme", metavar="NAME", help="scheme of the resource URIs (default: orchestr8)"
    )


def folders_of(environment: Mapping[str, str]) -> Folders:
    """Return the values of RESOURCES_PATH and PROMPTS_PATH; an empty variable counts as unset."""
    return Folders(
        environment.get("RESOURCES_PATH") or None, environment.get("PROMPTS_PATH") or None
    )


def places(
    target: str | None, options: Folders, environment: Mapping[str, str] = os.environ
) -> tuple[str | None, str | None]:
    """Return the folders of resources and prompts of a library; None for one that it does not have.

    Options take precedence over the target. The environment is used only without a target. A target
    contains `resources/`, `prompts/` or both, so that a folder that was named by mistake is not
    published. Raises TargetError for a target that contains neither.
    """
    if target is None:
        variables = folders_of(environment)
        return options.resources or variables.resources, options.prompts or variables.prompts

    if not os.path.isdir(target):
        raise TargetError(f"{target}: expected a folder")
    resources, prompts = (
        path if os.path.isdir(path) else None
        for path in (os.path.join(target, name) for name in ("resources", "prompts"))
    )
    if not (resources or prompts or options):
        raise TargetError(
            f"{target}: expected resources/ or prompts/ in it;"
            " --resources DIR takes a folder as it is"
        )
    return options.resources or resources, options.prompts or prompts


def library(target: str | None, options: Folders) -> Backend:
    """Return a Library of the folders that places() finds.

    Raises TargetError if there are none, or if the Library refuses them.
    """
    from concertino.library.library import Library

    resources, prompts = places(target, options)
    if resources is None and prompts is None:
        raise TargetError(
            "nothing to serve: expected a target, --resources, --prompts, RESOURCES_PATH"
            " or PROMPTS_PATH"
        )
    try:
        return Library(resources, prompts, scheme=options.scheme or "orchestr8")
    except RegistrationError as exc:
        raise TargetError(f"{target}: {exc}" if target else str(exc)) from None
