"""Completion: suggests values for arguments of prompts and variables of resource templates.

For a parameter whose type is a Literal, an Enum or bool, type_completers() suggests the values of
the type. For other types the author registers a function with Server.complete(), which calls
function_completer(). complete() handles the requests `completion/complete`.
Spec: 2026-07-28 server/utilities/completion.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from typing import Any, Protocol, cast

from msgspec import Struct

from concertino.backend.interface import Call, Context
from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import (
    INVALID_PARAMS,
    RegistrationError,
    RpcError,
    invalid_params,
    unknown_name,
)
from concertino.schema.signature import read_signature
from concertino.schema.value_results import InvalidResult
from concertino.server.functions import (
    Bound,
    Handler,
    HandlerCall,
    InThread,
    call_handler,
    handler_call,
    unchanged,
)
from concertino.server.settings import check_setting
from concertino.server.string_arguments import StringArguments
from concertino.types.completion import CompleteParams, PromptReference
from concertino.types.resources_and_prompts import CompleteResult, Completion

# The largest number of values in a response (2026-07-28 server/utilities/completion).
MAX_VALUES = 100


class Completer(Struct, frozen=True):
    """The source of the values that are suggested for one argument.

    It has either `choices`, or both `handler_call` and `bind`.
    choices: all possible values.
    handler_call: the author's function, and how to call it.
    bind: bind(value, others, context) returns the arguments for one call of the function. `value`
        is the text that the user has typed so far, `others` has the values of the other arguments.
    """

    choices: tuple[str, ...] = ()
    handler_call: HandlerCall | None = None
    bind: Callable[[str, Mapping[str, str], Context], Bound] | None = None


def type_completers(arguments: StringArguments) -> dict[str, Completer]:
    """Return a Completer for each parameter whose type is a Literal, an Enum or bool.

    arguments: the parameters of a prompt or resource template.
    Returns name of the parameter -> Completer.
    """
    completers = {name: Completer(tuple(arguments.choices(name))) for name in arguments.schemas}
    return {name: completer for name, completer in completers.items() if completer.choices}


def function_completer(handler: Handler, owner: str) -> Completer:
    """Return the Completer for an author's function.

    handler: the function. Its first parameter gets the text that the user has typed so far. It may
        have a second parameter for the values of the other arguments, a dict, and a parameter of
        the type Context.
    owner: the name of the completion for error messages.
    Raises RegistrationError for any other parameters.
    """
    call = handler_call(handler, owner, inline=False)
    parameters = read_signature(handler, (Context,)).parameters
    count = sum(not parameter.injected for parameter in parameters)
    if count not in (1, 2):
        raise RegistrationError(
            f"{owner}: expected a function of (value) or (value, arguments), got {count} parameters"
        )

    def bind(value: str, others: Mapping[str, str], context: Context) -> Bound:
        # The parameters get these values in order; the Context is in between.
        inputs = iter((value, others))
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for parameter in parameters:
            argument: Any = context if parameter.injected else next(inputs)
            if parameter.keyword_only:
                kwargs[parameter.name] = argument
            else:
                args.append(argument)
        return tuple(args), kwargs

    return Completer(handler_call=call, bind=bind)


class Completable(Protocol):
    """A registered prompt or resource template: RegisteredPrompt or RegisteredTemplate."""

    @property
    def arguments(self) -> StringArguments: ...
    @property
    def completers(self) -> Mapping[str, Completer]: ...


# The type of a function find(kind, name) that returns the prompt or template, or None if there is
# none that the caller may use. The kind is "prompt" or "resource template".
FindTarget = Callable[[str, str], Completable | None]


async def complete(
    call: Call,
    context: Context,
    find: FindTarget,
    in_thread: InThread,
) -> CompleteResult:
    """Handle a call of `completion/complete`.

    context: the context of the call, for an author's function with a parameter for it.
    find: find(kind, name) returns the prompt or resource template; None if there is none that the
        caller may use. `kind` is "prompt" or "resource template".
    in_thread: in_thread(function) calls a function in a thread, and returns an awaitable of its
        result.
    Raises RpcError -32602 for malformed params, and for an unknown prompt, template or argument.
    """
    try:
        params = call.decode_params(CompleteParams)
    except DECODE_ERRORS as exc:
        # msgspec puts the names of fields into backticks.
        raise invalid_params(str(exc).replace("`", "")) from None

    ref, name = params.ref, params.argument.name
    if isinstance(ref, PromptReference):
        kind, target = "prompt", ref.name
    else:
        kind, target = "resource template", ref.uri
    entry = find(kind, target)
    if entry is None:
        raise unknown_name(kind, target, "ref")
    if name not in entry.arguments.schemas:
        from concertino.excerpts import shorten_name

        shown = shorten_name(name)
        raise RpcError(
            INVALID_PARAMS,
            f"Unknown argument of the {kind} {shorten_name(target)}: {shown}",
            {"details": f"argument.name: there is no argument {shown!r}"},
        )

    completer = entry.completers.get(name)
    if completer is None:
        return CompleteResult(Completion([]))
    if completer.handler_call is None or completer.bind is None:
        prefix = params.argument.value.casefold()
        matches = [text for text in completer.choices if text.casefold().startswith(prefix)]
        return CompleteResult(_make_completion(matches))

    bound = completer.bind(params.argument.value, params.context.arguments, context)
    value = await call_handler(completer.handler_call, bound, in_thread, unchanged)
    if isinstance(value, Iterable) and not isinstance(value, Collection):
        # A generator may block, or yield values for ever. Therefore take values in a thread, and
        # only one more than are sent, which shows whether there are more.
        lazy = iter(cast("Iterable[Any]", value))
        value = await in_thread(lambda: list(islice(lazy, MAX_VALUES + 1)))
        return CompleteResult(_make_completion(value, is_all=len(value) <= MAX_VALUES))
    return CompleteResult(_make_completion(value))


def _make_completion(value: Any, is_all: bool = True) -> Completion:
    """Return the Completion for the value that a function has returned.

    value: a Completion, a collection of strings, or None for no suggestions.
    is_all: False if the function, a generator, would yield more values than these.
    Raises InvalidResult for any other value.
    """
    total = has_more = None
    if isinstance(value, Completion):
        try:
            value = check_setting(value)
        except ValueError as exc:
            raise InvalidResult(f"a Completion: {exc}") from None
        values, total, has_more = value.values, value.total, value.has_more
    elif value is None:
        values = []
    elif isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        values = list(cast("Iterable[Any]", value))
    else:
        raise InvalidResult(
            f"expected texts to choose from, or a Completion, got {type(value).__name__}"
        )

    for item in values:
        if not isinstance(item, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidResult(
                f"expected texts to choose from, got {type(item).__name__} among them"
            )
    is_cut = len(values) > MAX_VALUES
    # Set `total` and `has_more` if the author has not.
    if total is None and has_more is None:
        total = len(values) if is_all else None
        has_more = is_cut
    elif is_cut:
        has_more = True
    return Completion(values[:MAX_VALUES], total, has_more)
