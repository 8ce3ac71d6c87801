"""The options of Server.tool(), Server.resource() and Server.prompt(), each declared once.

A TypedDict declares the types of a group of options, and its docstring describes the options. The
TypedDicts are used in three ways:

- Methods take them as `**options: Unpack[ToolOptions]`, which type checkers understand.
- show_options() adds them to the signature and docstring of a method, for help().
- check_options() in server/settings.py validates the values.

An option that is left out means the same as None, or as False if it is a bool. Only `envelope` is
different: if it is left out, the argument `envelope` of Server decides. A server whose tools have
no options never imports this module.
"""

# The docstrings below begin with an empty line, because show_options() appends them to others.
#
# No `from __future__ import annotations` here: a TypedDict compiles each annotation that is a
# string, which takes 0.2 ms.

from collections.abc import Callable, Collection, Mapping
from inspect import Parameter, cleandoc, signature
from typing import TYPE_CHECKING, Any, ForwardRef, TypedDict, TypeVar, Unpack, cast

from concertino.backend.interface import Context
from concertino.types.results import Annotations, CacheScope, Icon

if TYPE_CHECKING:
    from concertino.guards.rates import Rate

__all__ = [
    "AccessOptions",
    "PromptOptions",
    "PromptSettings",
    "ResourceOptions",
    "ResourceSettings",
    "ToolGuards",
    "ToolOptions",
    "ToolSettings",
    "show_options",
]

F = TypeVar("F", bound=Callable[..., Any])


class ToolSettings(TypedDict, total=False):
    """
    Settings of one tool. Hints are for clients of MCP 2025-03-26 and later; a hint that is None or
    is left out is not sent.

    name: 1 to 128 of the characters A-Z a-z 0-9 _ . - ; by default the function's name.
    title: name for people.
    description: text for the model; by default the description in the function's docstring.
    read_only: hint that the tool changes nothing.
    destructive: hint that the tool may destroy data.
    idempotent: hint that a second call with the same arguments has no further effect.
    open_world: hint that the tool uses systems outside of the server.
    icons: pictures for a client's user interface.
    meta: data about the tool that clients get unchanged, as its `_meta`; keys such as
        `com.example/name`.
    inline: run a `def` on the event loop instead of in a thread; for functions that take
        microseconds.
    input_schema: JSON Schema 2020-12 of the arguments, with type object at its root, instead of the
        schema that the parameters' types give. The function then takes all arguments as one dict,
        which was validated. Needs the extra `validate` (see `concertino docs install`).
    output_schema: JSON Schema 2020-12 of the return value, instead of the one that its type gives.
        Return values are validated. Needs the extra `validate`, too.
    envelope: send the return value as text:
        `{"success": true, "data": ..., "metadata": {"timestamp": ..., "version": ...}}`. If left
        out, the argument `envelope` of Server decides.
    """

    name: str | None
    title: str | None
    description: str | None
    read_only: bool | None
    destructive: bool | None
    idempotent: bool | None
    open_world: bool | None
    icons: list[Icon] | None
    meta: dict[str, Any] | None
    inline: bool
    input_schema: Mapping[str, Any] | None
    output_schema: Mapping[str, Any] | None
    envelope: bool


class ToolGuards(TypedDict, total=False):
    """
    Limits for one tool. An option that is None or is left out sets no limit.

    rate_limit: how many calls of all clients together are accepted within a time, such as "10/60"
        for 10 calls within any 60 seconds. Other calls get an error result that says when to try
        again.
    max_in_flight: how many calls of all clients together may run at the same time; other calls get
        an error result.
    timeout_s: seconds after which a call is cancelled. The client then gets an error result.
    max_result_bytes: size in bytes of JSON up to which a result is sent as a whole. A larger result
        is stored for up to an hour. The client gets the beginning of the result, and a link to the
        whole result, which it can read as a resource.
    redact: replace secrets, such as tokens and passwords, in results, errors, progress and log
        messages of the tool.
    """

    rate_limit: "Rate | str | None"
    max_in_flight: int | None
    timeout_s: float | None
    max_result_bytes: int | None
    redact: bool


class AccessOptions(TypedDict, total=False):
    """
    Who sees and may use one tool, prompt or resource.

    tags: strings such as {"admin"}, for enable(tags=...) and disable(tags=...). Clients see them in
        the `_meta` of the tool, prompt or resource, as `concertino/tags`.
    visible: a function that decides whether a caller may see and use the tool, prompt or resource.
        It is called for each list and each call, with the Context of that request, and returns a
        bool. It must be quick and cannot be an `async def`. None: every caller may.
    scopes: the scopes that a caller's token must have, such as {"orders:write"}. A caller whose
        token lacks one does not see the tool, prompt or resource in lists, and gets the HTTP status
        403 on using it. Callers without a token, as on stdin and stdout, are not limited.
    """

    tags: Collection[str] | None
    visible: Callable[[Context], bool] | None
    scopes: Collection[str] | None


class ToolOptions(ToolSettings, ToolGuards, AccessOptions, total=False):
    """Options of Server.tool and Server.add_tool."""


class PromptSettings(TypedDict, total=False):
    """
    Settings of one prompt.

    name: 1 to 128 printable characters; by default the function's name.
    title: name for people.
    description: text for people; by default the description in the function's docstring.
    icons: pictures for a client's user interface.
    meta: data about the prompt that clients get unchanged, as its `_meta`; keys such as
        `com.example/name`.
    inline: run a `def` on the event loop instead of in a thread.
    """

    name: str | None
    title: str | None
    description: str | None
    icons: list[Icon] | None
    meta: dict[str, Any] | None
    inline: bool


class PromptOptions(PromptSettings, AccessOptions, total=False):
    """Options of Server.prompt and Server.add_prompt."""


class ResourceSettings(TypedDict, total=False):
    """
    Settings of one resource.

    name: name for programs; by default the name of the function or file, or the end of the URI.
    title: name for people.
    description: text for people and models; by default the description in the function's docstring.
    mime_type: type of the content; by default detected from the file's name or the content.
    size: size in bytes; by default the size of the text, bytes or file.
    annotations: audience, priority and time of the last change.
    icons: pictures for a client's user interface.
    meta: data about the resource that clients get unchanged, as its `_meta`; keys such as
        `com.example/name`.
    ttl_s, cache_scope: for how many seconds clients of MCP 2026-07-28 may cache the content, and
        whether they may share it ("public") or not ("private"); by default as for the Server.
    inline: run a `def` on the event loop instead of in a thread.
    """

    name: str | None
    title: str | None
    description: str | None
    mime_type: str | None
    size: int | None
    annotations: Annotations | None
    icons: list[Icon] | None
    meta: dict[str, Any] | None
    ttl_s: float | None
    cache_scope: CacheScope | None
    inline: bool


class ResourceOptions(ResourceSettings, AccessOptions, total=False):
    """Options of Server.resource and Server.add_resource."""


# Kind -> the TypedDict of all options of this kind, and the TypedDicts that it is made of, in the
# order in which help() shows them.
DECLARATIONS: Mapping[str, tuple[type, tuple[type, ...]]] = {
    "tool": (ToolOptions, (ToolSettings, ToolGuards, AccessOptions)),
    "prompt": (PromptOptions, (PromptSettings, AccessOptions)),
    "resource": (ResourceOptions, (ResourceSettings, AccessOptions)),
}


def show_options_of(kind: str, function: Callable[..., Any]) -> None:
    """Add the options of tools, prompts or resources to the signature and docstring of a method.

    kind: "tool", "prompt" or "resource".
    function: a method of Server that has `**options`.
    """
    declaration, parts = DECLARATIONS[kind]
    show_options(*parts)(function)
    # The annotation is a string with a name that server.py imports only for type checkers, so
    # get_type_hints() could not evaluate it. Replace the string by the type.
    if "Unpack" in str(function.__annotations__.get("options")):
        function.__annotations__["options"] = Unpack[declaration]


def show_options(*declarations: type) -> Callable[[F], F]:
    """Return a decorator that makes help() show the options of a function with `**options`.

    Each option becomes a keyword-only parameter in the function's signature. The docstrings of the
    TypedDicts are appended to the function's docstring.
    declarations: the TypedDicts that declare the options.
    """

    def decorate(function: F) -> F:
        plain = signature(function)
        options = [
            Parameter(
                name, Parameter.KEYWORD_ONLY, default=_default(annotation), annotation=annotation
            )
            for declaration in declarations
            for name, annotation in _annotations(declaration).items()
        ]
        explicit = [
            parameter
            for parameter in plain.parameters.values()
            if parameter.kind is not Parameter.VAR_KEYWORD
        ]
        cast("Any", function).__signature__ = plain.replace(parameters=[*explicit, *options])

        # With `python -OO` there are no docstrings.
        if function.__doc__:
            texts = [cleandoc(declaration.__doc__ or "") for declaration in declarations]
            function.__doc__ = "\n".join([cleandoc(function.__doc__), "", "Options:", *texts])
        return function

    return decorate


def _annotations(declaration: type) -> dict[str, Any]:
    """Return the annotations of a TypedDict by name.

    TypedDict wraps an annotation that is a string, such as "Rate | str", in a ForwardRef, which
    help() would show. The string is returned instead.
    """
    return {
        name: annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else annotation
        for name, annotation in declaration.__annotations__.items()
    }


def _default(annotation: object) -> bool | None:
    """Return the default of an option, as help() shows it: False for a bool, otherwise None."""
    return False if annotation is bool else None
