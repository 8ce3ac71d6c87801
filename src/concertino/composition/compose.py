"""compose(): several backends as one, each under a name.

Tools and prompts get the name of their part as a prefix (`math_add`), so their names never collide.
Resources keep their URIs; two parts that list the same resource are refused. Calls go to the part
that they belong to. Lists are concatenated in the order of the parts.
"""

from __future__ import annotations

import re
from typing import cast

from concertino.backend.interface import Backend, describe_non_backend
from concertino.composition.composed_backend import ComposedBackend
from concertino.composition.part_names import PrefixNames
from concertino.composition.rules import CompositionRules
from concertino.errors import RegistrationError
from concertino.near_names import suggestion
from concertino.types.results import Implementation

__all__ = ["compose"]

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def compose(
    info: Implementation | str | None = None, /, *, strict: bool = False, **parts: Backend
) -> ComposedBackend:
    """Combine several backends into one, which is served like any other.

    info: the server that clients see; by default the names of the parts joined by `+`.
    strict: serve nothing if one part fails to start, and wait for all of them. By default the
    others are served: calls of the part that failed get the reason, those of a slow one wait for
    it. parts: name -> backend. The name and an underscore become the prefix of its tools and
    prompts. Raises RegistrationError for a part that is not a Backend, and for names that would
    make tools collide. The same error stops the start if two parts list the same resource.
    """
    if not parts:
        raise RegistrationError(
            "compose: expected at least one backend, as in compose(math=server)"
        )
    untyped = cast("object", info)
    if not isinstance(untyped, str | Implementation | None):
        raise RegistrationError(
            f"compose: expected a name or an Implementation, got {type(untyped).__name__}"
        )
    if not isinstance(cast("object", strict), bool):
        raise RegistrationError(
            f"compose: strict: expected True or False, got {type(strict).__name__}; no part can "
            f"have this name"
        )
    for name, part in parts.items():
        if (got := describe_non_backend(part)) is not None:
            # A mistyped option looks like a part.
            hint = suggestion(name, ["strict"])
            if name in ("info", "name"):
                hint = (
                    f"; the name of the whole is the first argument, as in compose({part!r}, ...)"
                )
            raise RegistrationError(
                f"compose: {name}: expected a Server or another Backend, got {got}{hint}"
            )
        if NAME.fullmatch(name) is None:
            raise RegistrationError(
                f"compose: name: expected 1 to 64 of A-Z a-z 0-9 _ . - , got {name!r}"
            )
        if clash := next((other for other in parts if name.startswith(f"{other}_")), None):
            raise RegistrationError(
                f"compose: a tool of {name!r} and a tool of {clash!r} could get the same name, "
                f"because both begin with {clash}_; rename one of them"
            )
    if info is None or isinstance(info, str):
        info = Implementation(info or "+".join(parts), "0.0.0")
    return ComposedBackend(info, parts, PrefixNames(parts), CompositionRules(strict=strict))
