"""The official Python client, `mcp` 2.x, is served a folder of Markdown over stdio, in both eras,
and told of an edit.

It validates every result against its own models of the revision, and raises for what does not fit.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from corpora import EXAMPLE, each_corpus
from mcp import Client, MCPError, StdioServerParameters, stdio_client

import concertino

SOURCE = str(Path(concertino.__file__).parents[1])
ERAS = {"legacy": "2025-11-25", "auto": "2026-07-28"}
mode = pytest.mark.parametrize("mode", ERAS)

Talk = Callable[[Client], Awaitable[Any]]


def talk(mode: str, folder: Path, what: Talk, **settings: Any) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryFile("w+") as errlog:
            parameters = StdioServerParameters(
                command=sys.executable,
                args=["-m", "concertino", "serve", str(folder)],
                env={"PYTHONPATH": SOURCE, "XDG_CACHE_HOME": cache},
            )
            async with Client(
                stdio_client(parameters, errlog=errlog), mode=mode, **settings
            ) as client:
                assert client.protocol_version == ERAS[mode]
                await asyncio.wait_for(what(client), 60)

    asyncio.run(run())


def text_of(result: types.ReadResourceResult) -> str:
    [contents] = result.contents
    assert isinstance(contents, types.TextResourceContents)
    return contents.text


@each_corpus
@mode
def test_a_corpus_is_listed_read_matched_and_completed(mode: str, corpus: Path) -> None:
    files = {
        path.relative_to(corpus / "resources").as_posix(): path
        for path in (corpus / "resources").rglob("*.md")
    }
    if corpus == EXAMPLE:
        prompt, given = "write-tests", {"server": "a {{task}}", "tools": "all"}
        query, beginning = "test+server", "# Tests for a {{task}} (all)\n"
    else:
        prompt, given = "fix-bug", {"task": "a {{task}} that hangs"}
        query, beginning = "react+hooks", "# Fix Bug: a {{task}} that hangs\n"

    async def what(client: Client) -> None:
        listed = (await client.list_resources()).resources
        assert len(listed) == len(files)
        for item in listed:
            path = item.uri.removeprefix("orchestr8://") + ".md"
            assert item.mime_type == "text/markdown"
            assert text_of(await client.read_resource(item.uri)) == files[path].read_text()
        templates = (await client.list_resource_templates()).resource_templates
        assert "orchestr8://{category}/match" in {
            item.uri_template.partition("{?")[0] for item in templates
        }
        found = await client.read_resource(
            f"orchestr8://match?query={query}&categories=agent,skill&mode=minimal"
        )
        shown = [item["uri"] for item in json.loads(text_of(found))["fragments"]]
        assert shown
        assert set(shown) <= {item.uri for item in listed}
        registry = json.loads(text_of(await client.read_resource("orchestr8://registry")))
        assert registry["documents"] == len(files)
        prompts = {item.name: item for item in (await client.list_prompts()).prompts}
        assert len(prompts) == len(list((corpus / "prompts").glob("*.md")))
        got = await client.get_prompt(prompt, given)
        content = got.messages[0].content
        assert isinstance(content, types.TextContent)
        assert content.text.startswith(beginning)
        completed = await client.complete(
            types.ResourceTemplateReference(uri="orchestr8://{category}"),
            {"name": "category", "value": "ag"},
        )
        assert completed.completion.values == ["agents"]

    talk(mode, corpus, what)


@mode
def test_what_cannot_be_read_is_an_error_that_says_so(mode: str, tmp_path: Path) -> None:
    (tmp_path / "resources" / "agents").mkdir(parents=True)
    (tmp_path / "resources" / "agents" / "one.md").write_text("# One\n")
    (tmp_path / "secret.md").write_text("secret")
    (tmp_path / "resources" / "agents" / "link.md").symlink_to(tmp_path / "secret.md")

    async def what(client: Client) -> None:
        for path in ("nope", "agents/link", "agents/%2e%2e/%2e%2e/secret", "/etc/passwd"):
            uri = f"orchestr8://{path}"
            with pytest.raises(MCPError) as refused:
                await client.read_resource(uri)
            assert refused.value.code == (-32002 if mode == "legacy" else -32602)
            assert refused.value.message == f"Resource not found: {uri}"

    talk(mode, tmp_path, what)


def test_an_edit_is_told_and_seen(tmp_path: Path) -> None:
    (tmp_path / "resources" / "agents").mkdir(parents=True)
    file = tmp_path / "resources" / "agents" / "one.md"
    file.write_text("# One\n")

    async def what(client: Client) -> None:
        assert text_of(await client.read_resource("orchestr8://agents/one")) == "# One\n"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its age: 2026-07-28 has another way
            await client.subscribe_resource("orchestr8://agents/one")
        async with asyncio.timeout(30):
            number = 0
            while (
                not told.is_set()
            ):  # until the system has begun to listen, an edit is seen with the next look
                number += 1
                file.write_text(f"# Number {number}\n")
                try:
                    await asyncio.wait_for(told.wait(), 1)
                except TimeoutError:
                    pass
            while (
                text_of(await client.read_resource("orchestr8://agents/one"))
                != f"# Number {number}\n"
            ):
                await asyncio.sleep(0.01)

    told = asyncio.Event()

    async def heard(message: Any) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            assert str(message.params.uri) == "orchestr8://agents/one"
            told.set()

    talk("legacy", tmp_path, what, message_handler=heard)
