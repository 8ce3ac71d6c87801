"""A client of FastMCP against a server of ours: what it is asked. Prints what came of each tool.
Run by its own interpreter.

python asking_fastmcp.py PYTHON SERVER SOURCE < tools as JSON
"""

import asyncio
import json
import sys
from typing import Any

from fastmcp import Client
from fastmcp.client.transports import StdioTransport

ANSWERS: dict[str, Any] = {
    "name": "Ada",
    "color": "red",
    "ok": True,
    "username": "ada",
    "email": "ada@example.com",
    "context": "poetry",
}


async def answer_elicitation(message: str, response_type: Any, params: Any, context: Any) -> Any:
    schema = getattr(params, "requestedSchema", None) or params.requested_schema
    return {
        name: item.get("default", ANSWERS.get(name)) for name, item in schema["properties"].items()
    }


async def answer_sampling(messages: Any, params: Any, context: Any) -> str:
    most = getattr(params, "maxTokens", None) or params.max_tokens
    return f"at most {most}"


async def main() -> None:
    python, server, source = sys.argv[1:]
    transport = StdioTransport(python, [server], env={"PYTHONPATH": source})
    said: dict[str, str] = {}
    async with Client(
        transport,
        elicitation_handler=answer_elicitation,
        sampling_handler=answer_sampling,
        roots=["file:///work"],
    ) as client:
        for name, arguments in json.load(sys.stdin):
            try:
                said[name] = (await client.call_tool(name, arguments)).content[0].text
            except Exception as error:
                said[name] = f"{type(error).__name__}: {error}"
        prompt = await client.get_prompt("test_input_required_result_prompt")
        said["prompt"] = prompt.messages[0].content.text
    print(json.dumps(said))


asyncio.run(main())
