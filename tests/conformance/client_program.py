"""A client for the official conformance suite: `client_program.py URL`.

The suite starts one for each of its scenarios of clients, and says in variables of the environment
which one it is. See tests/conformance/client_suite.py.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from http.client import HTTPConnection
from typing import Any, Literal
from urllib.parse import urlsplit

from concertino import Client, ConcertinoError
from concertino.authorization import OAuth
from concertino.client import HttpParameters, Timeouts

SCENARIO = os.environ["MCP_CONFORMANCE_SCENARIO"]
CONTEXT: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
IS_MODERN = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", "2026-07-28") >= "2026-07-28"
ERA: Literal["modern", "legacy"] = "modern" if IS_MODERN else "legacy"
REDIRECT = "http://localhost:3000/callback"
CLIENT_METADATA = "https://conformance-test.local/client-metadata.json"


async def authorize(page: str) -> str:
    """Return where the authorization server sends the browser; nobody has to log in there."""
    return await asyncio.to_thread(_read_location, page)


def _read_location(page: str) -> str:
    parts = urlsplit(page)
    connection = HTTPConnection(parts.netloc, timeout=20)
    connection.request("GET", f"{parts.path}?{parts.query}")
    location = connection.getresponse().getheader("Location")
    assert location is not None, page
    return location


def settings() -> OAuth:
    """How to log in, by what the scenario gives."""
    if SCENARIO in ("auth/client-credentials-basic", "auth/client-credentials-jwt"):
        return OAuth(
            client_id=CONTEXT["client_id"],
            client_secret=CONTEXT.get("client_secret", ""),
            private_key=CONTEXT.get("private_key_pem", ""),
            key_algorithm=CONTEXT.get("signing_algorithm", "ES256"),
            grant="client_credentials",
        )
    return OAuth(
        client_id=CONTEXT.get("client_id", ""),
        client_secret=CONTEXT.get("client_secret", ""),
        client_metadata_url=CLIENT_METADATA,
        redirect_uri=REDIRECT,
        authorize=authorize,
    )


def answer(*_: Any) -> dict[str, Any]:
    """Accept a question without saying more: the library fills in the defaults."""
    return {}


async def call_all(client: Client, names: tuple[str, ...]) -> None:
    """Call tools by name, with arguments by their schemas."""
    tools = {tool.name: tool for tool in await client.list_tools()}
    for name in names or tools:
        schema = tools[name].input_schema if name in tools else {}
        arguments = {
            key: 3 if item.get("type") in ("number", "integer") else "x"
            for key, item in dict(schema.get("properties", {})).items()
        }
        await client.call_tool(name, arguments)


async def use_everything(client: Client) -> None:
    await call_all(client, ())
    for resource in await client.list_resources():
        await client.read_resource(resource.uri)
    for prompt in await client.list_prompts():
        await client.get_prompt(prompt.name, {item.name: "x" for item in prompt.arguments or ()})


async def use_custom_headers(client: Client) -> None:
    await client.list_tools()
    for call in CONTEXT["toolCalls"]:
        await client.call_tool(call["name"], call["arguments"])


async def use_rounds(client: Client) -> None:
    await client.list_tools()
    first = asyncio.create_task(client.call_tool("test_mrtr_echo_state", {}))
    await client.call_tool("test_mrtr_unrelated", {})
    await first
    await client.call_tool("test_mrtr_no_state", {})
    await client.call_tool("test_mrtr_no_result_type", {})


async def preserve_schema(client: Client) -> None:
    tools = {tool.name: tool for tool in await client.list_tools()}
    schema = tools["json_schema_2020_12_tool"].input_schema
    await client.call_tool("json_schema_echo", {"schema": schema})


async def list_only(client: Client) -> None:
    await client.list_tools()


async def use_tools(client: Client) -> None:
    await call_all(client, ())


TALKS = {
    "initialize": list_only,
    "elicitation-sep1034-client-defaults": lambda client: client.call_tool(
        "test_client_elicitation_defaults", {}
    ),
    "sse-retry": lambda client: client.call_tool("test_reconnection", {}),
    "request-metadata": list_only,
    "sep-2322-client-request-state": use_rounds,
    "http-standard-headers": use_everything,
    "http-custom-headers": use_custom_headers,
    "json-schema-ref-no-deref": list_only,
    "json-schema-2020-12-preservation": preserve_schema,
}


async def main(url: str) -> None:
    auth = settings() if SCENARIO.startswith("auth/") else None
    async with Client(
        HttpParameters(url, auth=auth),
        era=ERA,
        elicit=answer,
        sample=answer,
        roots=[],
        timeouts=Timeouts(connect_s=25, request_s=25),
    ) as client:
        await TALKS.get(SCENARIO, use_tools)(client)


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[-1]))
    except ConcertinoError as exc:
        sys.exit(f"{type(exc).__name__}: {exc}")
