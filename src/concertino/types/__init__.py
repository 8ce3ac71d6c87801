"""The values of MCP: content, results, items of lists, and requests of a server to its client.

The values are msgspec Structs in the form of revision 2026-07-28, for servers and clients. An
attribute such as mime_type is mimeType on the wire, and meta is `_meta`. The public names of this
package are listed below; each is imported on its first use.
"""

from __future__ import annotations

from concertino.loading import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concertino.types.client_requests import (
        Accepted as Accepted,
        CreateMessageResult as CreateMessageResult,
        Declined as Declined,
        Elicitation as Elicitation,
        ElicitResult as ElicitResult,
        ListRoots as ListRoots,
        ListRootsResult as ListRootsResult,
        Root as Root,
        Sampling as Sampling,
        SamplingMessage as SamplingMessage,
        ToolResultContent as ToolResultContent,
        ToolUseContent as ToolUseContent,
    )
    from concertino.types.completion import (
        PromptReference as PromptReference,
        ResourceTemplateReference as ResourceTemplateReference,
    )
    from concertino.types.resources_and_prompts import (
        Completion as Completion,
        GetPromptResult as GetPromptResult,
        Prompt as Prompt,
        PromptArgument as PromptArgument,
        PromptMessage as PromptMessage,
        Resource as Resource,
        ResourceTemplate as ResourceTemplate,
    )
    from concertino.types.results import (
        Annotations as Annotations,
        AudioContent as AudioContent,
        CallToolResult as CallToolResult,
        ContentBlock as ContentBlock,
        EmbeddedResource as EmbeddedResource,
        Icon as Icon,
        ImageContent as ImageContent,
        Implementation as Implementation,
        Level as Level,
        ReadResourceResult as ReadResourceResult,
        ResourceContents as ResourceContents,
        ResourceLink as ResourceLink,
        TextContent as TextContent,
        Tool as Tool,
        ToolAnnotations as ToolAnnotations,
    )

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "concertino.types.completion": ("PromptReference", "ResourceTemplateReference"),
        "concertino.types.resources_and_prompts": (
            "Completion",
            "GetPromptResult",
            "Prompt",
            "PromptArgument",
            "PromptMessage",
            "Resource",
            "ResourceTemplate",
        ),
        "concertino.types.results": (
            "Annotations",
            "AudioContent",
            "CallToolResult",
            "ContentBlock",
            "EmbeddedResource",
            "Icon",
            "ImageContent",
            "Implementation",
            "Level",
            "ReadResourceResult",
            "ResourceContents",
            "ResourceLink",
            "TextContent",
            "Tool",
            "ToolAnnotations",
        ),
        "concertino.types.client_requests": (
            "Accepted",
            "CreateMessageResult",
            "Declined",
            "Elicitation",
            "ElicitResult",
            "ListRoots",
            "ListRootsResult",
            "Root",
            "Sampling",
            "SamplingMessage",
            "ToolResultContent",
            "ToolUseContent",
        ),
    },
)
