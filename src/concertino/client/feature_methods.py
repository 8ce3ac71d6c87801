"""FeatureMethods: the methods of Client for resources, prompts and completion.

Subscriptions to resources are in client/client.py, because they outlive a restart of the server.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.json import encode

from concertino.client.connection_facts import ConnectionFacts
from concertino.client.output_validation import decode_result
from concertino.types.completion import (
    CompleteParams,
    CompletionArgument,
    CompletionContext,
    PromptReference,
    ResourceTemplateReference,
)
from concertino.types.resources_and_prompts import (
    CompleteResult,
    Completion,
    GetPromptResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    Prompt,
    Resource,
    ResourceTemplate,
)
from concertino.types.results import ReadResourceResult


class FeatureMethods(ConnectionFacts):
    """The methods of Client that list, read and complete what a server offers besides tools."""

    # Resources

    async def list_resources(self) -> list[Resource]:
        """Return all resources, from all pages of the list.

        The list does not contain resources that are read through a resource template;
        list_resource_templates() returns the templates.
        Raises NotSupported if the server does not declare the capability `resources`, RpcError,
        TimedOut, Disconnected and ProtocolError.
        """
        return await self._connection.fetch_list(
            "resources/list", ListResourcesResult, lambda page: page.resources
        )

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        """Return all resource templates, from all pages of the list.

        A resource template is a URI with variables, such as `file:///{path}`.
        Raises NotSupported if the server does not declare the capability `resources`, RpcError,
        TimedOut, Disconnected and ProtocolError.
        """
        return await self._connection.fetch_list(
            "resources/templates/list",
            ListResourceTemplatesResult,
            lambda page: page.resource_templates,
        )

    async def read_resource(
        self, uri: str, *, timeout_s: float | None = None
    ) -> ReadResourceResult:
        """Return the contents of a resource.

        uri: the URI of a resource, or one that fits a resource template.
        timeout_s: how many seconds to wait for the response; by default timeouts.request_s.
        Raises RpcError if the server has no such resource (code -32602, or -32002 before
        2026-07-28), NotSupported if the server does not declare the capability `resources`,
        TimedOut, Disconnected if the server ends, and ProtocolError if the result is malformed.
        """
        self._connection.require("resources")
        raw = await self._connection.call("resources/read", encode({"uri": uri}), uri, timeout_s)
        return decode_result("resources/read", raw, ReadResourceResult)

    # Prompts and completion

    async def list_prompts(self) -> list[Prompt]:
        """Return all prompts, from all pages of the list.

        Raises NotSupported if the server does not declare the capability `prompts`, RpcError,
        TimedOut, Disconnected and ProtocolError.
        """
        return await self._connection.fetch_list(
            "prompts/list", ListPromptsResult, lambda page: page.prompts
        )

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> GetPromptResult:
        """Return the messages of a prompt, with the arguments filled in.

        arguments: name -> value; all values are strings. None for no arguments.
        timeout_s: how many seconds to wait for the response; by default timeouts.request_s.
        Raises RpcError if the server has no such prompt or refuses the arguments, NotSupported if
        it does not declare the capability `prompts`, TimedOut, Disconnected if the server ends, and
        ProtocolError if the result is malformed.
        """
        self._connection.require("prompts")
        body = encode({"name": name, "arguments": dict(arguments or {})})
        raw = await self._connection.call("prompts/get", body, name, timeout_s)
        return decode_result("prompts/get", raw, GetPromptResult)

    async def complete(
        self,
        ref: PromptReference | ResourceTemplateReference,
        argument: str,
        value: str,
        *,
        chosen: Mapping[str, str] | None = None,
    ) -> Completion:
        """Return suggested values for an argument of a prompt or a variable of a resource template.

        ref: the reference to the prompt or the resource template.
        argument: the name of the argument or variable.
        value: the text that the user has typed so far; may be empty.
        chosen: name -> value of the other arguments that the user has chosen already; None if the
            user has chosen none.
        Raises NotSupported if the server does not declare the capability `completions`, RpcError
        for an error response, TimedOut, Disconnected if the server ends, and ProtocolError if the
        result is malformed.
        """
        # In revision 2024-11-05 servers may support completion, but cannot declare it.
        revision = self._connection.current.server.revision
        if revision is None or revision.completions:
            self._connection.require("completions")
        context = CompletionContext(dict(chosen)) if chosen else CompletionContext()
        params = CompleteParams(ref, CompletionArgument(argument, value), context)
        raw = await self._connection.call("completion/complete", encode(params), argument, None)
        return decode_result("completion/complete", raw, CompleteResult).completion
