"""Resources: registers, lists and reads the resources of a server.

A resource has a URI and a source of its content: a text or bytes, a file, or a function that
returns the content. A resource template has a URI template, such as `note://{id}`, and a function
whose arguments are the variables of the template. LazyFeatures imports this module when the first
resource is registered.
Spec: 2026-07-28 server/resources, server/utilities/caching; RFC 3986 for URIs, RFC 6570 for
templates (schema/uri_template.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from os import PathLike, fsdecode
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from concertino.backend.interface import Call, Context
from concertino.errors import RegistrationError, ResourceNotFound
from concertino.protocol.call import read_text_param
from concertino.schema.arguments import InvalidArguments
from concertino.schema.uri_template import UriTemplate
from concertino.server.completion import Completer, type_completers
from concertino.server.files import File
from concertino.server.functions import (
    Handler,
    HandlerCall,
    InThread,
    call_handler,
    caller_location,
    handler_call,
    handler_doc,
    handler_location,
)
from concertino.server.options import ResourceOptions, ResourceSettings
from concertino.server.registry import Access, Registry, TagSwitches, not_registered
from concertino.server.resource_results import make_not_found_error, make_result
from concertino.server.settings import (
    CacheHints,
    add_tags,
    cache_hints,
    check_against_schema,
    check_options,
    take_access,
)
from concertino.server.string_arguments import StringArguments
from concertino.server.tool_errors import describe_violation
from concertino.types.resources_and_prompts import (
    ListResourcesResult,
    ListResourceTemplatesResult,
    Resource,
    ResourceTemplate,
)
from concertino.types.results import ReadResourceResult, ResourceContents

# An absolute URI by RFC 3986: a scheme, and the characters that a URI may contain.
_URI = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*:(?:[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=]|%[0-9A-Fa-f]{2})*"
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


class FunctionSource(Struct, frozen=True):
    """A function that returns the content of a resource.

    handler_call: the function, and how to call it.
    arguments: makes the arguments of the function, which has no parameters that clients fill.
    """

    handler_call: HandlerCall
    arguments: StringArguments


# Where the content of a resource comes from: the contents themselves, a file, or a function.
Source = list[ResourceContents] | File | FunctionSource


class RegisteredResource(Struct, frozen=True):
    """A resource of a server.

    resource: the resource as `resources/list` returns it.
    source: the source of the content: the contents themselves, a file, or a function.
    hints: how long clients may cache the content.
    location: the file and line of the code that has registered the resource, for messages; "" if
        the source is a function, because messages then name the file and line of the function.
    """

    resource: Resource
    source: Source
    hints: CacheHints
    location: str


class RegisteredTemplate(Struct, frozen=True):
    """A resource template of a server.

    listing: the template as `resources/templates/list` returns it.
    template: matches URIs with the URI template, and extracts the values of the variables.
    handler_call: the handler, and how to call it.
    arguments: converts the values of the variables to the arguments of the handler.
    completers: variable -> the Completer that suggests its values.
    hints: how long clients may cache the content.
    """

    listing: ResourceTemplate
    template: UriTemplate
    handler_call: HandlerCall
    arguments: StringArguments
    completers: Mapping[str, Completer]
    hints: CacheHints


class Resources:
    """The resources of a server.

    in_thread: in_thread(function) calls a function in a thread, and returns an awaitable of its
        result. It runs `def` handlers, and reads files.
    page_size: how many items one page of a list has.
    hints: how long clients may cache the lists, and also the content of resources without the
        options `ttl_s` and `cache_scope`.
    switches: the last call of enable() or disable() for each tag.

    Attributes:
    resources: the registered resources by URI.
    templates: the registered resource templates by URI template.
    can_complete: whether any variable of a template has a Completer, which suggests its values.
    """

    def __init__(
        self,
        in_thread: InThread,
        page_size: int,
        hints: CacheHints,
        switches: TagSwitches,
    ) -> None:
        self.resources: Registry[RegisteredResource] = Registry(
            "resource", page_size, self._describe_resource_conflict, switches
        )
        self.templates: Registry[RegisteredTemplate] = Registry(
            "resource template", page_size, self._describe_template_conflict, switches
        )
        self.can_complete = False
        self._in_thread = in_thread
        self._hints = hints

    def _describe_resource_conflict(self, uri: str) -> str:
        """Return the error text for a URI that is already registered."""
        record = self.resources.records[uri]
        location = record.entry.location or handler_location(record.function)
        return (
            f"a resource with the URI {uri!r} is already registered{location}; call "
            f"remove_resource({uri!r}) first"
        )

    def _describe_template_conflict(self, text: str) -> str:
        """Return the error text for a template that is already registered."""
        location = handler_location(self.templates.records[text].function)
        return (
            f"the resource template {text!r} is already registered{location}; call "
            f"remove_resource({text!r}) first"
        )

    # Registration

    def add(
        self,
        uri: str,
        handler: Handler | None,
        text: str | None,
        blob: bytes | None,
        path: str | PathLike[str] | None,
        options: ResourceOptions,
        author_function: Handler | None,
    ) -> None:
        """Register a resource or a template.

        Exactly one of handler, text, blob and path must not be None.
        uri: an absolute URI. With a handler, it may also be a template.
        handler: the function that returns the content: author_function, or a wrapper that fills the
            parameters for lifespan values and dependencies, and has only the other parameters.
        text, blob: the content itself.
        path: the file that contains the content.
        options: the options of the decorator `@server.resource`, such as `mime_type`.
        author_function: the function that the author has passed, by which disable() selects the
            resource; None without a handler.
        Raises RegistrationError for an invalid argument, and if the URI or template is already
        registered.
        """
        if not isinstance(uri, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RegistrationError(
                f"resource: expected a URI such as 'notes://today', got {uri!r}"
            )
        owner = f"resource {uri!r}"
        access = take_access(options, owner)
        options = check_options(options, ResourceSettings, owner)
        _check_one_source(owner, handler, text, blob, path)
        if "{" in uri:
            if handler is None:
                raise RegistrationError(
                    f"{owner}: a template needs a function that returns the content of each URI"
                )
            entry = self._make_template(uri, owner, handler, options, access)
            self.templates.add(uri, entry, author_function, access)
            self.can_complete = self.can_complete or bool(entry.completers)
            return
        if _URI.fullmatch(uri) is None:
            raise RegistrationError(
                f"{owner}: expected an absolute URI such as 'notes://today', other characters "
                f"percent-encoded"
            )
        resource = self._make_resource(uri, owner, handler, text, blob, path, options, access)
        self.resources.add(uri, resource, author_function, access)

    def _make_resource(
        self,
        uri: str,
        owner: str,
        handler: Handler | None,
        text: str | None,
        blob: bytes | None,
        path: str | PathLike[str] | None,
        options: ResourceSettings,
        access: Access,
    ) -> RegisteredResource:
        """Return the RegisteredResource for a URI.

        Exactly one of handler, text, blob and path is not None.
        owner: the name of the resource, for error messages.
        Raises RegistrationError for an invalid source or option.
        """
        name, description = options.get("name"), options.get("description")
        mime_type, size = options.get("mime_type"), options.get("size")
        source: Source
        if handler is not None:
            source = _make_function_source(owner, handler, options)
            name = name or _name_of(handler)
            description = description or handler_doc(handler).description
        elif path is not None:
            try:
                source = File(fsdecode(path), mime_type)
            except (OSError, ValueError, TypeError) as exc:
                raise RegistrationError(f"{owner}: path: {exc}") from None
            mime_type = source.mime_type
            name = name or source.name
        else:
            source, own_size = _make_fixed_contents(owner, uri, text, blob, mime_type)
            mime_type = source[0].mime_type
            size = own_size if size is None else size

        resource = Resource(
            uri,
            name or uri.rstrip("/").rpartition("/")[2] or uri,
            title=options.get("title"),
            description=description,
            mime_type=mime_type,
            size=size,
            annotations=options.get("annotations"),
            icons=options.get("icons"),
            meta=add_tags(options.get("meta"), access),
        )
        resource = check_against_schema(resource, owner)
        hints = _choose_hints(options, self._hints, access)
        location = "" if isinstance(source, FunctionSource) else caller_location()
        return RegisteredResource(resource, source, hints, location)

    def _make_template(
        self,
        text: str,
        owner: str,
        handler: Handler,
        options: ResourceSettings,
        access: Access,
    ) -> RegisteredTemplate:
        """Return the RegisteredTemplate for a template and its handler.

        owner: the name of the template, for errors.
        Raises RegistrationError for an invalid template, handler or option.
        """
        try:
            template = UriTemplate(text)
            template.check()
        except ValueError as exc:
            raise RegistrationError(f"{owner}: {exc}") from None
        if _SCHEME.match(text) is None:
            raise RegistrationError(
                f"{owner}: expected a template that begins with its scheme, such as "
                f"'notes://{{day}}'"
            )
        if options.get("size") is not None:
            raise RegistrationError(
                f"{owner}: size: a template has none; each of its resources has its own"
            )

        call = handler_call(handler, owner, inline=options.get("inline", False))
        doc = handler_doc(handler)
        arguments = StringArguments(handler, doc.parameters)
        _check_variables(owner, template, arguments)
        listing = ResourceTemplate(
            text,
            options.get("name") or _name_of(handler) or text,
            title=options.get("title"),
            description=options.get("description") or doc.description,
            mime_type=options.get("mime_type"),
            annotations=options.get("annotations"),
            icons=options.get("icons"),
            meta=add_tags(options.get("meta"), access),
        )
        listing = check_against_schema(listing, owner)
        hints = _choose_hints(options, self._hints, access)
        completers = type_completers(arguments)
        return RegisteredTemplate(listing, template, call, arguments, completers, hints)

    def remove(self, uri: str) -> None:
        """Remove a resource or a template. Raises NotRegistered if there is none.

        uri: the URI or the template, as it was registered.
        """
        for registry in (self.templates, self.resources):
            if uri in registry.records:
                registry.remove(uri)
                return
        known = [*self.resources.records, *self.templates.records]
        raise not_registered("resource or template", uri, known)

    def is_disabled(self, uri: str) -> bool:
        """Return whether all that is registered for a URI, a resource or templates, is disabled.

        Returns False if nothing is registered for it.
        """
        resources, templates = self.resources, self.templates
        if uri in resources.entries:
            return False
        matching = [
            text
            for text, record in templates.records.items()
            if record.entry.template.match(uri) is not None
        ]
        if any(text in templates.entries for text in matching):
            return False
        return uri in resources.records or bool(matching)

    # Calls

    async def list(self, call: Call, context: Context) -> ListResourcesResult:
        """Handle a call of `resources/list`."""
        page = self.resources.page(call.params, context)
        resources: list[Resource] = [entry.resource for entry in page.entries]

        # Look up the sizes of files each time, because they may change.
        files = {
            index: entry.source
            for index, entry in enumerate(page.entries)
            if isinstance(entry.source, File)
        }
        if files:
            sizes: dict[int, int | None] = await self._in_thread(
                lambda: {index: file.size() for index, file in files.items()}
            )
            for index, size in sizes.items():
                if resources[index].size is None:
                    resources[index] = replace(resources[index], size=size)

        # Return the same object while the list is unchanged: ResultEncoder caches its JSON.
        if page.result is None or page.result.resources != resources:
            hints = self._hints
            page.result = ListResourcesResult(
                resources,
                page.next_cursor,
                ttl_ms=hints.ttl_ms,
                cache_scope=self.resources.cache_scope(hints.scope),
            )
        return page.result

    async def list_templates(self, call: Call, context: Context) -> ListResourceTemplatesResult:
        """Handle a call of `resources/templates/list`."""
        page = self.templates.page(call.params, context)
        if page.result is None:
            hints = self._hints
            page.result = ListResourceTemplatesResult(
                [entry.listing for entry in page.entries],
                page.next_cursor,
                ttl_ms=hints.ttl_ms,
                cache_scope=self.templates.cache_scope(hints.scope),
            )
        return page.result

    async def read(self, call: Call, context: Context) -> ReadResourceResult:
        """Handle a call of `resources/read`.

        A resource with this URI is preferred to templates that match the URI.
        Raises RpcError -32602 for malformed params, and if there is no such resource that the
        caller may use.
        """
        uri = read_text_param(call.params, "uri")
        try:
            entry = self.resources.find(uri, context)
            if entry is None:
                return await self._read_template(uri, context)
            finish = partial(
                make_result, uri=uri, mime_type=entry.resource.mime_type, hints=entry.hints
            )
            return await self._read_source(entry.source, uri, context, finish)
        except ResourceNotFound as exc:
            if exc.uri:
                raise exc from None
            # The function has raised ResourceNotFound() for the URI that the client has sent.
            raise make_not_found_error(uri) from None

    async def _read_source(
        self,
        source: Source,
        uri: str,
        context: Context,
        finish: Callable[[Any], ReadResourceResult],
    ) -> ReadResourceResult:
        """Return finish(content) for the content of a resource, from any kind of source.

        uri: the URI of the resource.
        """
        if isinstance(source, File):
            return finish(await self._in_thread(lambda: source.read(uri)))
        if isinstance(source, FunctionSource):
            bound = source.arguments.bind({}, context)
            return await call_handler(source.handler_call, bound, self._in_thread, finish)
        return finish(source)

    async def _read_template(self, uri: str, context: Context) -> ReadResourceResult:
        """Return the content of a URI that matches a template.

        Uses the template that was registered first among those that match the URI and whose
        functions accept the values of the variables.
        Raises the RpcError "Resource not found" if there is no such template. The details of the
        error name the values that a function has not accepted.
        """
        details: list[str] = []
        for entry, access in self.templates.visible_entries(context):
            values = entry.template.match(uri)
            if values is None:
                continue
            access.check_scopes(context)
            try:
                bound = entry.arguments.bind(values, context)
            except InvalidArguments as exc:
                details += [
                    f"{entry.template.text}: {describe_violation(violation)}"
                    for violation in exc.violations
                ]
                continue
            finish = partial(
                make_result, uri=uri, mime_type=entry.listing.mime_type, hints=entry.hints
            )
            return await call_handler(entry.handler_call, bound, self._in_thread, finish)
        raise make_not_found_error(uri, details)


def _check_one_source(
    owner: str,
    handler: Handler | None,
    text: str | None,
    blob: bytes | None,
    path: str | PathLike[str] | None,
) -> None:
    """Raise RegistrationError unless exactly one of handler, text, blob and path is not None."""
    sources = {"a function": handler, "text": text, "blob": blob, "path": path}
    names = [name for name, source in sources.items() if source is not None]
    if len(names) != 1:
        got = ", ".join(names) or "none of them"
        raise RegistrationError(
            f"{owner}: expected one of a function, text, blob and path, got {got}"
        )


def _choose_hints(options: ResourceSettings, default: CacheHints, access: Access) -> CacheHints:
    """Return how long clients may cache a resource's content, and who may share it.

    options: the options of the resource or template. Only `ttl_s` and `cache_scope` are used.
    default: the hints of the server, for the options that are not set.
    access: who may read the resource. If `visible` or `scopes` limit this, the content must not be
        shared.
    Raises RegistrationError for invalid options.
    """
    scope = options.get("cache_scope") or default.scope
    if access.is_limited:
        if options.get("cache_scope") == "public":
            raise RegistrationError(
                "resource: cache_scope='public' would show it to callers from whom visible= or "
                "scopes= hides it; remove one of the two options"
            )
        scope = "private"
    ttl_s = options.get("ttl_s")
    if ttl_s is None:
        return CacheHints(default.ttl_ms, scope)
    try:
        return cache_hints(ttl_s, scope)
    except ValueError as exc:
        raise RegistrationError(f"resource: {exc}") from None


def _make_function_source(
    owner: str, handler: Handler, options: ResourceSettings
) -> FunctionSource:
    """Return the source of a resource whose content a function returns.

    owner: the name of the resource, for errors.
    Raises RegistrationError if the function has parameters that clients would have to fill.
    """
    call = handler_call(handler, owner, inline=options.get("inline", False))
    arguments = StringArguments(handler, {})
    if arguments.schemas:
        names = ", ".join(arguments.schemas)
        raise RegistrationError(f"{owner}: its URI has no variables, so nothing fills {names}")
    return FunctionSource(call, arguments)


def _name_of(handler: Handler) -> str:
    """Return the name of a function; "" for a lambda and for objects without a name."""
    name = str(getattr(handler, "__name__", ""))
    return "" if name == "<lambda>" else name


def _check_variables(owner: str, template: UriTemplate, arguments: StringArguments) -> None:
    """Raise RegistrationError unless a template's variables match its function's parameters."""
    for name in template.variables:
        if name not in arguments.schemas:
            raise RegistrationError(f"{owner}: {{{name}}} needs a parameter of this name")
        if name in template.optional and name in arguments.required:
            raise RegistrationError(
                f"{owner}: {{{name}}} may be absent, so the parameter {name!r} needs a default"
            )
        if name in template.lists and arguments.takes_only_text(name):
            raise RegistrationError(
                f"{owner}: {{{name}*}} gives a list, so the parameter {name!r} must take one: "
                f"list[str]"
            )
    if missing := [name for name in arguments.required if name not in template.variables]:
        raise RegistrationError(
            f"{owner}: nothing in the template fills the parameters {', '.join(missing)}"
        )


def _make_fixed_contents(
    owner: str,
    uri: str,
    text: str | None,
    blob: bytes | None,
    mime_type: str | None,
) -> tuple[list[ResourceContents], int]:
    """Return the contents of a resource that is a text or bytes, and their size in bytes.

    owner: the name of the resource, for errors.
    text, blob: one of the two; the other is None.
    Raises RegistrationError for another type, and for a text with a lone surrogate.
    """
    if text is not None:
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RegistrationError(f"{owner}: text: expected str, got {type(text).__name__}")
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise RegistrationError(
                f"{owner}: text: holds a lone surrogate, which JSON cannot"
            ) from None
        return [ResourceContents(uri, text=text, mime_type=mime_type or "text/plain")], size

    if not isinstance(blob, (bytes, bytearray, memoryview)):
        raise RegistrationError(f"{owner}: blob: expected bytes, got {type(blob).__name__}")
    data = bytes(blob)
    mime_type = mime_type or "application/octet-stream"
    return [ResourceContents(uri, blob=data, mime_type=mime_type)], len(data)
