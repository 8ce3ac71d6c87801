"""Warnings of likely mistakes in a handler's parameters and docstring, when it is registered.

functions.check_handler() tells cheaply whether there may be a mistake. Only then is this module
loaded, to find the mistakes and write the messages.
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
    handler: Any, location: str, documented: Iterable[str], contexts: Iterable[str]
) -> list[str]:
    """Return a sentence for each likely mistake.

    location: where the handler is defined, from functions.handler_location().
    documented: the parameters that the docstring describes.
    contexts: parameters without annotation that are probably meant for the Context.
    """
    function = function_of(handler)
    own = inspect.signature(handler).parameters
    # Arguments that are bound already may be documented, too.
    names = [*{**inspect.signature(function).parameters, **own}]
    owner = f"{function.__name__}(){location}"
    mistakes = [
        f"{owner}: clients are asked for {name!r}, since it has no annotation; write "
        f"`{name}: Context` to get the context of the call (from concertino import Context)"
        for name in contexts
    ]
    return mistakes + [
        f"{owner}: the docstring describes {name!r}, and there is no such parameter"
        + suggestion(name, names)
        for name in documented
        if name not in names
    ]


def warn_of_missing_annotations(handler: Any, location: str) -> None:
    """Log a warning that no parameter of a tool has a type annotation.

    location: where the handler is defined, from functions.handler_location().
    """
    name = function_of(handler).__name__
    parameters = ", ".join(f"{name}: ..." for name in inspect.signature(handler).parameters)
    _log.warning(
        "%s()%s: no parameter has a type, so models are not told any, and every JSON value is "
        "accepted; write `def %s(%s)` with types (reported once)",
        name,
        location,
        name,
        parameters,
    )
