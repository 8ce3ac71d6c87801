"""Completion: values to choose from for the arguments of prompts and the variables of resource templates.

A Literal, an Enum or a bool completes by itself; for others a function says what there is.
Spec: 2026-07-28 server/utilities/completion.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from typing import Any, Protocol, cast

from msgspec import DecodeError, Struct

from concertino.backend.interface import Call, Context
from concertino.errors import RegistrationError
from concertino.schema.return_values import InvalidResult
from concertino.schema.signature import read_signature
from concertino.server.functions import (
    Bound,
    Function,
    Handler,
    InThread,
    StringArguments,
    call_handler,
    make_function,
)
from concertino.server.settings import check_setting
from concertino.server.tool_errors import invalid_params, shorten, unknown_name
from concertino.types.results import CompleteParams, CompleteResult, Completion, PromptReference

__all__ = ["Completable", "Completer", "complete", "completer", "completers_of"]

MAX_VALUES = 100  # 2026-07-28 server/utilities/completion


class Completer(Struct, frozen=True):
    """Values for one argument: these, or what the function says. bind: value, other arguments, Context -> its arguments."""

    choices: tuple[str, ...] = ()
    function: Function | None = None
    bind: Callable[[str, Mapping[str, str], Context], Bound] | None = None


def completers_of(texts: StringArguments) -> dict[str, Completer]:
    """What the parameters' own types can complete."""
    found = {name: Completer(tuple(texts.choices(name))) for name in texts.schemas}
    return {name: each for name, each in found.items() if each.choices}


def completer(handler: Handler, what: str) -> Completer:
    """A function of the value so far, and of the other arguments if it takes a second parameter; a Context where it asks for one.

    Raises RegistrationError for one that takes anything else.
    """
    made = make_function(handler, what, inline=False)
    parameters = read_signature(handler, (Context,)).parameters
    asked = [each for each in parameters if not each.injected]
    if not 1 <= len(asked) <= 2:
        raise RegistrationError(
            f"{what}: expected a function of (value) or (value, arguments), got {len(asked)} parameters"
        )

    def bind(value: str, others: Mapping[str, str], context: Context) -> Bound:
        given: list[Any] = [value, others]
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for each in parameters:
            one: Any = context if each.injected else given.pop(0)
            if each.keyword_only:
                kwargs[each.name] = one
            else:
                args.append(one)
        return tuple(args), kwargs

    return Completer(function=made, bind=bind)


class Completable(Protocol):
    """What can be completed: a registered prompt or template."""

    @property
    def texts(self) -> StringArguments: ...
    @property
    def completers(self) -> Mapping[str, Completer]: ...


async def complete(
    call: Call,
    context: Context,
    prompts: Mapping[str, Completable],
    templates: Mapping[str, Completable],
    in_thread: InThread,
) -> CompleteResult:
    """Answer `completion/complete`. Raises RpcError -32602 for what there is not."""
    try:
        asked = call.decode_params(CompleteParams)
    except (DecodeError, UnicodeError) as why:
        raise invalid_params(str(why).replace("`", "")) from None
    ref, name = asked.ref, asked.argument.name
    if isinstance(ref, PromptReference):
        kind, target, known = "prompt", ref.name, prompts.get(ref.name)
    else:
        kind, target, known = "resource template", ref.uri, templates.get(ref.uri)
    if known is None:
        target = shorten(target)
        raise unknown_name(f"Unknown {kind}: {target}", f"ref: there is no {kind} {target!r}")
    if name not in known.texts.schemas:
        name = shorten(name)
        raise unknown_name(
            f"Unknown argument of the {kind} {shorten(target)}: {name}",
            f"argument.name: there is no argument {name!r}",
        )
    found = known.completers.get(name)
    if found is None:
        return CompleteResult(Completion([]))
    if found.function is None or found.bind is None:
        begun = asked.argument.value.casefold()
        return CompleteResult(
            _completion([each for each in found.choices if each.casefold().startswith(begun)])
        )
    bound = found.bind(asked.argument.value, asked.context.arguments, context)
    value = await call_handler(found.function, bound, in_thread)
    if isinstance(value, Iterable) and not isinstance(
        value, Collection
    ):  # made as it is asked for: it may wait, or never end
        lazy = iter(cast("Iterable[Any]", value))
        value = await in_thread(lambda: list(islice(lazy, MAX_VALUES + 1)))
        return CompleteResult(_completion(value, counted=len(value) <= MAX_VALUES))
    return CompleteResult(_completion(value))


def _completion(value: Any, counted: bool = True) -> Completion:
    """What a function returned: texts, as many as it has, or a Completion. counted: whether these are all."""
    if isinstance(value, Completion):
        try:
            value = check_setting(value)
        except ValueError as why:
            raise InvalidResult(f"a Completion: {why}") from None
        values, total, more = value.values, value.total, value.has_more
    elif value is None:
        values, total, more = [], None, None
    elif isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        values = list(cast("Iterable[Any]", value))
        total = more = None
    else:
        raise InvalidResult(
            f"expected texts to choose from, or a Completion, got {type(value).__name__}"
        )
    for each in values:
        if not isinstance(each, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidResult(
                f"expected texts to choose from, got {type(each).__name__} among them"
            )
    if total is None and more is None:
        total, more = len(values) if counted else None, len(values) > MAX_VALUES
    elif len(values) > MAX_VALUES:
        more = True
    return Completion(values[:MAX_VALUES], total, more)
