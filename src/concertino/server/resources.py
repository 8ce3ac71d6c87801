"""Resources: content that clients read by its URI. Held text and bytes, files, functions, and functions behind URI templates.

Spec: 2026-07-28 server/resources, server/utilities/caching; RFC 3986 for URIs, RFC 6570 for templates (schema/uri_template.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from os import PathLike, fsdecode
from typing import Any, cast

from msgspec import DecodeError, Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from concertino.backend.interface import Call, Context
from concertino.errors import INVALID_PARAMS, RegistrationError, ResourceNotFound, RpcError
from concertino.schema.arguments import InvalidArguments
from concertino.schema.return_values import InvalidResult, check_struct, result_shaper
from concertino.schema.uri_template import UriTemplate
from concertino.server.completion import Completer, completers_of
from concertino.server.files import File
from concertino.server.functions import (
    Function,
    Handler,
    InThread,
    StringArguments,
    call_handler,
    make_function,
    parse_doc,
)
from concertino.server.registry import Registry
from concertino.server.settings import CacheHints, ResourceSettings, check_settings
from concertino.server.tool_errors import invalid_params, sentence
from concertino.types.results import (
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceResult,
    Resource,
    ResourceContents,
    ResourceTemplate,
    TextContent,
)

__all__ = ["RegisteredResource", "RegisteredTemplate", "Resources"]

# RFC 3986: a scheme, and characters that a URI may hold.
_URI = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*:(?:[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=]|%[0-9A-Fa-f]{2})*"
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_text = Decoder(str).decode


class RegisteredResource(Struct, frozen=True):
    """One resource. source: its contents, where they are, or who makes them, and from what."""

    resource: Resource
    source: list[ResourceContents] | File | tuple[Function, StringArguments]
    hints: CacheHints


class RegisteredTemplate(Struct, frozen=True):
    """One template. completers: of its variables."""

    shown: ResourceTemplate
    template: UriTemplate
    function: Function
    texts: StringArguments
    completers: Mapping[str, Completer]
    hints: CacheHints


class Resources:
    """A server's resources. in_thread: runs what may block. hints: for the lists, and what does not say otherwise itself.

    completes: whether a variable of a template can be completed.
    """

    def __init__(self, in_thread: InThread, page_size: int, hints: CacheHints) -> None:
        self.resources: Registry[RegisteredResource] = Registry(
            "resource",
            page_size,
            lambda name: (
                f"resource {name!r}: there is one with this URI; remove_resource() it first"
            ),
        )
        self.templates: Registry[RegisteredTemplate] = Registry(
            "resource template",
            page_size,
            lambda name: (
                f"resource {name!r}: there is one with this template; remove_resource() it first"
            ),
        )
        self.completes = False
        self._in_thread = in_thread
        self._hints = hints

    # Registration

    def add(
        self,
        uri: str,
        handler: Handler | None,
        text: str | None,
        blob: bytes | None,
        path: str | PathLike[str] | None,
        settings: ResourceSettings,
    ) -> None:
        """See Server.add_resource."""
        if not isinstance(uri, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # an author's mistake
            raise RegistrationError(
                f"resource: expected a URI such as 'notes://today', got {uri!r}"
            )
        settings = check_settings(settings, f"resource {uri!r}")
        given = [
            name
            for name, each in (("text", text), ("blob", blob), ("path", path))
            if each is not None
        ]
        if len(given) + (handler is not None) != 1:
            got = (
                ", ".join([*(["a function"] if handler is not None else []), *given])
                or "none of them"
            )
            raise RegistrationError(
                f"resource {uri!r}: expected one of a function, text, blob and path, got {got}"
            )
        if handler is not None and "{" in uri:
            return self._add_template(uri, handler, settings)
        if "{" in uri:
            raise RegistrationError(
                f"resource {uri!r}: a template needs a function, which makes the content of each URI"
            )
        if _URI.fullmatch(uri) is None:
            raise RegistrationError(
                f"resource {uri!r}: expected an absolute URI such as 'notes://today', other characters percent-encoded"
            )
        name = settings.name
        description = settings.description
        size = settings.size
        source: list[ResourceContents] | File | tuple[Function, StringArguments]
        mime_type = settings.mime_type
        if handler is not None:
            made = make_function(handler, f"resource {uri!r}", inline=settings.inline)
            texts = StringArguments(handler, {})
            source = made, texts
            if texts.schemas:
                names = ", ".join(texts.schemas)
                raise RegistrationError(
                    f"resource {uri!r}: its URI has no variables, so nothing fills {names}"
                )
            name = name or _name_of(handler)
            description = description or parse_doc(handler).description
        elif path is not None:
            try:
                source = File(fsdecode(path), mime_type)
            except (OSError, ValueError, TypeError) as why:
                raise RegistrationError(f"resource {uri!r}: path: {why}") from None
            mime_type = source.mime_type
            name = name or source.name
        else:
            source, size = _held(uri, text, blob, mime_type)
            mime_type = source[0].mime_type
        resource = Resource(
            uri,
            name or uri.rstrip("/").rpartition("/")[2] or uri,
            title=settings.title,
            description=description,
            mime_type=mime_type,
            size=size if settings.size is None else settings.size,
            annotations=settings.annotations,
            icons=settings.icons,
            meta=settings.meta,
        )
        resource = check_settings(resource, f"resource {uri!r}")
        self.resources.add(uri, RegisteredResource(resource, source, settings.hints(self._hints)))
        return None

    def _add_template(self, text: str, handler: Handler, settings: ResourceSettings) -> None:
        what = f"resource {text!r}"
        try:
            template = UriTemplate(text)
            template.check()
        except ValueError as why:
            raise RegistrationError(f"{what}: {why}") from None
        if _SCHEME.match(text) is None:
            raise RegistrationError(
                f"{what}: expected a template that begins with its scheme, such as 'notes://{{day}}'"
            )
        if settings.size is not None:
            raise RegistrationError(
                f"{what}: size: a template has none; each of its resources has its own"
            )
        made = make_function(handler, what, inline=settings.inline)
        doc = parse_doc(handler)
        texts = StringArguments(handler, doc.parameters)
        _check_variables(what, template, texts)
        shown = ResourceTemplate(
            text,
            settings.name or _name_of(handler) or text,
            title=settings.title,
            description=settings.description or doc.description,
            mime_type=settings.mime_type,
            annotations=settings.annotations,
            icons=settings.icons,
            meta=settings.meta,
        )
        shown = check_settings(shown, what)
        hints = settings.hints(self._hints)
        completers = completers_of(texts)
        self.templates.add(
            text, RegisteredTemplate(shown, template, made, texts, completers, hints)
        )
        self.completes = self.completes or bool(completers)

    def remove(self, uri: str) -> None:
        """uri: of a resource, or a template as it was given. Raises KeyError if there is none."""
        (self.templates if uri in self.templates.entries else self.resources).remove(uri)

    # Calls

    async def list(self, call: Call, context: Context) -> ListResourcesResult:
        page = self.resources.page(call.params)
        shown: list[Resource] = [each.resource for each in page.entries]
        files = {
            number: each.source
            for number, each in enumerate(page.entries)
            if isinstance(each.source, File)
        }
        if files:
            sizes: dict[int, int | None] = await self._in_thread(lambda: _sizes(files))
            for number, size in sizes.items():
                if shown[number].size is None:
                    shown[number] = replace(shown[number], size=size)
        if (
            page.result is None or page.result.resources != shown
        ):  # else the same object: it is written once
            page.result = ListResourcesResult(
                shown, page.next_cursor, ttl_ms=self._hints.ttl_ms, cache_scope=self._hints.scope
            )
        return page.result

    async def list_templates(self, call: Call, context: Context) -> ListResourceTemplatesResult:
        page = self.templates.page(call.params)
        if page.result is None:
            shown = [each.shown for each in page.entries]
            hints = self._hints
            page.result = ListResourceTemplatesResult(
                shown, page.next_cursor, ttl_ms=hints.ttl_ms, cache_scope=hints.scope
            )
        return page.result

    async def read(self, call: Call, context: Context) -> ReadResourceResult:
        try:
            uri = _text(call.params["uri"])
        except KeyError:
            raise invalid_params("Missing required field: uri") from None
        except (DecodeError, UnicodeError):
            raise invalid_params("uri: expected str") from None
        try:
            entry = self.resources.entries.get(uri)
            if entry is None:
                return await self._expanded(uri, context)
            contents = await self._contents(entry.source, uri, context)
        except ResourceNotFound as gone:
            raise gone if gone.uri else _not_found(uri) from None
        return _result(contents, uri, entry.resource.mime_type, entry.hints)

    async def _contents(
        self,
        source: list[ResourceContents] | File | tuple[Function, StringArguments],
        uri: str,
        context: Context,
    ) -> Any:
        if isinstance(source, File):
            return await self._in_thread(lambda: source.read(uri))
        if isinstance(source, tuple):
            made, texts = source
            return await call_handler(made, texts.bind({}, context), self._in_thread)
        return source

    async def _expanded(self, uri: str, context: Context) -> ReadResourceResult:
        """A resource of a template: of the first that matches, and whose function takes the values."""
        details: list[str] = []
        for each in self.templates.entries.values():
            values = each.template.match(uri)
            if values is None:
                continue
            try:
                bound = each.texts.bind(values, context)
            except InvalidArguments as bad:
                details += [
                    f"{each.template.text}: {sentence(problem)}" for problem in bad.violations
                ]
                continue
            contents = await call_handler(each.function, bound, self._in_thread)
            return _result(contents, uri, each.shown.mime_type, each.hints)
        raise _not_found(uri, details)


def _name_of(handler: Handler) -> str:
    """The function's name, empty if it has none of its own."""
    name = str(getattr(handler, "__name__", ""))
    return "" if name == "<lambda>" else name


def _check_variables(what: str, template: UriTemplate, texts: StringArguments) -> None:
    for name in template.variables:
        if name not in texts.schemas:
            raise RegistrationError(f"{what}: {{{name}}} needs a parameter of this name")
        if name in template.optional and name in texts.required:
            raise RegistrationError(
                f"{what}: {{{name}}} may be absent, so the parameter {name!r} needs a default"
            )
        if name in template.lists and texts.takes_only_text(name):
            raise RegistrationError(
                f"{what}: {{{name}*}} gives a list, so the parameter {name!r} must take one: list[str]"
            )
    if missing := [name for name in texts.required if name not in template.variables]:
        raise RegistrationError(
            f"{what}: nothing in the template fills the parameters {', '.join(missing)}"
        )


def _held(
    uri: str, text: str | None, blob: bytes | None, mime_type: str | None
) -> tuple[list[ResourceContents], int]:
    if text is not None:
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RegistrationError(
                f"resource {uri!r}: text: expected str, got {type(text).__name__}"
            )
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise RegistrationError(
                f"resource {uri!r}: text: holds a lone surrogate, which JSON cannot"
            ) from None
        return [ResourceContents(uri, text=text, mime_type=mime_type or "text/plain")], size
    if not isinstance(blob, (bytes, bytearray, memoryview)):
        raise RegistrationError(
            f"resource {uri!r}: blob: expected bytes, got {type(blob).__name__}"
        )
    return [
        ResourceContents(uri, blob=bytes(blob), mime_type=mime_type or "application/octet-stream")
    ], len(bytes(blob))


def _sizes(files: Mapping[int, File]) -> dict[int, int | None]:
    return {index: file.size() for index, file in files.items()}


def _not_found(uri: str, details: list[str] | None = None) -> RpcError:
    return RpcError(
        INVALID_PARAMS,
        "Resource not found",
        {"uri": uri, **({"details": "; ".join(details)} if details else {})},
    )


# What a function returned -> contents


def _unpromised() -> Any: ...


_as_json = result_shaper(_unpromised).shape


def _result(value: Any, uri: str, mime_type: str | None, hints: CacheHints) -> ReadResourceResult:
    if isinstance(value, ReadResourceResult):
        return check_struct(value)
    if value is None:
        raise _not_found(uri)
    pieces: list[Any] = [value]
    if isinstance(value, (list, tuple)) and any(
        isinstance(each, _PIECES) for each in cast("list[Any]", value)
    ):
        pieces = list(cast("list[Any]", value))
    contents = [_piece(each, uri, mime_type) for each in pieces]
    return ReadResourceResult(contents, ttl_ms=hints.ttl_ms, cache_scope=hints.scope)


_PIECES = (ResourceContents, bytes, bytearray, memoryview)


def _piece(value: Any, uri: str, mime_type: str | None) -> ResourceContents:
    if isinstance(value, ResourceContents):
        return check_struct(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(cast("bytes", value))
        return ResourceContents(uri, blob=data, mime_type=mime_type or "application/octet-stream")
    blocks = _as_json(value).content
    if len(blocks) != 1 or (text := getattr(blocks[0], "text", None)) is None:
        raise InvalidResult(
            f"expected str, bytes, ResourceContents or JSON as a resource, got {type(value).__name__}"
        )
    kind = "text/plain" if isinstance(value, (str, TextContent)) else "application/json"
    return ResourceContents(uri, text=text, mime_type=mime_type or kind)
