"""Prints results, lists and resources of a server.

The output of a server is untrusted, so control characters are escaped on a terminal. Into a pipe or
a file, texts and bytes are written unchanged. In lines that this module composes, such as lists of
names, control characters are always escaped.
"""

from __future__ import annotations

import sys
from typing import Any, cast

from msgspec import UNSET, Raw, Struct
from msgspec.json import decode, encode, format

from concertino.cli.call_arguments import Parameters, properties_of
from concertino.cli.terminal_text import escape_json, escape_lines
from concertino.decode_errors import DECODE_ERRORS
from concertino.logs.formats import escape_controls
from concertino.types.resources_and_prompts import (
    GetPromptResult,
    Prompt,
    Resource,
    ResourceTemplate,
)
from concertino.types.results import (
    AudioContent,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceLink,
    TextContent,
    Tool,
)

__all__ = [
    "format_prompt",
    "format_resource",
    "format_tool",
    "print_contents",
    "print_json",
    "print_prompt",
    "print_tool_result",
]


def _print_text(text: str) -> None:
    print(escape_lines(text) if sys.stdout.isatty() else text)  # noqa: T201


def print_json(raw: Raw) -> None:
    """Print JSON as one line, with control characters escaped.

    Characters outside ASCII are escaped too if stdout is not UTF-8.
    """
    is_unicode = sys.stdout.encoding.lower() in ("utf-8", "utf8")
    print(escape_json(bytes(raw), is_unicode=is_unicode))  # noqa: T201


def print_tool_result(result: CallToolResult) -> None:
    """Print the content of a tool's result, or the structured content if there is no content."""
    for block in result.content:
        message = _error_message(block) if result.is_error and sys.stdout.isatty() else ""
        if message:
            _print_text(message)
        else:
            _print_block(block)
    # Usually the content repeats the structured content. Print the structured content only if there
    # is no content.
    if not result.content and result.structured_content is not UNSET:
        _print_text(format(encode(result.structured_content)).decode())


def _error_message(block: ContentBlock) -> str:
    """Return the message for people in a tool error that is written as JSON.

    Servers made with concertino report invalid arguments in this form. Returns "" for any other
    block.
    """
    if not isinstance(block, TextContent):
        return ""
    try:
        return decode(block.text, type=_InvalidArguments).error
    except DECODE_ERRORS:
        return ""


class _InvalidArguments(Struct, tag_field="code", tag="INVALID_ARGUMENTS"):
    """The JSON in which a server made with concertino reports invalid arguments of a tool.

    error: the message for people.
    """

    error: str


def print_prompt(prompt: GetPromptResult) -> None:
    """Print the messages of a prompt, each below its role."""
    for message in prompt.messages:
        print(f"[{message.role}]")  # noqa: T201
        _print_block(message.content)


def _print_block(block: ContentBlock) -> None:
    match block:
        case TextContent():
            _print_text(block.text)
        case ImageContent() | AudioContent():
            kind = "image" if isinstance(block, ImageContent) else "audio"
            _print_text(f"[{kind} {block.mime_type}, {len(block.data)} bytes]")
        case ResourceLink():
            _print_text(f"[{block.title or block.name}] {block.uri}")
        case EmbeddedResource():
            print_contents(block.resource, is_embedded=True)


def print_contents(contents: ResourceContents, *, is_embedded: bool = False) -> None:
    """Print the text or the bytes of a resource.

    Bytes are written unchanged into a pipe or a file. On a terminal, only their number is printed.

    is_embedded: whether the resource is part of the result of a tool or prompt. Then only the
        number of its bytes is printed.
    """
    if contents.blob is UNSET:
        _print_text("" if contents.text is UNSET else contents.text)
    elif is_embedded or sys.stdout.isatty():
        kind = contents.mime_type or "bytes"
        _print_text(f"[{contents.uri}: {kind}, {len(contents.blob)} bytes]")
    else:
        # Write the output that print() has buffered before the bytes.
        sys.stdout.flush()
        sys.stdout.buffer.write(contents.blob)


def format_tool(tool: Tool) -> list[str]:
    """Return the lines for a tool: its name and arguments, its description, each argument."""
    accepted = Parameters.of_schema(tool.input_schema)
    words = [name if name in accepted.required else f"[{name}]" for name in accepted.types]
    title = tool.title or (tool.annotations.title if tool.annotations else None)
    lines = [escape_controls(" ".join([tool.name, *words]))]
    lines += _format_description(title, tool.description)
    for name, schema in properties_of(tool.input_schema).items():
        # A schema may also be `true` or `false`, about which there is nothing to say.
        if isinstance(schema, dict):
            description = cast("dict[str, Any]", schema).get("description")
            text = f"{name}: {accepted.types[name]}" + (f" - {description}" if description else "")
            lines.append("    " + escape_controls(" ".join(text.split())))
    return lines


def format_prompt(prompt: Prompt) -> list[str]:
    """Return the lines for a prompt: its name and arguments, its description, each argument."""
    arguments = prompt.arguments or []
    words = [item.name if item.required else f"[{item.name}]" for item in arguments]
    lines = [escape_controls(" ".join([prompt.name, *words]))]
    lines += _format_description(prompt.title, prompt.description)
    for item in arguments:
        if item.description:
            lines.append(f"    {escape_controls(item.name)}: {escape_controls(item.description)}")
    return lines


def format_resource(resource: Resource | ResourceTemplate) -> list[str]:
    """Return the lines for a resource or a resource template."""
    uri = resource.uri if isinstance(resource, Resource) else resource.uri_template
    kind = f"  {resource.mime_type}" if resource.mime_type else ""
    title = resource.title or resource.name
    return [escape_controls(uri + kind), *_format_description(title, resource.description)]


def _format_description(title: str | None, description: str | None) -> list[str]:
    lines = [title] if title else []
    if description:
        lines += description.strip().split("\n")
    return [f"  {escape_controls(line.strip())}".rstrip() for line in lines]
