"""The official Python client, `mcp` 2.x, reads what examples/notes.py offers, over stdio, in both
eras.

It validates every result against its own models of the revision, and raises for what does not fit.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, MCPError, StdioServerParameters, stdio_client

import concertino

SOURCE = str(Path(concertino.__file__).parents[1])
NOTES = Path(__file__).parents[2] / "examples" / "notes.py"
ERAS = {"legacy": "2025-11-25", "auto": "2026-07-28"}
mode = pytest.mark.parametrize("mode", ERAS)
TEMPLATE = "notes://notes/{name}{?style}"

Talk = Callable[[Client], Awaitable[Any]]


def talk(mode: str, what: Talk, **settings: Any) -> None:
    async def run() -> None:
        parameters = StdioServerParameters(
            command=sys.executable, args=[str(NOTES)], env={"PYTHONPATH": SOURCE}
        )
        with tempfile.TemporaryFile("w+") as errlog:
            async with Client(
                stdio_client(parameters, errlog=errlog), mode=mode, **settings
            ) as client:
                await asyncio.wait_for(what(client), 20)

    asyncio.run(run())


def text_of(result: types.ReadResourceResult) -> str:
    [contents] = result.contents
    assert isinstance(contents, types.TextResourceContents)
    return contents.text


@mode
def test_it_lists_resources_and_templates(mode: str) -> None:
    async def what(client: Client) -> None:
        assert client.protocol_version == ERAS[mode]
        capabilities = client.server_capabilities
        assert capabilities.completions is not None
        assert capabilities.prompts is not None
        assert capabilities.resources is not None
        assert capabilities.resources.subscribe is True
        listed = await client.list_resources()
        resources = {item.uri: item for item in listed.resources}
        assert list(resources) == ["notes://source", "notes://logo", "notes://index"]
        source = resources["notes://source"]
        assert (source.name, source.title, source.mime_type) == (
            "notes.py",
            "The source of this server",
            "text/x-python",
        )
        assert source.size == NOTES.stat().st_size
        assert resources["notes://index"].annotations == types.Annotations(
            audience=["user"], priority=1.0
        )
        if mode != "legacy":
            assert (listed.ttl_ms, listed.cache_scope) == (60_000, "private")
        [template] = (await client.list_resource_templates()).resource_templates
        assert (template.uri_template, template.name, template.description) == (
            TEMPLATE,
            "note",
            "One note.",
        )

    talk(mode, what)


@mode
def test_it_reads_files_bytes_functions_and_templates(mode: str) -> None:
    async def what(client: Client) -> None:
        assert text_of(await client.read_resource("notes://source")) == NOTES.read_text()
        [logo] = (await client.read_resource("notes://logo")).contents
        assert isinstance(logo, types.BlobResourceContents)
        assert base64.b64decode(logo.blob) == b"\x89PNG\r\n\x1a\n"
        assert json.loads(text_of(await client.read_resource("notes://index"))) == {
            "shopping": 19,
            "ideas": 23,
        }
        assert (
            text_of(await client.read_resource("notes://notes/shopping")) == "Eggs, flour, plums."
        )
        assert (
            text_of(await client.read_resource("notes://notes/ideas?style=shouted"))
            == "A CAKE WITHOUT AN OVEN."
        )
        for uri in (
            "notes://notes/none",
            "notes://notes/ideas?style=sung",
            "notes://notes/..%2Fideas",
            "other://x",
        ):
            with pytest.raises(MCPError, match="Resource not found") as missing:
                await client.read_resource(uri)
            assert missing.value.code == (-32002 if mode == "legacy" else -32602)

    talk(mode, what)


@mode
def test_it_lists_and_gets_prompts(mode: str) -> None:
    async def what(client: Client) -> None:
        [prompt] = (await client.list_prompts()).prompts
        assert (prompt.name, prompt.title, prompt.description) == (
            "improve",
            "Improve a note",
            "Ask for a better note.",
        )
        assert prompt.arguments is not None
        shown = [(item.name, item.description, item.required) for item in prompt.arguments]
        assert shown == [
            ("name", "The name of the note.", True),
            ("sentences", "The most sentences that the new note may have.", False),
            ("tone", None, False),
        ]
        found = await client.get_prompt("improve", {"name": "ideas", "sentences": "2"})
        resource, question, answer = found.messages
        assert isinstance(resource.content, types.EmbeddedResource)
        assert isinstance(question.content, types.TextContent)
        assert question.content.text == "Improve this note in at most 2 friendly sentences."
        assert answer.role == "assistant"
        for arguments in ({}, {"name": "ideas", "sentences": "two"}):
            with pytest.raises(MCPError) as refused:
                await client.get_prompt("improve", arguments)
            assert refused.value.code == -32602

    talk(mode, what)


@mode
def test_it_completes(mode: str) -> None:
    async def what(client: Client) -> None:
        prompt = types.PromptReference(type="ref/prompt", name="improve")
        template = types.ResourceTemplateReference(type="ref/resource", uri=TEMPLATE)
        for ref, name, value, expected in (
            (prompt, "name", "", ["shopping", "ideas"]),
            (prompt, "name", "sh", ["shopping"]),
            (prompt, "tone", "f", ["friendly", "formal"]),
            (template, "name", "i", ["ideas"]),
            (template, "style", "s", ["shouted"]),
        ):
            found = await client.complete(ref, {"name": name, "value": value}, {"tone": "formal"})
            assert found.completion.values == expected
            assert found.completion.total == len(expected)

    talk(mode, what)


@pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")
def test_it_subscribes_and_hears_of_updates_and_of_changed_lists() -> None:
    heard: asyncio.Queue[Any] = asyncio.Queue()

    async def on_message(message: Any) -> None:
        heard.put_nowait(message)

    async def what(client: Client) -> None:
        await client.subscribe_resource("notes://notes/ideas")
        await client.call_tool("write", {"name": "ideas", "text": "None."})
        updated = await heard.get()
        assert isinstance(updated, types.ResourceUpdatedNotification)
        assert updated.params.uri == "notes://notes/ideas"
        assert text_of(await client.read_resource("notes://notes/ideas")) == "None."
        await client.unsubscribe_resource("notes://notes/ideas")
        await client.call_tool("write", {"name": "ideas", "text": "One."})
        await client.call_tool("pin", {"name": "ideas"})
        assert isinstance(
            await heard.get(), types.ResourceListChangedNotification
        )  # and nothing before it
        assert "notes://pinned/ideas" in [
            item.uri for item in (await client.list_resources()).resources
        ]

    talk("legacy", what, message_handler=on_message)
