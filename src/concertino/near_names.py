"""Suggestions for names that do not exist: registered names and keyword arguments.

The module difflib is imported only after a mistake, because the import takes 4 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec import Struct

__all__ = [
    "HintingStructMeta",
    "hint_keywords",
    "hint_keywords_or",
    "nearest_name",
    "suggestion",
    "unknown_keyword",
]

F = TypeVar("F", bound=Callable[..., Any])


def nearest_name(
    name: str,
    known: Iterable[str],
    similarity: float = 0.6,
) -> str | None:
    """Return the known name that is most similar to a name; None if none is similar enough.

    known: the names that exist.
    similarity: how similar the name must be, from 0 to 1: the `cutoff` of get_close_matches() in
        the standard library's difflib.
    """
    from difflib import get_close_matches

    close = get_close_matches(name, list(known), 1, similarity)
    return close[0] if close else None


def suggestion(
    name: str,
    known: Iterable[str],
    similarity: float = 0.6,
) -> str:
    """Return `; did you mean 'x'?` with the most similar known name, or "" if none is similar.

    known: the names that exist.
    similarity: how similar the name must be, from 0 to 1: the `cutoff` of get_close_matches() in
        the standard library's difflib.
    """
    close = nearest_name(name, known, similarity)
    return "" if close is None else f"; did you mean {close!r}?"


def unknown_keyword(owner: str, keyword: str, known: Iterable[str], advice: str = "") -> TypeError:
    """Return the error for a keyword argument that does not exist, with a suggestion.

    owner: the name of the called function or class, such as `Server`.
    known: the keyword arguments that exist.
    advice: the end of the message if no known argument is similar; "" for a list of `known`.
    """
    names = list(known)
    advice = advice or f"the options are {', '.join(names)}"
    hint = suggestion(keyword, names) or f"; {advice}"
    return TypeError(f"{owner}: got an unexpected keyword argument {keyword!r}{hint}")


def hint_keywords(function: F) -> F:
    """Return a function like `function` whose errors for unknown keywords contain a suggestion.

    Use it as a decorator of a function or an `__init__`. For example, `Server("x", titel="X")`
    raises a TypeError that ends with "did you mean 'title'?".
    """
    # Python itself makes such suggestions only since 3.13.
    return _hint(function, "")


def hint_keywords_or(advice: str) -> Callable[[F], F]:
    """Return a decorator like hint_keywords() that gives an advice if no parameter is similar.

    The TypeError for an unknown keyword suggests the parameter with the most similar name. If no
    parameter has a similar name, the error ends with `advice`.
    """

    def decorate(function: F) -> F:
        return _hint(function, advice)

    return decorate


def _hint(function: F, advice: str) -> F:
    """Return a wrapper of a function whose errors for unknown keywords contain a suggestion."""

    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            return function(*args, **keywords)
        except TypeError:
            # Imported only after a mistake, because inspect takes long to import and to use.
            from inspect import signature

            parameters = [name for name in signature(function).parameters if name != "self"]
            unknown = keywords.keys() - set(parameters)
            if not unknown:
                raise
            owner = function.__qualname__.removesuffix(".__init__")
            raise unknown_keyword(owner, min(unknown), parameters, advice) from None

    return cast("F", call)


if TYPE_CHECKING:
    # Type checkers find mistyped fields without the metaclass.
    HintingStructMeta = type(Struct)
else:

    class HintingStructMeta(type(Struct)):
        """The metaclass of Structs that users create: errors for unknown fields get a suggestion.

        msgspec's decoders do not call it, so it does not slow them down.
        """

        def __call__(cls, *args, **fields):
            try:
                return super().__call__(*args, **fields)
            except TypeError:
                unknown = fields.keys() - set(cls.__struct_fields__)
                if not unknown:
                    raise
                known = cls.__struct_fields__
                raise unknown_keyword(cls.__name__, min(unknown), known) from None
