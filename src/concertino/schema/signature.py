"""What a handler takes and gives, read from the callable: parameters in order, resolved annotations, the return.

Functions, bound and class methods, callable objects, `functools.partial` and `functools.wraps` are understood; string
annotations are resolved. What the annotations mean in JSON is schema.py's.
`inspect` is used freely: msgspec and asyncio have imported it already (measured: 0 ms), signature() costs 8 us.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from types import SimpleNamespace, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from msgspec import Struct

from concertino.errors import RegistrationError

__all__ = ["MISSING", "Parameter", "Signature", "function_of", "is_injected", "read"]

MISSING: Any = inspect.Parameter.empty  # no default; compared by identity
_ABSTRACT = (Awaitable, Coroutine)


class Parameter(Struct, frozen=True):
    """One parameter. annotation: Any when there is none; default: the function's own object, or MISSING."""

    name: str
    annotation: Any  # annotations are arbitrary objects
    default: Any
    keyword_only: bool
    injected: bool


class Signature(Struct, frozen=True):
    """name: for messages. returns: the annotation without Awaitable or Coroutine around it, Any when there is none."""

    name: str
    parameters: list[Parameter]
    returns: Any


def read(handler: Callable[..., object], inject: tuple[type, ...] = ()) -> Signature:
    """Read a callable.

    inject: classes whose parameters are filled by the caller of bind(); they are `injected`.
    Raises RegistrationError, naming function and parameter, for *args, **kwargs, annotations that cannot be resolved
    and callables without a readable signature.
    """
    function = function_of(handler)
    name = getattr(function, "__qualname__", type(handler).__qualname__).rpartition("<locals>.")[2]
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        raise RegistrationError(
            f"{name}: its signature cannot be read; wrap it in a `def` with annotations"
        ) from None
    hints = _hints(function, name, inject)
    parameters: list[Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise RegistrationError(
                f"{name}(): {stars}{parameter.name} has no names a caller could know; write each parameter out, "
                f"or take one list or dict"
            )
        annotation = hints.get(parameter.name, parameter.annotation)
        if annotation is MISSING:
            annotation = Any
        keyword_only = parameter.kind is parameter.KEYWORD_ONLY
        injected = is_injected(annotation, inject)
        parameters.append(
            Parameter(parameter.name, annotation, parameter.default, keyword_only, injected)
        )
    returns = hints.get("return", signature.return_annotation)
    while get_origin(returns) in _ABSTRACT:
        returns = get_args(returns)[-1]
    return Signature(name, parameters, Any if returns is MISSING else returns)


def function_of(handler: Any) -> Any:  # Any: it looks at attributes of whatever is callable
    """The function whose annotations describe the handler."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    handler = inspect.unwrap(handler)
    if inspect.isclass(handler):
        return handler.__init__
    if not inspect.isroutine(handler):
        handler = type(handler).__call__
    return inspect.unwrap(getattr(handler, "__func__", handler))


def _hints(function: Any, name: str, inject: tuple[type, ...]) -> dict[str, Any]:
    annotations: dict[str, Any] = getattr(function, "__annotations__", {})
    scope: dict[str, Any] = getattr(function, "__globals__", {})
    # What the function closes over, its type parameters, and the injected classes by name: people import Context
    # under TYPE_CHECKING only.
    local: dict[str, Any] = {cls.__name__: cls for cls in inject if cls.__name__ not in scope}
    local |= {variable.__name__: variable for variable in getattr(function, "__type_params__", ())}
    code = getattr(function, "__code__", None)
    for variable, cell in zip(
        code.co_freevars if code else (), getattr(function, "__closure__", None) or (), strict=True
    ):
        try:
            local[variable] = cell.cell_contents
        except ValueError:  # not assigned yet
            pass
    try:
        return get_type_hints(
            function, localns=scope | local if local else None, include_extras=True
        )
    except Exception:  # annotations are code: a name, an attribute, a syntax error, anything
        for parameter, annotation in annotations.items():
            try:
                single: Any = SimpleNamespace(__annotations__={parameter: annotation})
                get_type_hints(single, scope, scope | local, include_extras=True)
            except Exception as error:
                raise RegistrationError(
                    f"{name}(): the annotation {annotation!r} of {parameter!r} cannot be resolved ({error}); import or "
                    f"define the name at module level, outside `if TYPE_CHECKING`"
                ) from None
        raise


def is_injected(annotation: Any, inject: tuple[type, ...]) -> bool:
    """Whether an annotation asks for one of these classes: the class itself, in an `Annotated`, or with `| None`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return is_injected(arguments[0], inject)
    if origin is Union or origin is UnionType:  # Context | None
        return all(member is type(None) or is_injected(member, inject) for member in arguments)
    return annotation in inject or origin in inject
