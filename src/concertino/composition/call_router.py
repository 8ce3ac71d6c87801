"""CallRouter: sends each call to the part of a composition that has the tool, prompt or resource.

A composition serves several backends, its parts, as one. A call is a client's request. Its part is
found in this way:

- Tools and prompts: by the name, which has a prefix for the part.
- Resources: by the part that lists the URI. If no part lists it, the parts are asked one after the
  other.
- Tasks: by the task id, which has a prefix for the part.
- Methods of extensions: by the capabilities of the parts.

ComposedBackend (composed_backend.py) uses this class for all requests except lists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

from msgspec import Raw, Struct
from msgspec.json import decode, encode
from msgspec.structs import replace

from concertino.backend.interface import Backend, Call, Context
from concertino.backend.listing import list_names
from concertino.composition.other_methods import find_part, has_tasks
from concertino.composition.part_calls import PartCalls
from concertino.composition.part_names import PartNames
from concertino.composition.part_starts import PartStarts, make_removed_error
from concertino.composition.part_view import PartContext, PartView
from concertino.composition.resource_directory import ResourceDirectory
from concertino.composition.task_ids import TASK_METHODS
from concertino.composition.task_lists import can_list_tasks, list_tasks
from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    RESOURCE_NOT_FOUND,
    ResourceNotFound,
    RpcError,
    invalid_params,
    unknown_name,
)
from concertino.types.completion import CompleteParams, PromptReference

__all__ = ["CallRouter"]

# A part without the requested resource or completion answers with one of these errors. The next
# part may have it. Servers of older revisions use INVALID_PARAMS for an unknown resource.
NOT_FOUND_CODES = frozenset((INVALID_PARAMS, RESOURCE_NOT_FOUND, METHOD_NOT_FOUND))


class CallRouter:
    """Forwards each call to a part of one composition, which serves several backends as one.

    parts: name -> backend. ComposedBackend changes this mapping when parts change.
    names: translates names of tools and prompts between clients and parts.
    starts: knows which parts have started.
    directory: knows which part each resource belongs to.
    calls: counts the running calls of each part.
    view_of: called with the name of a part; returns its PartView, which translates names, URIs and
        task ids.
    report_failure: report_failure(part_name, method, error) is called when the joined list of
        `tasks/list` leaves out a part that has failed.
    maps_uris: whether, if two parts list the same URI, clients see it with a prefix for the second
        part (CompositionRules).
    """

    def __init__(
        self,
        parts: Mapping[str, Backend],
        names: PartNames,
        starts: PartStarts,
        directory: ResourceDirectory,
        calls: PartCalls,
        view_of: Callable[[str], PartView],
        report_failure: Callable[[str, str, BaseException], object],
        *,
        maps_uris: bool,
    ) -> None:
        self._parts = parts
        self._names = names
        self._starts = starts
        self._directory = directory
        self._calls = calls
        self._view_of = view_of
        self._report_failure = report_failure
        self._maps_uris = maps_uris

    def parts_with(self, feature: str) -> Iterator[tuple[str, Backend]]:
        """Yield name and backend of the started parts with a feature, in the composition's order.

        Parts that have failed to start are left out.
        feature: an attribute of ServerFeatures, such as "tools".
        """
        for name, part in self._parts.items():
            if self._starts.serves(name) and getattr(part.features(), feature):
                yield name, part

    async def refresh_owners(self) -> None:
        """Ask the parts for their resources, if these may have changed since the last time."""
        await self._directory.refresh(lambda: self.parts_with("resources"))

    async def call_by_name(
        self,
        call: Call,
        context: Context,
        kind: str,
    ) -> Struct | Raw:
        """Forward `tools/call` or `prompts/get` to the part that has the tool or prompt.

        Waits until the part has started. Returns the result of the part with the URIs and task ids
        that clients see.
        call, context: the client's request and its Context.
        kind: "tool" or "prompt".
        Raises RpcError if no part has the tool or prompt, or if the part does not start. Also
        raises the errors of the part.
        """
        if (name := call.name) is None:
            raise invalid_params(f"name: expected the name of a {kind}")
        found = self._names.find(name)
        # Wait if the part has not started. Read the part's list if the name was perhaps shortened
        # in an earlier run of the program, because find() does not know the whole name then.
        if found is None or not self._starts.serves(found[0]) or not self._names.can_find(name):
            found = await self._resolve_name(name, kind)
        part_name, own_name = found
        part = self._part(part_name)
        features = part.features()
        if not getattr(features, f"{kind}s"):
            raise unknown_name(kind, name)
        view = self._view_of(part_name)
        # The features of a part may change, for example when its server restarts.
        view.has_tasks = has_tasks(features)
        part_context = PartContext(context, view)
        params = {**call.params, "name": Raw(encode(own_name))}
        own_call = Call(call.method, params, view.find_meta(call.meta), call.answers, call.state)
        # Like _forward(), without its coroutine, which would take a tenth of the time of a small
        # call.
        with self._calls.by_part[part_name]:
            try:
                result = await part.handle(own_call, part_context)
            except RpcError as error:
                raise _restore_name(error, kind, "name", name, own_name) from None
        return part_context.map_result(call.method, result)

    async def _resolve_name(
        self,
        name: str,
        kind: str,
        member: str = "name",
    ) -> tuple[str, str]:
        """Wait until the part of a tool or prompt has started.

        Returns the name of the part, and the part's own name of the tool or prompt.
        member: the field of the params that contains the name, for the error message.
        Raises RpcError if no part can have the name, or if the part does not start.
        """
        found = self._names.find(name)
        if found is None:
            raise unknown_name(kind, name, member)
        part_name = found[0]
        await self._starts.wait_for(part_name)
        if self._names.can_find(name):
            return found
        # The name may have been shortened in an earlier run of the program. show() remembers the
        # whole name of each tool that the part lists, so that find() can resolve the short one.
        for own_name in await list_names(part_name, self._part(part_name), f"{kind}s/list"):
            self._names.show(part_name, own_name)
        return self._names.find(name) or found

    def _part(self, name: str) -> Backend:
        """Return a part. Raises RpcError if it was removed while a call waited for it."""
        if (part := self._parts.get(name)) is None:
            raise make_removed_error(name)
        return part

    async def _forward(
        self,
        name: str,
        call: Call,
        context: Context,
    ) -> Struct | Raw:
        """Let a part handle a call. Return its result with the URIs and task ids for clients."""
        part = self._part(name)
        view = self._view_of(name)
        view.has_tasks = has_tasks(part.features())
        part_context = PartContext(context, view)
        own_call = replace(call, meta=view.find_meta(call.meta))
        with self._calls.by_part[name]:
            result = await part.handle(own_call, part_context)
        return part_context.map_result(call.method, result)

    async def _call_by_uri(
        self,
        call: Call,
        context: Context,
        shown: str,
        replace_uri: Callable[[str], Call],
    ) -> Struct | Raw:
        """Forward a call to the part that lists a URI, or else to the first part that accepts it.

        Parts may accept URIs that they do not list, for example by a resource template.
        shown: the URI in the client's request.
        replace_uri: returns the same call with another URI.
        Raises RpcError if no part accepts the URI.
        """
        # If the resources of a part may have changed, the owner in the directory may be wrong: then
        # ask the parts one after the other. With maps_uris, read() has refreshed the directory just
        # before it called this method.
        owner, uri = None, shown
        if not self._directory.has_changed:
            owner, uri = self._directory.owners.find(shown)
        if uri != shown:
            call = replace_uri(uri)
        refusal: RpcError = ResourceNotFound(shown)
        for name, part in list(self.parts_with("resources")):
            is_candidate = owner is None or owner == name
            # A part may have been removed while another one was asked.
            if is_candidate and self._parts.get(name) is part:
                try:
                    return await self._forward(name, call, context)
                except RpcError as error:
                    if error.code not in NOT_FOUND_CODES or owner is not None:
                        raise
                    # If all parts refuse, the client gets the last error about the resource.
                    # METHOD_NOT_FOUND only says that a part has no such method.
                    if error.code != METHOD_NOT_FOUND:
                        refusal = error
        if starting := list(self._starts.starting.values()):
            # A part that is still starting may have the resource. Ask all parts again, since any
            # of them may have got it meanwhile.
            await asyncio.wait(starting)
            return await self._call_by_uri(call, context, shown, replace_uri)
        raise refusal

    async def read(self, call: Call, context: Context) -> Struct | Raw:
        """Forward `resources/read` to the part that has the resource, and return its result.

        Raises RpcError if no part has the resource. Also raises the errors of the part.
        """
        if (shown := call.name) is None:
            raise invalid_params("uri: expected the URI of a resource")

        def replace_uri(uri: str) -> Call:
            return replace(call, params={**call.params, "uri": Raw(encode(uri))})

        # To translate a URI with a prefix, the router must know which part lists the URI.
        if self._maps_uris:
            await self.refresh_owners()
        return await self._call_by_uri(call, context, shown, replace_uri)

    async def complete(self, call: Call, context: Context) -> Struct | Raw:
        """Forward `completion/complete` to the part that has the prompt or resource template.

        Raises RpcError if no part has the prompt or template, or if the part has no completions.
        Also raises the errors of the part.
        """
        try:
            ref = call.decode_params(CompleteParams).ref
        except DECODE_ERRORS as exc:
            raise invalid_params(str(exc)) from None
        if not isinstance(ref, PromptReference):
            # A name of its own, whose type is also known inside the function.
            template = ref

            def replace_uri(uri: str) -> Call:
                own_ref = Raw(encode(replace(template, uri=uri)))
                return replace(call, params={**call.params, "ref": own_ref})

            return await self._call_by_uri(call, context, ref.uri, replace_uri)
        name = ref.name
        part_name, own_name = await self._resolve_name(name, "prompt", "ref.name")
        if not self._part(part_name).features().completions:
            raise unknown_name("prompt", name, "ref.name")
        own_ref = Raw(encode(replace(ref, name=own_name)))
        try:
            own_call = replace(call, params={**call.params, "ref": own_ref})
            return await self._forward(part_name, own_call, context)
        except RpcError as error:
            raise _restore_name(error, "prompt", "ref.name", name, own_name) from None

    # Tasks and extensions

    async def call_other(self, call: Call, context: Context) -> Struct | Raw:
        """Forward a request about tasks, or a request of an extension.

        - A request about one task goes to the part that runs the task.
        - `tasks/list` is sent to all parts that list tasks, and their lists are joined.
        - Any other request goes to the part that find_part() returns.

        Raises RpcError if there is no such part. Also raises the errors of the part.
        """
        if call.method in TASK_METHODS and any(
            has_tasks(part.features()) for part in self._parts.values()
        ):
            return await self._call_task(call, context)
        serving = {
            name: part.features() for name, part in self._parts.items() if self._starts.serves(name)
        }
        if call.method == "tasks/list":
            listing = [name for name, features in serving.items() if can_list_tasks(features)]
            if listing:
                return await list_tasks(
                    listing,
                    call,
                    lambda name, own_call: self._forward(name, own_call, context),
                    self._report_failure,
                )
        name = find_part(call.method, serving)
        return await self._forward(name, call, context)

    async def _call_task(self, call: Call, context: Context) -> Struct | Raw:
        """Forward a request about a task to the part that runs the task."""
        try:
            shown = decode(call.params.get("taskId", Raw(b"null")), type=str)
        except DECODE_ERRORS:
            raise invalid_params("taskId: expected the id of a task") from None
        for name in self._parts:
            if (own_id := self._view_of(name).find_task(shown)) is not None:
                await self._starts.wait_for(name)
                own_call = replace(call, params={**call.params, "taskId": Raw(encode(own_id))})
                return await self._forward(name, own_call, context)
        raise invalid_params("taskId: no such task")


def _restore_name(
    error: RpcError,
    kind: str,
    member: str,
    name: str,
    own_name: str,
) -> RpcError:
    """Return a part's error. If it is "Unknown tool: NAME", NAME is replaced by the client's name.

    kind: "tool" or "prompt".
    member: the field of the params that contains the name.
    name: the name that the client has used.
    own_name: the part's own name.
    """
    # The text of unknown_name(), which the official SDKs also use for tools.
    if error.code == INVALID_PARAMS and error.message == f"Unknown {kind}: {own_name}":
        return unknown_name(kind, name, member)
    return error
