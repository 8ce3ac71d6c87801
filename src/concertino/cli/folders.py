"""Folders as targets: `concertino serve DIR`, `--resources`, `--prompts`, and the variables RESOURCES_PATH and PROMPTS_PATH."""

from __future__ import annotations

import os
from argparse import _ActionsContainer as ActionsContainer  # pyright: ignore[reportPrivateUsage]  # it has no public name
from collections.abc import Mapping

from msgspec import Struct

from concertino.backend.interface import Backend
from concertino.errors import RegistrationError, TargetError

__all__ = ["Folders", "add_options", "folders_of", "library", "places"]


class Folders(Struct, frozen=True):
    """What the command line says of a library besides its target."""

    resources: str | None = None
    prompts: str | None = None
    scheme: str | None = None

    def __bool__(self) -> bool:
        return self.resources is not None or self.prompts is not None


def add_options(group: ActionsContainer) -> None:
    """The options that say where a library is."""
    group.add_argument(
        "--resources", metavar="DIR", help="its resources (else DIR/resources, or RESOURCES_PATH)"
    )
    group.add_argument(
        "--prompts", metavar="DIR", help="its prompts (else DIR/prompts, or PROMPTS_PATH)"
    )
    group.add_argument("--scheme", metavar="NAME", help="of its URIs (default orchestr8)")


def folders_of(environment: Mapping[str, str]) -> Folders:
    """What RESOURCES_PATH and PROMPTS_PATH say."""
    return Folders(
        environment.get("RESOURCES_PATH") or None, environment.get("PROMPTS_PATH") or None
    )


def places(
    target: str | None, given: Folders, environment: Mapping[str, str] = os.environ
) -> tuple[str | None, str | None]:
    """Where the resources and the prompts of a library are: as the options say, else in the target, else in the environment.

    A target holds `resources/`, `prompts/` or both: a folder that was named by mistake must not show what lies in it. The
    environment counts only without a target. Raises TargetError for a target that holds neither.
    """
    if target is None:
        said = folders_of(environment)
        found = said.resources, said.prompts
    elif not os.path.isdir(target):
        raise TargetError(f"{target}: expected a folder")
    else:
        inside = [os.path.join(target, name) for name in ("resources", "prompts")]
        resources, prompts = (each if os.path.isdir(each) else None for each in inside)
        found = resources, prompts
        if not (resources or prompts or given):
            raise TargetError(
                f"{target}: expected resources/ or prompts/ in it; --resources DIR takes a folder as it is"
            )
    return given.resources or found[0], given.prompts or found[1]


def library(target: str | None, given: Folders) -> Backend:
    """A library of what places() found. Raises TargetError if there is nothing to serve."""
    from concertino.library.library import Library

    resources, prompts = places(target, given)
    if resources is None and prompts is None:
        raise TargetError(
            "nothing to serve: expected a target, --resources, --prompts, RESOURCES_PATH or PROMPTS_PATH"
        )
    try:
        return Library(resources, prompts, scheme=given.scheme or "orchestr8")
    except RegistrationError as why:
        raise TargetError(f"{target}: {why}" if target else str(why)) from None
