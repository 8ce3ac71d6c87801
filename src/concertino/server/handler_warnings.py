"""Describes likely mistakes in the parameters and the docstring of a handler, for the log.

When a handler is registered, check_handler() in server/functions.py does a quick test. Only if this
test finds a possible mistake, this module is imported to describe it.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable
from typing import Any

from concertino.near_names import suggestion
from concertino.schema.signature import function_of

_log = logging.getLogger("concertino.server")

__all__ = ["describe_mistakes", "warn_of_missing_annotations"]


def describe_mistakes(
    handler: Any, location: str, documented: Iterable[str], context_names: Iterable[str]
) -> list[str]:
    """Return one sentence for each likely mistake in a handler.

    location: the file and line of the handler, from handler_location() in server/functions.py.
    documented: the names of the parameters that the docstring describes.
    context_names: the names of parameters called `context` or `ctx` that have no annotation. They
        are probably meant for the Context.
    """
    function = function_of(handler)
    own = inspect.signature(handler).parameters
    # The docstring of a functools.partial or a bound method may also describe arguments that are
    # bound already. A dict removes the names that both signatures have, and keeps the order.
    names = [*{**inspect.signature(function).parameters, **own}]
    owner = f"{function.__name__}(){location}"
    mistakes = [
        f"{owner}: clients are asked for {name!r}, since it has no annotation; write "
        f"`{name}: Context` to get the context of the call (from concertino import Context)"
        for name in context_names
    ]
    for name in documented:
        if name in names:
            continue
        hint = suggestion(name, names)
        if not hint and names:
            hint = f"; its parameters are: {', '.join(names)}"
        mistakes.append(
            f"{owner}: the docstring describes {name!r}, and there is no such parameter{hint}"
        )
    return mistakes


def warn_of_missing_annotations(handler: Any, location: str) -> None:
    """Log a warning that no parameter of a tool has a type annotation.

    location: the file and line of the handler, from handler_location() in server/functions.py.
    """
    name = function_of(handler).__name__
    own = inspect.signature(handler).parameters
    parameters = ", ".join(f"{parameter}: ..." for parameter in own)
    _log.warning(
        "%s()%s: no parameter has a type, so models are not told any, and every JSON value is "
        "accepted; write `def %s(%s)` with types (reported once)",
        name,
        location,
        name,
        parameters,
    )
