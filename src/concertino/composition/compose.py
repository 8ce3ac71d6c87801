"""compose(): serves several backends, such as Servers, as one.

    run(compose(math=math_server, docs=Library("docs")))

The backends of a composition are called its parts. The name of a part becomes the prefix of its
tools and prompts (`math_add`), so that their names never collide. Resources keep their URIs; if two
parts list the same resource, the composition refuses to start. Each request goes to the part that
has the tool, prompt or resource. Lists are concatenated in the order of the parts.
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
    """Combine several backends into one, which is served like any other backend.

        run(compose(math=math_server, docs=Library("docs")))

    info: the name of the combined server for clients, or its name and version; None for the
        keywords of the backends joined by `+`, such as `math+docs`.
    strict: what happens if a backend is slow or cannot start:
        - False: the other backends are served. Calls of a backend that has failed are refused with
          the reason, and calls of a slow one wait until it has started or failed.
        - True: nothing is served before all backends have started, and the start fails if one of
          them fails.
    parts: the backends (a Server, a Library, a Proxy and so on), as keyword arguments. The keyword
        and an underscore become the prefix of the names of a backend's tools and prompts: with
        compose(math=server), clients call `math_add`. Resources keep their URIs.

    Raises RegistrationError for a value that is not a Backend, and for two keywords such as `a` and
    `a_b`, because a tool `a_b_c` could belong to either. The start() of the combined backend raises
    RegistrationError if two backends list the same resource.
    """
    if not parts:
        raise RegistrationError(
            "compose: expected at least one backend, as in compose(math=server)"
        )
    # cast(): callers without a type checker may pass any object.
    untyped = cast("object", info)
    if not isinstance(untyped, str | Implementation | None):
        raise RegistrationError(
            f"compose: expected a name or an Implementation, got {type(untyped).__name__}"
        )
    if not isinstance(cast("object", strict), bool):
        raise RegistrationError(
            f"compose: strict: expected True or False, got {type(strict).__name__}; `strict` is an "
            "option, so no part can have this name"
        )
    for name, part in parts.items():
        if (got := describe_non_backend(part)) is not None:
            # The caller has probably mistyped an option, which has become one of `parts`.
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
