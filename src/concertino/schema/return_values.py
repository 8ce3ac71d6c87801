"""Return values of a handler: their output schema, and their conversion to a CallToolResult.

    shaper = result_shaper(add)          # def add(a: int, b: int) -> int
    shaper.schema                        # {"type": "integer"}
    shaper.shape(3)                      # CallToolResult([TextContent("3")], Raw(b"3"))

- A str becomes a text block, and content blocks stay as they are.
- None becomes a result without content, if the annotation gives no output schema.
- Any other value is encoded as JSON once; the JSON becomes the structured content and a text block.
- A value that the annotation does not allow, or that JSON cannot express, raises InvalidResult.

value_results.py converts values without an annotation, and encodes all values.

Spec: 2026-07-28 server/tools "Tool Result", "Structured Content", "Output Schema".
"""

from __future__ import annotations

import gc
import inspect
import types
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterator,
    Sequence,
)
from typing import (
    Annotated,
    Any,
    Never,
    NoReturn,
    Union,
    cast,
    get_args,
    get_origin,
)

from msgspec import UNSET, Raw, json
from msgspec.structs import replace

from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import RegistrationError
from concertino.schema.signature import Signature, function_of, read_signature
from concertino.schema.type_schema import SchemaBuilder, TypeSchema
from concertino.schema.value_results import (
    BYTES,
    CONTENT,
    LARGE_JSON,
    InvalidResult,
    check_result,
    check_struct,
    encode_json,
    holds_content,
    refuse_awaitable,
    shape_any,
    shape_text,
    structured_result,
)
from concertino.schema.violations import decode_hook, violations_of
from concertino.types.results import CallToolResult

# `Any` in this file: a handler may return anything, and annotations are arbitrary objects.

# The type of a function that converts a return value to a result.
Shape = Callable[[Any], CallToolResult]
# The type of a function that raises InvalidResult for JSON that does not conform to a type.
Validate = Callable[[bytes | Raw], None]
# The type of a function that converts some items of a list to JSON.
EncodeItems = Callable[[list[Any]], bytes]
# The type of a generator function that checks JSON, and pauses between the parts of it.
CheckParts = Callable[[Raw], Generator[None]]
# JSON of this many bytes is checked without garbage collection.
UNCOLLECTED_BYTES = 64 * 1024


class ResultShaper:
    """Converts the return values of one handler to results. result_shaper() creates it.

    schema: the JSON Schema (2020-12) of the structured content; None if there is no output schema.
    shape: a function that converts a return value to a result. It raises InvalidResult. Code of
        users' classes, which it calls, may raise other exceptions.

    runtime/result_turns.py converts large values in parts, so that other calls can run in between.
    For this there are:

    encode_items: a function that gets a part of a returned list: some of its items. It checks them
        and returns a list of them as JSON. It raises the same exceptions as `shape`, but their
        texts count the items of the part. None if a list must be converted as a whole.
    encode: a function that converts a return value like `shape`, but does not check the structured
        content if it has LARGE_JSON bytes or more. The caller must then check it with check_parts,
        unless the result has isError. Equal to `shape` if check_parts is None.
    check_parts: a generator function that checks structured content that `encode` has not checked.
        None if `encode` checks everything.
    """

    __slots__ = ("check_parts", "encode", "encode_items", "schema", "shape")

    def __init__(
        self,
        schema: dict[str, Any] | None,
        shape: Shape,
        encode_items: EncodeItems | None = None,
        encode: Shape | None = None,
        check_parts: CheckParts | None = None,
    ) -> None:
        self.schema = schema
        self.shape = shape
        self.encode_items = encode_items
        self.encode = encode or shape
        self.check_parts = check_parts


def result_shaper(
    handler: Callable[..., object],
    *,
    inject: tuple[type, ...] = (),
    signature: Signature | None = None,
) -> ResultShaper:
    """Return the object that converts a handler's return values, by its return annotation.

    There is an output schema, and so structured content, except for three kinds of annotations:

    - str, bytes, Any, None, and unions of these.
    - content blocks and CallToolResult, also in a list or union.
    - lists whose items may have any type: `list`, `list[Any]` and `tuple`, also in a union.

    inject: passed to read_signature(): the classes of parameters that the server fills, such as
        Context. Not used if `signature` is given.
    signature: the signature of the handler, if the caller has it already; None to read it.
    Raises RegistrationError, which names the function, for generators and for types that JSON
    cannot express.
    """
    signature = signature or read_signature(handler, inject)
    annotation = signature.returns
    if is_generator(handler) or get_origin(annotation) in _GENERATORS:
        raise RegistrationError(f"{signature.name}(): {_NO_GENERATOR}")
    if annotation is str:
        return ResultShaper(schema=None, shape=shape_text)
    if _has_content(annotation):
        return ResultShaper(schema=None, shape=_shape_content)
    if _is_unstructured(annotation):
        return ResultShaper(schema=None, shape=shape_any)
    shaper = _make_structured_shaper(annotation, signature.name)
    return _make_open_shaper(shaper.shape) if _is_open_list(annotation) else shaper


_GENERATOR_FLAGS = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


def is_generator(handler: Callable[..., object]) -> bool:
    """Return whether the handler is a generator function, synchronous or asynchronous."""
    code = getattr(function_of(handler), "__code__", None)
    return code is not None and bool(code.co_flags & _GENERATOR_FLAGS)


def chunk_shaper(
    handler: Callable[..., object],
    *,
    inject: tuple[type, ...] = (),
    signature: Signature | None = None,
) -> ResultShaper:
    """Return the ResultShaper for a generator function, annotated as `-> AsyncIterator[T]`.

    The shape() of the ResultShaper takes the list of all yielded values. Strings are joined to one
    string; other values stay a list.
    inject: passed to read_signature(): the classes of parameters that the server fills, such as
        Context. Not used if `signature` is given.
    signature: the signature of the handler, if the caller has it already; None to read it.
    Raises RegistrationError, which names the function, for an annotation that is not an iterator,
    and for types that JSON cannot express.
    """
    signature = signature or read_signature(handler, inject)
    annotation = signature.returns
    if annotation is Any:
        return ResultShaper(schema=None, shape=_shape_chunks)
    if annotation not in _GENERATORS and get_origin(annotation) not in _GENERATORS:
        raise RegistrationError(
            f"{signature.name}(): annotate a generator with the type that it yields, as in "
            f"`-> AsyncIterator[str]`; got {annotation!r}"
        )

    item = get_args(annotation)[0] if get_args(annotation) else Any
    if item is str or _is_unstructured(item):
        return ResultShaper(schema=None, shape=_shape_chunks)
    if _has_content(item):
        return ResultShaper(schema=None, shape=_shape_content)
    return _make_structured_shaper(list[item], signature.name)


def _shape_chunks(chunks: list[Any]) -> CallToolResult:
    if all(isinstance(chunk, str) for chunk in chunks):
        return shape_text("".join(chunks))
    return shape_any(chunks)


def _make_structured_shaper(annotation: Any, name: str) -> ResultShaper:
    """Return the ResultShaper for an annotation that gives an output schema.

    name: the name of the handler, for errors.
    """
    builder = SchemaBuilder(for_results=True)
    try:
        type_schema = builder.build(annotation)
    except RegistrationError as exc:
        raise RegistrationError(f"{name}(): return: {exc}") from None
    schema = _inline_root(type_schema.schema, builder.definitions)
    # The schema of a list has further keywords if it limits the length, for example.
    is_list = type_schema.schema.keys() == {"type", "items"}
    is_only_type = type_schema.schema.keys() == {"type"}
    validate = _make_validator(type_schema)
    encode_items = _make_items_encoder(type_schema, validate) if is_list else None
    shape = _make_structured_shape(type_schema, validate)
    # pydantic checks values while it encodes them, and a schema such as {"type": "integer"} is
    # quickly checked. So these need no check in parts.
    if type_schema.adapter is not None or is_only_type:
        return ResultShaper(schema, shape, encode_items)

    def validate_small(raw: bytes | Raw) -> None:
        if len(raw) < LARGE_JSON:
            validate(raw)

    encode = _make_structured_shape(type_schema, validate_small)
    check_parts = _make_parts_check(type_schema.type, validate)
    return ResultShaper(schema, shape, encode_items, encode, check_parts)


def _make_open_shaper(shape_value: Shape) -> ResultShaper:
    """Return the ResultShaper for an annotation such as `list[Any]`.

    A list with content blocks becomes content; shape_value converts any other value. There is no
    output schema, because a tool with an output schema must always return structured content.
    """

    def shape(value: Any) -> CallToolResult:
        is_list = isinstance(value, (list, tuple))
        is_content = is_list and holds_content(cast("Sequence[Any]", value))
        is_content = is_content or isinstance(value, (CallToolResult, *CONTENT))
        return shape_any(value) if is_content else shape_value(value)

    return ResultShaper(schema=None, shape=shape)


def custom_result_shaper(
    handler: Callable[..., object],
    schema: dict[str, Any],
    validate: Validate,
) -> ResultShaper:
    """Return the ResultShaper for a handler with a hand-written output schema.

    The return annotation is ignored.
    validate: called with the structured content as JSON text; raises InvalidResult if the schema
        does not allow it.
    Raises RegistrationError for generators.
    """
    if is_generator(handler):
        raise RegistrationError(_NO_GENERATOR)

    def shape(value: Any) -> CallToolResult:
        if not isinstance(value, CallToolResult):
            raw, text = encode_json(value)
            validate(raw)
            return structured_result(raw, text)
        if check_struct(value).is_error:
            return check_result(value)
        if value.structured_content is UNSET:
            raise InvalidResult(
                "the tool has an output_schema, so its result needs structured_content; "
                "set it, or set is_error=True"
            )
        value = replace(value, structured_content=Raw(encode_json(value.structured_content)[0]))
        validate(value.structured_content)
        return value

    return ResultShaper(schema, shape)


_NO_GENERATOR = "a generator cannot be a result; return a list"
# The annotations of generator functions, and those of unions.
_GENERATORS = (Iterator, Generator, AsyncIterator, AsyncIterable, AsyncGenerator)
_UNIONS = (Union, types.UnionType)
# The annotations without an output schema.
_UNSTRUCTURED: tuple[Any, ...] = (str, *BYTES, None, type(None), Any, object, Raw, Never, NoReturn)


def _is_unstructured(annotation: Any) -> bool:
    """Return whether handlers with an annotation have no output schema.

    These annotations are str, bytes, Any, None, and unions of them.
    """
    if annotation in _UNSTRUCTURED:
        return True
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _is_unstructured(arguments[0])
    return origin in _UNIONS and all(_is_unstructured(member) for member in arguments)


def _is_open_list(annotation: Any) -> bool:
    """Return whether an annotation allows any items in a list: `list`, `list[Any]`, `tuple`."""
    origin, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if origin is Annotated:
        return _is_open_list(arguments[0])
    if origin in _UNIONS:
        return any(map(_is_open_list, arguments))
    return origin in (list, tuple, Sequence) and (
        not arguments or any(map(_allows_anything, arguments))
    )


def _allows_anything(annotation: Any) -> bool:
    if get_origin(annotation) in _UNIONS:
        return any(map(_allows_anything, get_args(annotation)))
    return annotation is Any or annotation is object


def _has_content(annotation: Any) -> bool:
    return annotation in (*CONTENT, CallToolResult) or any(
        _has_content(part) for part in get_args(annotation)
    )


def _inline_root(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return one schema that contains its definitions, and whose root is not a reference.

    Clients of the 2025 revisions expect `type: object` at the root, not a $ref.
    """
    definitions = definitions.copy()
    if reference := schema.get("$ref"):
        name = reference.removeprefix("#/$defs/")
        # Keywords beside the reference override those of the definition.
        beside = {keyword: schema[keyword] for keyword in schema if keyword != "$ref"}
        schema = definitions[name] | beside

        # The definition of a recursive class must stay, because the class refers to itself.
        if f'"{reference}"'.encode() not in json.encode([schema, definitions]):
            del definitions[name]
    return {**schema, "$defs": definitions} if definitions else schema


def _shape_content(value: Any) -> CallToolResult:
    """Return the result for a value that is annotated as content.

    An empty list becomes a result without content. It is not encoded as JSON.
    """
    if isinstance(value, (list, tuple)) and not value:
        return CallToolResult([])
    return shape_any(cast("Any", value))


# Type in a JSON Schema -> the Python type whose values always conform to it. Values of a subclass
# may not conform.
_EXACT: dict[str, type] = {
    "integer": int,
    "boolean": bool,
    "number": float,
    "object": dict,
    "array": list,
}


def _make_structured_shape(type_schema: TypeSchema, validate: Validate) -> Shape:
    """Return the function for ResultShaper.shape of a handler with an output schema.

    The function checks that each result conforms to the annotation, and so to the schema.
    validate: the function of _make_validator() for this type.
    """
    schema = type_schema.schema
    # A value of exactly this type need not be validated; None if each value must be.
    exact = _EXACT.get(schema["type"]) if schema.keys() == {"type"} else None
    adapter = type_schema.adapter

    def shape_result(value: CallToolResult) -> CallToolResult:
        content = value.structured_content
        if check_struct(value).is_error:
            return check_result(value)
        if content is UNSET:
            raise InvalidResult(
                "the tool's return annotation gives it an output schema, so its result needs "
                "structured_content; set it, or set is_error=True"
            )
        # The author has passed JSON values. pydantic's adapter can encode only its own objects.
        if type(content) is Raw or (adapter is not None and isinstance(content, (dict, list))):
            value = check_result(value)
            validate(cast("Raw", value.structured_content))
            return value
        return replace(value, structured_content=shape(content).structured_content)

    def shape(value: Any) -> CallToolResult:
        if isinstance(value, CallToolResult):
            return shape_result(value)
        # pydantic encodes None for any type without an error, so let validate() check it.
        if adapter is not None and value is not None:
            return structured_result(*encode_json(_dump_with_pydantic(adapter, value)))

        raw, text = encode_json(value)
        if type(value) is not exact:
            validate(raw)
        return structured_result(raw, text)

    return shape


def _make_items_encoder(type_schema: TypeSchema, validate: Validate) -> EncodeItems:
    """Return the function for ResultShaper.encode_items.

    type_schema: that of a list whose length is not limited.
    validate: the function of _make_validator() for this type.
    """
    adapter = type_schema.adapter

    def encode_items(items: list[Any]) -> bytes:
        if adapter is not None:
            return encode_json(_dump_with_pydantic(adapter, items))[0]
        raw, _ = encode_json(items)
        validate(raw)
        return raw

    return encode_items


def _make_parts_check(annotation: Any, validate: Validate) -> CheckParts:
    """Return the function for ResultShaper.check_parts.

    annotation: the type of the structured content, as msgspec decodes it.
    validate: the function of _make_validator() for this type.
    """

    def check_parts(content: Raw) -> Generator[None]:
        # Imported here, because few values are large.
        from concertino.schema.json_parts import divide

        if len(content) < LARGE_JSON:
            return
        try:
            for part in divide(content, annotation):
                validate(part)
                yield
        except Exception:
            # The exception for the whole content names the right place in it. If a class of the
            # author accepts only the whole, the content is valid, and nothing is raised.
            validate(content)

    return check_parts


def _make_validator(type_schema: TypeSchema) -> Validate:
    """Return a function that raises InvalidResult for JSON that does not conform to a type."""
    decode = json.Decoder(type_schema.type, dec_hook=decode_hook).decode

    def validate(raw: bytes | Raw) -> None:
        # Garbage collection would look at all objects of the process again and again while msgspec
        # makes many objects, all of which are freed at the end. With the 100,000 objects of a tool,
        # this takes 50 of 81 ms for 4 MB on CPython 3.11.
        is_paused = len(raw) >= UNCOLLECTED_BYTES and gc.isenabled()
        if is_paused:
            gc.disable()
        try:
            decode(raw)
        except DECODE_ERRORS as exc:
            violation = violations_of(exc, "")[0]
            raise InvalidResult(
                f"the result does not conform to its annotation: {violation}"
            ) from None
        finally:
            if is_paused:
                gc.enable()

    return validate


def _dump_with_pydantic(adapter: Any, value: Any) -> Any:
    """Return the JSON value for a return value. Raises InvalidResult if it is of another type.

    adapter: the pydantic.TypeAdapter of the return annotation.
    """
    try:
        return adapter.dump_python(value, mode="json", by_alias=True, warnings="error")
    except ValueError as exc:
        # PydanticSerializationError is a ValueError.
        refuse_awaitable(value)
        raise InvalidResult(f"the result does not conform to its annotation: {exc}") from None
