"""make_tool(): makes a RegisteredTool from a function and its options.

A RegisteredTool contains the description of the tool for clients, a decoder for the arguments of a
call, and a function that converts the return value to a result (the shaper). server.py calls
make_tool() for each tool that an author registers. tools.py stores and calls the RegisteredTools.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from msgspec import Raw
from msgspec.json import encode

from concertino.backend.interface import Context
from concertino.errors import RegistrationError
from concertino.schema.arguments import argument_decoder
from concertino.schema.return_values import (
    ResultShaper,
    chunk_shaper,
    custom_result_shaper,
    is_generator,
    result_shaper,
)
from concertino.schema.signature import Signature
from concertino.server.functions import (
    Bound,
    FinishingHandler,
    Handler,
    InThread,
    check_handler,
    describe_missing_object,
    handler_doc,
    is_async,
    is_unbound_method,
    unchanged,
)
from concertino.server.registry import Access
from concertino.server.settings import add_tags, check_options, check_setting
from concertino.server.tools import RegisteredTool
from concertino.types.results import Tool, ToolAnnotations

if TYPE_CHECKING:
    from concertino.backend.call_hooks import ParamHeaders
    from concertino.server.options import ToolSettings

# 2026-07-28 server/tools "Tool Names"
NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
# Occurs in the JSON of each input schema that marks an argument to be repeated in an HTTP header.
PARAM_ANNOTATION = b'"x-mcp-header"'


def make_tool(
    handler: Handler,
    options: ToolSettings,
    access: Access,
    *,
    coerce: bool,
    version: str,
    in_thread: InThread,
    report_missing_types: Callable[[Handler], None],
) -> RegisteredTool:
    """Return the RegisteredTool for a handler, the function of a tool.

    options: the options of Server.tool() that ToolSettings declares, such as `title`.
    access: the options `tags`, `visible` and `scopes`. Only the tags are used, for `_meta`.
    coerce: whether to accept strings for other types, such as "1" for an int.
    version: the server's version, which results contain if the tool has the option `envelope`.
    in_thread: in_thread(function) calls a function in a thread, and returns an awaitable of its
        result.
    report_missing_types: a function that is called with a handler whose parameters all lack
        annotations.
    Raises RegistrationError for an invalid handler or option.
    """
    if not callable(handler):
        hint = f"; write name={handler!r}" if isinstance(handler, str) else ""
        raise RegistrationError(f"tool: expected a function, got {handler!r}{hint}")
    options, name = _check_tool_options(handler, options)
    if is_unbound_method(handler):
        mistake = describe_missing_object(handler, "server.add_tool(object.{})")
        raise RegistrationError(f"{name}: {mistake}")

    doc = handler_doc(handler)
    schema, bind, signature = _read_parameters(handler, options, name, doc.parameters, coerce)
    if options.get("input_schema") is None:
        lacks_types = check_handler(handler, doc.parameters, schema.get("properties", {}))
        if lacks_types:
            report_missing_types(handler)
    shaper = _make_result_shaper(handler, options, name, version, signature)
    hints = ToolAnnotations(
        read_only_hint=options.get("read_only"),
        destructive_hint=options.get("destructive"),
        idempotent_hint=options.get("idempotent"),
        open_world_hint=options.get("open_world"),
    )
    description = options.get("description")
    tool = Tool(
        name,
        schema,
        title=options.get("title"),
        description=doc.description if description is None else description,
        output_schema=shaper.schema,
        annotations=hints if hints != ToolAnnotations() else None,
        icons=options.get("icons"),
        meta=add_tags(options.get("meta"), access),
    )
    # Check the whole tool and not only the options: a docstring may contain a lone surrogate.
    try:
        tool = check_setting(tool)
    except ValueError as exc:
        raise RegistrationError(f"{name}: {exc}") from None

    inline = options.get("inline", False)
    if is_generator(handler):
        from concertino.server.streaming import bind_with_context, collect_chunks

        run = collect_chunks(handler, None if inline else in_thread)
        return RegisteredTool(
            tool, run, is_async=True, inline=False, bind=bind_with_context(bind), shaper=shaper
        )
    if isinstance(handler, FinishingHandler):
        # Such a handler converts its return value itself, before it closes its dependencies.
        # Only the check of a large result comes after that: it need not keep them open.
        finishing = handler.finishing(shaper.encode)
        # Its call() is an `async def`, also if the author's function is a `def`.
        # None: no output schema, which `tool` has already.
        no_shaper = ResultShaper(None, unchanged, check_parts=shaper.check_parts)
        return RegisteredTool(
            tool, finishing, is_async=True, inline=False, bind=bind, shaper=no_shaper
        )
    return RegisteredTool(
        tool, handler, is_async=is_async(handler), inline=inline, bind=bind, shaper=shaper
    )


def read_param_headers(tool: Tool) -> ParamHeaders:
    """Return which arguments of a tool clients repeat in HTTP headers `Mcp-Param-...`.

    The input schema marks these arguments with `x-mcp-header`.
    An example is {("user", "region"): "Region"}: clients repeat the member `region` of the argument
    `user` in the header `Mcp-Param-Region`.
    Raises RegistrationError for an `x-mcp-header` that clients of MCP 2026-07-28 would refuse.
    """
    # Few schemas have the annotation, and this test is faster than a walk through the schema.
    if PARAM_ANNOTATION not in encode(tool.input_schema):
        return {}
    from concertino.http.param_headers import InvalidAnnotation, read_annotations

    try:
        return read_annotations(tool.input_schema)
    except InvalidAnnotation as exc:
        raise RegistrationError(f"{tool.name}: input schema: {exc}") from None


def _check_tool_options(handler: Handler, options: ToolSettings) -> tuple[ToolSettings, str]:
    """Return checked options, and the name of the tool.

    Raises RegistrationError for an invalid option or name.
    """
    own_name = str(getattr(handler, "__name__", ""))
    name = options.get("name")
    # Error messages call the tool `owner`: the option `name` if it is valid.
    is_valid = isinstance(name, str) and NAME.fullmatch(name) is not None
    owner = cast("str", name) if is_valid else own_name
    _check_schema_sizes(options, owner)
    if options:
        # Imported here, because the import takes time and most tools have no options.
        from concertino.server.options import ToolSettings

        options = check_options(options, ToolSettings, owner)

    name = own_name if name is None else name
    if NAME.fullmatch(name) is None:
        got = repr(name) if name else "none"
        raise RegistrationError(
            f"tool name: expected 1 to 128 of A-Z a-z 0-9 _ . - , got {got}; pass name=..."
        )
    return options, name


def _read_parameters(
    handler: Handler,
    options: ToolSettings,
    name: str,
    descriptions: Mapping[str, str],
    coerce: bool,
) -> tuple[dict[str, Any], Callable[[Raw | bytes, object], Bound], Signature | None]:
    """Return the input schema of a tool, the function for RegisteredTool.bind, and the signature.

    The signature is None if the author has written the input schema.
    name: the name of the tool, for error messages.
    descriptions: the docstring's descriptions of the parameters: name -> text.
    """
    input_schema = options.get("input_schema")
    if input_schema is None:
        decoder = argument_decoder(
            handler, coerce=coerce, inject=(Context,), descriptions=descriptions
        )
        return decoder.schema, decoder.bind, decoder.signature

    from concertino.server.custom_tools import custom_binder

    schema = dict(input_schema)
    try:
        return schema, custom_binder(handler, schema), None
    except RegistrationError as exc:
        raise RegistrationError(f"{name}: {exc}") from None


def _make_result_shaper(
    handler: Handler,
    options: ToolSettings,
    name: str,
    version: str,
    signature: Signature | None,
) -> ResultShaper:
    """Return the ResultShaper of a tool: its output schema, and the function for its results.

    name: the name of the tool, for error messages.
    version: the server's version, for the envelope.
    signature: the signature of the handler; None to read it.
    Raises RegistrationError if the tool has both an envelope and an output schema, and for an
    output schema that cannot be enforced.
    """
    output_schema = options.get("output_schema")
    make_shaper = partial(
        chunk_shaper if is_generator(handler) else result_shaper,
        handler,
        inject=(Context,),
        signature=signature,
    )
    if options.get("envelope"):
        from concertino.server.result_envelope import wrap_result

        if output_schema is not None:
            raise RegistrationError(
                f"{name}: output_schema needs structured content, and an envelope is text; "
                f"remove one of the two options, or pass envelope=False"
            )
        return ResultShaper(None, wrap_result(make_shaper().shape, version))
    if output_schema is None:
        return make_shaper()

    from concertino.server.custom_tools import result_validator

    schema = dict(output_schema)
    try:
        return custom_result_shaper(handler, schema, result_validator(schema))
    except RegistrationError as exc:
        raise RegistrationError(f"{name}: {exc}") from None


def _check_schema_sizes(options: ToolSettings, name: str) -> None:
    """Raise RegistrationError for hand-written schemas that are too large.

    This must be the first check, because the other checks walk through the whole schemas.
    name: the name of the tool.
    """
    schemas = {
        "input_schema": options.get("input_schema"),
        "output_schema": options.get("output_schema"),
    }
    for option, schema in schemas.items():
        if schema is not None:
            from concertino.schema.custom_schema import check_size

            try:
                check_size(schema)
            except RegistrationError as exc:
                raise RegistrationError(f"{name}: {option}: {exc}") from None
