"""The results of one handler: its output schema, and a Python value -> CallToolResult.

Text stays text; content blocks stay content; everything else is JSON, written once and carried both as structured
content and as text. A value that its annotation does not allow, or that JSON cannot hold, is refused.
Spec: 2026-07-28 server/tools "Tool Result", "Structured Content", "Output Schema".
"""

from __future__ import annotations

import inspect
import types
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from typing import Annotated, Any, Never, NoReturn, TypeVar, Union, cast, get_args, get_origin

import msgspec
from msgspec import UNSET, Raw, json
from msgspec.structs import replace

from concertino.errors import ConcertinoError, RegistrationError
from concertino.schema.signature import function_of, read
from concertino.schema.type_schema import (
    SchemaBuilder,
    TypeSchema,
    decode_hook,
    nan_path,
    violations_of,
)
from concertino.types.results import (
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
)

__all__ = [
    "InvalidResult",
    "ResultShaper",
    "chunks_of",
    "fitting",
    "result_shaper",
    "returns_by",
    "streams",
    "text_of",
]

# `Any` in this file: a handler may return anything, and annotations are arbitrary objects.
Shape = Callable[[Any], CallToolResult]
S = TypeVar("S", bound=msgspec.Struct)


class InvalidResult(ConcertinoError):
    """A handler returned what cannot be sent. The text says what came and what to return instead."""


class ResultShaper:
    """What returns_of gives.

    schema: JSON Schema 2020-12 of the structured content, None where nothing is promised.
    shape(value): the value a handler returned, as a result. Raises BadResult, and what a user's own class raises.
    """

    __slots__ = ("schema", "shape")

    def __init__(self, schema: dict[str, Any] | None, shape: Shape) -> None:
        self.schema = schema
        self.shape = shape


def result_shaper(handler: Callable[..., object], *, inject: tuple[type, ...] = ()) -> ResultShaper:
    """Read a handler's return annotation. inject: as for arguments_of.

    Raises RegistrationError, naming the function, for generators and for types that have no JSON form.
    """
    function = function_of(handler)
    signature = read(handler, inject)
    annotation = signature.returns
    generator = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    if generator or get_origin(annotation) in _GENERATORS:
        raise RegistrationError(f"{signature.name}(): {_NO_GENERATOR}")
    if annotation is str:
        return ResultShaper(None, _text)
    if _has_content(annotation):
        return ResultShaper(None, _content)
    if _is_unstructured(annotation):
        return ResultShaper(None, _by_value)
    return _promised(annotation, signature.name)


def streams(handler: Callable[..., object]) -> bool:
    """Whether the handler is a generator: what it yields are the parts of its result."""
    function = function_of(handler)
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def chunks_of(handler: Callable[..., object], *, inject: tuple[type, ...] = ()) -> ResultShaper:
    """Read what a generator yields: `-> AsyncIterator[T]`. The result is all of it: texts joined, anything else as a list.

    shape() takes the list of what was yielded. Raises RegistrationError as returns_of does, and for another annotation.
    """
    signature = read(handler, inject)
    annotation = signature.returns
    if annotation is Any:
        return ResultShaper(None, _joined)
    if annotation not in _GENERATORS and get_origin(annotation) not in _GENERATORS:
        raise RegistrationError(
            f"{signature.name}(): a generator is annotated by what it yields, as in `-> AsyncIterator[str]`; got {annotation!r}"
        )
    item = get_args(annotation)[0] if get_args(annotation) else Any
    if item is str or _is_unstructured(item):
        return ResultShaper(None, _joined)
    if _has_content(item):
        return ResultShaper(None, _content)
    return _promised(list[item], signature.name)


def text_of(value: Any) -> str:
    """One part of a result as text, for people. Raises BadResult for what cannot be sent."""
    if isinstance(value, str):
        return _text_block(value).text
    if isinstance(value, _CONTENT):
        return value.text if isinstance(value, TextContent) else ""
    return _written(value)[1]


def _joined(chunks: list[Any]) -> CallToolResult:
    if all(isinstance(chunk, str) for chunk in chunks):
        return _text("".join(chunks))
    return _by_value(chunks)


def _promised(annotation: Any, name: str) -> ResultShaper:
    forms = SchemaBuilder(promise=True)
    try:
        form = forms.form(annotation)
    except RegistrationError as error:
        raise RegistrationError(f"{name}(): return: {error}") from None
    return ResultShaper(_rooted(form.schema, forms.definitions), _structured(form))


def returns_by(
    handler: Callable[..., object], schema: dict[str, Any], conform: Callable[[Raw | bytes], None]
) -> ResultShaper:
    """The results of a handler whose output schema its author wrote; the return annotation is not read.

    conform: raises BadResult for structured content, as JSON, that the schema does not allow.
    Raises RegistrationError for generators.
    """
    function = function_of(handler)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise RegistrationError(_NO_GENERATOR)

    def shape(value: Any) -> CallToolResult:
        if not isinstance(value, CallToolResult):
            raw, text = _written(value)
            conform(raw)
            return _result(raw, text)
        if fitting(value).is_error:
            return _checked(value)
        if value.structured_content is UNSET:
            raise InvalidResult(
                "output_schema promises structured content: set structured_content, or is_error=True"
            )
        value = replace(value, structured_content=Raw(_written(value.structured_content)[0]))
        conform(value.structured_content)
        return value

    return ResultShaper(schema, shape)


_NO_GENERATOR = "a generator cannot be a result; return a list"
_CONTENT = (TextContent, ImageContent, AudioContent, ResourceLink, EmbeddedResource)
_GENERATORS = (Iterator, Generator, AsyncIterator, AsyncIterable, AsyncGenerator)
_BYTES: tuple[Any, ...] = (bytes, bytearray, memoryview)
_UNSTRUCTURED: tuple[Any, ...] = (str, *_BYTES, None, type(None), Any, object, Raw, Never, NoReturn)


def _is_unstructured(annotation: Any) -> bool:
    """Whether nothing is promised: text, anything, and unions of these."""
    if annotation in _UNSTRUCTURED:
        return True
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _is_unstructured(arguments[0])
    return origin in (Union, types.UnionType) and all(
        _is_unstructured(member) for member in arguments
    )


def _has_content(annotation: Any) -> bool:
    return annotation in (*_CONTENT, CallToolResult) or any(
        _has_content(part) for part in get_args(annotation)
    )


def _rooted(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """One schema, its root written out: clients of 2025 look for `type: object` there, not for a $ref."""
    definitions = definitions.copy()
    if reference := schema.get("$ref"):
        name = reference.removeprefix("#/$defs/")
        schema = {**definitions[name], **{word: schema[word] for word in schema if word != "$ref"}}
        if f'"{reference}"'.encode() not in json.encode([schema, definitions]):
            del definitions[name]
    return {**schema, "$defs": definitions} if definitions else schema


def _text(value: Any) -> CallToolResult:
    """shape() of `-> str`."""
    if type(value) is str and value.isascii():  # the way of nearly all: 0.2 us
        return CallToolResult([TextContent(value)])
    if isinstance(value, str):
        return CallToolResult([_text_block(value)])
    if isinstance(value, CallToolResult):
        return _checked(value)
    raise InvalidResult(
        f"expected str, got {_kind(value)}: return a str, or annotate what is returned"
    )


def _text_block(value: str) -> TextContent:
    text = str.__str__(value)  # the plain text of a subclass: msgspec writes exact str only
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidResult(_SURROGATE) from None
    return TextContent(text)


def _content(value: Any) -> CallToolResult:
    """shape() where the annotation speaks of content: an empty list is no content, and not JSON."""
    return (
        CallToolResult([])
        if isinstance(value, (list, tuple)) and not value
        else _by_value(cast("Any", value))
    )


def _by_value(value: Any) -> CallToolResult:
    """shape() where the annotation promises nothing."""
    if isinstance(value, str):
        return CallToolResult([_text_block(value)])
    if value is None:
        return CallToolResult([])
    if isinstance(value, CallToolResult):
        return _checked(value)
    if isinstance(value, _CONTENT):
        return CallToolResult([_block(value)])
    if isinstance(value, _BYTES):
        raise InvalidResult(
            f"the result is {_kind(value)}: return concertino.blob(...) or concertino.image(...) with it"
        )
    if isinstance(value, (list, tuple)):
        items = cast("Sequence[Any]", value)
        if any(isinstance(item, _CONTENT) for item in items):
            return CallToolResult([_block(item) for item in items])
    return _result(*_written(cast("Any", value)))


def _block(item: Any) -> Any:
    if isinstance(item, str):
        return _text_block(item)
    if not isinstance(item, _CONTENT):
        raise InvalidResult(
            f"expected only content blocks and str in the list, got {_kind(item)} among them"
        )
    return fitting(item)


def _checked(result: CallToolResult) -> CallToolResult:
    """A result as the handler made it, its structured content written out: later is too late to refuse it."""
    fitting(result)
    if result.structured_content is UNSET or type(result.structured_content) is Raw:
        return result
    return replace(result, structured_content=Raw(_written(result.structured_content)[0]))


def fitting(made: S) -> S:
    """A Struct of types.py that a handler put together, as it is. Raises BadResult if it is not what the schema says."""
    from concertino.types.result_checks import check  # few handlers do

    try:
        check(made)
    except TypeError as why:
        raise InvalidResult(f"{type(made).__name__}: {why}") from None
    return made


# Schemas that the exact type of a value proves.
_EXACT: dict[str, type] = {
    "integer": int,
    "boolean": bool,
    "number": float,
    "object": dict,
    "array": list,
}


def _structured(form: TypeSchema) -> Shape:
    """shape() where an output schema promises that the result conforms."""
    decode = json.Decoder(form.type, dec_hook=decode_hook).decode
    exact = _EXACT.get(form.schema["type"]) if form.schema.keys() == {"type"} else None
    adapter = form.adapter

    def conform(raw: bytes | Raw) -> None:
        try:
            decode(raw)
        except (msgspec.DecodeError, RecursionError) as error:
            problem = violations_of(error, "")[0]
            raise InvalidResult(
                f"the result does not conform to its annotation: {problem}"
            ) from None

    def shape(value: Any) -> CallToolResult:
        if isinstance(value, CallToolResult):
            content = value.structured_content
            if fitting(value).is_error:
                return _checked(value)
            if content is UNSET:
                raise InvalidResult(
                    "the annotation promises structured content: set structured_content, or is_error=True"
                )
            if type(content) is Raw or (adapter is not None and isinstance(content, (dict, list))):
                value = _checked(value)  # JSON by hand: pydantic writes only its own objects
                conform(value.structured_content)
                return value
            return replace(value, structured_content=shape(content).structured_content)
        if adapter is not None and value is not None:  # pydantic writes a None for any model
            try:
                value = adapter.dump_python(value, mode="json", by_alias=True, warnings="error")
            except ValueError as error:  # PydanticSerializationError is one
                raise InvalidResult(
                    f"the result does not conform to its annotation: {error}"
                ) from None
            return _result(*_written(value))
        raw, text = _written(value)
        if type(value) is not exact:
            conform(raw)
        return _result(raw, text)

    return shape


def _result(raw: bytes, text: str) -> CallToolResult:
    return CallToolResult([TextContent(text)], Raw(raw))


def _written(value: Any) -> tuple[bytes, str]:
    """A value as JSON without newlines, as bytes and as text, or BadResult."""
    try:
        raw = _encode(value)
        text = raw.decode()
        if "\n" in text or type(value) is Raw:  # only a Raw brings one, and it would end the frame
            raw = json.encode(json.decode(raw))
            text = raw.decode()
        # msgspec writes NaN as null: without a null there is none.
        place = (
            nan_path(msgspec.to_builtins(value, enc_hook=_encode_hook)) if "null" in text else None
        )
    except RecursionError:
        raise InvalidResult("the result is nested too deeply, or contains itself") from None
    except UnicodeEncodeError:
        raise InvalidResult(_SURROGATE) from None
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidResult(f"the result cannot be written as JSON: {error}") from None
    if place is not None:
        where = f" at {place}" if place else ""
        raise InvalidResult(
            f"the result holds NaN or infinity{where}, which JSON cannot: return None or a str for it"
        )
    return raw, text


_SURROGATE = "the result holds a lone surrogate, which JSON cannot: replace it, as in s.encode(errors='replace').decode()"


def _encode_hook(value: Any) -> Any:
    """What msgspec does not write itself."""
    if type(value) in (
        tuple,
        frozenset,
        bool,
        type(None),
    ):  # msgspec writes these itself, unless they are keys
        raise TypeError(f"{_kind(value)} cannot be a key of a JSON object; make it a str")
    if isinstance(value, str):  # subclasses of these three
        return str.__str__(value)
    if isinstance(value, (int, float)):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, Raw):  # on the way to nan_path
        return json.decode(value)
    if callable(dump := getattr(value, "model_dump", None)):  # a pydantic model
        return dump(mode="json", by_alias=True)
    if callable(path := getattr(value, "__fspath__", None)):
        return path()
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    if isinstance(value, (Sequence, Set)):
        return list(cast("Sequence[Any]", value))
    raise TypeError(
        f"{_kind(value)} has no JSON form; return a str, number, list, dict, dataclass or pydantic model"
    )


_encode = json.Encoder(enc_hook=_encode_hook).encode


def _kind(value: object) -> str:
    return type(value).__name__
