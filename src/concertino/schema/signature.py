"""Reads signatures of handlers: parameters, resolved annotations, and the return annotation.

Handlers may be functions, bound methods, class methods, callable objects, `functools.partial`
objects and wrappers made with `functools.wraps`. String annotations are resolved. type_schema.py
converts annotations to schemas.

Importing `inspect` takes no extra time, because msgspec and asyncio import it as well.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from types import SimpleNamespace, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from msgspec import Struct

from concertino.errors import RegistrationError

# Stands for "no default" and "no annotation"; compared by identity.
MISSING: Any = inspect.Parameter.empty
_AWAITABLES = (Awaitable, Coroutine)


class Parameter(Struct, frozen=True):
    """One parameter of a handler.

    annotation: the resolved annotation; typing.Any if there is none.
    default: the default in the function's signature, or MISSING.
    keyword_only: whether the parameter can only be passed by name.
    injected: whether the server fills the parameter, because its annotation is a class such as
        Context (see `inject` of read_signature()).
    """

    name: str
    annotation: Any
    default: Any
    keyword_only: bool
    injected: bool


class Signature(Struct, frozen=True):
    """The signature of a handler.

    name: the function's qualified name, for messages.
    parameters: the parameters that a caller can pass, in order.
    returns: the return annotation, or T for Awaitable[T] and Coroutine[..., T]; typing.Any if there
        is none.
    """

    name: str
    parameters: list[Parameter]
    returns: Any


def read_signature(handler: Callable[..., object], inject: tuple[type, ...] = ()) -> Signature:
    """Return the signature of a callable.

    handler: a function, a method, a class, a callable object, a `functools.partial`, or a wrapper
        made with `functools.wraps`.
    inject: classes, such as Context. The server fills parameters with such an annotation.
    Raises RegistrationError for *args, **kwargs, annotations that cannot be resolved, and callables
    whose signature Python does not know. The error names the function and the parameter.
    """
    function = function_of(handler)
    name = getattr(function, "__qualname__", type(handler).__qualname__).rpartition("<locals>.")[2]
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        raise RegistrationError(
            f"{name}: its signature cannot be read; wrap it in a `def` with annotations"
        ) from None

    hints = _resolve_hints(function, name, inject)
    parameters: list[Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise RegistrationError(
                f"{name}(): {stars}{parameter.name} has no names that a client could use; write "
                f"each parameter out, or take one list or dict"
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
    while get_origin(returns) in _AWAITABLES:
        returns = get_args(returns)[-1]
    return Signature(name, parameters, Any if returns is MISSING else returns)


def function_of(handler: Any) -> Any:
    """Return the function whose annotations describe the handler.

    handler: any callable. For a class this is its __init__, for a callable object its __call__.
    """
    # Return nearly every handler here, because the steps below take 4 us, and this function is
    # called six times for each tool.
    if inspect.isfunction(handler) and not hasattr(handler, "__wrapped__"):
        return handler
    while isinstance(handler, functools.partial):
        handler = handler.func
    handler = inspect.unwrap(handler)
    if inspect.isclass(handler):
        return handler.__init__
    if not inspect.isroutine(handler):
        handler = type(handler).__call__
    return inspect.unwrap(getattr(handler, "__func__", handler))


def _resolve_hints(function: Any, name: str, inject: tuple[type, ...]) -> dict[str, Any]:
    """Return the resolved annotations by parameter name. Raises RegistrationError."""
    annotations: dict[str, Any] = getattr(function, "__annotations__", {})
    scope: dict[str, Any] = getattr(function, "__globals__", {})

    # Annotations may use names that are not globals: type parameters, variables of an enclosing
    # function, and the injected classes, because users often import Context under TYPE_CHECKING
    # only.
    local: dict[str, Any] = {cls.__name__: cls for cls in inject if cls.__name__ not in scope}
    local |= {variable.__name__: variable for variable in getattr(function, "__type_params__", ())}
    code = getattr(function, "__code__", None)
    names = code.co_freevars if code else ()
    for variable, cell in zip(names, getattr(function, "__closure__", None) or (), strict=True):
        try:
            local[variable] = cell.cell_contents
        except ValueError:
            # The enclosing function has not assigned the variable yet.
            pass

    try:
        return get_type_hints(
            function, localns=scope | local if local else None, include_extras=True
        )
    except Exception:
        # Annotations are code and may raise any exception. Find the annotation that has raised.
        for parameter, annotation in annotations.items():
            try:
                single: Any = SimpleNamespace(__annotations__={parameter: annotation})
                get_type_hints(single, scope, scope | local, include_extras=True)
            except Exception as exc:
                raise RegistrationError(
                    f"{name}(): the annotation {annotation!r} of {parameter!r} cannot be resolved "
                    f"({exc}); import or define the name at module level, outside "
                    f"`if TYPE_CHECKING`"
                ) from None
        raise


def is_injected(annotation: Any, inject: tuple[type, ...]) -> bool:
    """Return whether an annotation is one of the classes in `inject`.

    The class may be inside Annotated, or in a union with None.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return is_injected(arguments[0], inject)
    if origin is Union or origin is UnionType:
        return all(member is type(None) or is_injected(member, inject) for member in arguments)
    return annotation in inject or origin in inject
