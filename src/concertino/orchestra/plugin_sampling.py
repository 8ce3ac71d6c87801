"""sample_at_hub(): sends a sampling request of a plugin's tool to an AI provider at the hub.

A hub runs plugins, programs with tools, and forwards calls between them. A tool uses
sample_at_hub() by context.sample(), and an MCP server of a plugin by its sampling requests. In MCP,
the client answers sampling requests with its model. The plugin protocol has no requests to the
client, so the request goes to another plugin, which gives access to an AI provider:

- Such a plugin of this package (ai_provider.py) has the tool ai_sample, which takes a whole
  sampling request.
- A plugin of the Go implementation only has ai_prompt, which takes one text. It can answer a
  request with a single message of text and no tools.
"""

from __future__ import annotations

from msgspec import Raw, to_builtins
from msgspec.json import Decoder, encode

from concertino.errors import INTERNAL_ERROR, MissingCapability, RpcError
from concertino.orchestra.plugin_messages import (
    PluginRequest,
    StreamStart,
    ToolRequest,
    ToolResponse,
)
from concertino.orchestra.rpc_interface import RpcConnection
from concertino.orchestra.structs import NotAStruct, PackedTooLarge, pack, unpack
from concertino.types.client_requests import CreateMessageResult, Sampling
from concertino.types.results import TextContent

__all__ = ["MODEL_TOOLS", "decode_sample_result", "sample_at_hub"]

# The tools that answer sampling requests.
MODEL_TOOLS = ("ai_sample", "ai_prompt")
decode_sample_result = Decoder(CreateMessageResult).decode
# The time limit of a sampling request, in seconds.
SAMPLE_S = 600.0


async def sample_at_hub(
    hub: RpcConnection,
    sampling: Sampling,
    call: ToolRequest | StreamStart,
    plugin: str,
) -> Raw:
    """Send a sampling request to an AI provider, and return the JSON of its CreateMessageResult.

    hub: the connection to the hub, which forwards the request to a plugin.
    sampling: the request. Its metadata may name a provider: {"orchestra/provider": "openai"}.
    call: the tool call that causes the request. The request gets the call's trace context and
        session id.
    plugin: the id of the plugin that runs the tool.
    Raises MissingCapability if the hub has no provider for the request, and RpcError if the
    provider fails.
    """
    provider = str((sampling.metadata or {}).get("orchestra/provider", ""))

    async def ask(tool: str, arguments: dict[str, object]) -> ToolResponse:
        try:
            packed = pack(arguments)
        except (NotAStruct, PackedTooLarge) as exc:
            raise RpcError(INTERNAL_ERROR, f"sample: {exc}") from None
        request = ToolRequest(
            tool_name=tool,
            arguments=packed.struct,
            arguments_json=packed.json,
            caller_plugin=plugin,
            trace_parent=call.trace_parent,
            trace=call.trace,
            provider=provider,
            session_id=call.session_id,
        )
        response = await hub.request(PluginRequest(tool_call=request), SAMPLE_S)
        return response.tool_call

    response = await ask("ai_sample", {"request": to_builtins(sampling)})
    prompt = _single_text(sampling)
    # If no plugin has the tool ai_sample, the tool ai_prompt is enough for a single text.
    if response.error_code == "tool_not_found" and prompt is not None:
        arguments: dict[str, object] = {"prompt": prompt}
        if sampling.system_prompt:
            arguments["system_prompt"] = sampling.system_prompt
        response = await ask("ai_prompt", arguments)
        if response.success:
            text = str(unpack(response.result, response.result_json).get("text", ""))
            # The result of the tool does not name the model.
            return Raw(encode(CreateMessageResult("assistant", TextContent(text), "unknown")))
    if response.success:
        return Raw(encode(unpack(response.result, response.result_json)))
    message = response.error_message or response.error_code
    if response.error_code == "tool_not_found":
        raise MissingCapability(f"the hub has no AI provider for this: {message}", {"sampling": {}})
    raise RpcError(INTERNAL_ERROR, f"sample: {message}")


def _single_text(sampling: Sampling) -> str | None:
    """Return the text of a request with one message of text and no tools; None for any other."""
    if len(sampling.messages) != 1 or sampling.tools:
        return None
    content = sampling.messages[0].content
    return content.text if isinstance(content, TextContent) else None
