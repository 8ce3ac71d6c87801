"""A server with all features that the official conformance suite tests.

`scripts/conformance` runs the suite against it. The suite defines the names and texts.
"""

import asyncio
import json
import struct
import zlib
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta
from msgspec.json import decode

from concertino import Context, Server, ToolError, audio, choices, image, user
from concertino.types import (
    AudioContent,
    Elicitation,
    ElicitResult,
    EmbeddedResource,
    ImageContent,
    ListRoots,
    PromptMessage,
    ResourceContents,
    Sampling,
    SamplingMessage,
    TextContent,
)

server = Server(
    "everything",
    version="1.0.0",
    instructions="Fixtures for conformance tests; none of them does anything.",
)


def _png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


# A PNG of one red pixel.
RED_PIXEL = (
    b"\x89PNG\r\n\x1a\n"
    + _png_chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))
    + _png_chunk(b"IDAT", zlib.compress(b"\0\xff\0\0"))
    + _png_chunk(b"IEND", b"")
)
# A WAV file of an eighth of a second of silence.
SILENCE = (
    b"RIFF"
    + struct.pack(
        "<I4s4sIHHIIHH4sI", 1036, b"WAVE", b"fmt ", 16, 1, 1, 8000, 8000, 1, 8, b"data", 1000
    )
    + b"\x80" * 1000
)


# Tools


@server.tool(inline=True)
def test_simple_text() -> str:
    """Return a text."""
    return "This is a simple text response for testing."


@server.tool(inline=True)
def test_image_content() -> ImageContent:
    """Return a picture."""
    return image(RED_PIXEL)


@server.tool(inline=True)
def test_audio_content() -> AudioContent:
    """Return a sound."""
    return audio(SILENCE)


@server.tool(inline=True)
def test_embedded_resource() -> EmbeddedResource:
    """Return a resource with its content."""
    text = "This is an embedded resource content."
    return EmbeddedResource(
        ResourceContents("test://embedded-resource", text=text, mime_type="text/plain")
    )


@server.tool(inline=True)
def test_multiple_content_types() -> list[TextContent | ImageContent | EmbeddedResource]:
    """Return text, a picture and a resource."""
    text = '{"test":"data","value":123}'
    resource = ResourceContents(
        "test://mixed-content-resource", text=text, mime_type="application/json"
    )
    return [
        TextContent("Multiple content types test:"),
        image(RED_PIXEL),
        EmbeddedResource(resource),
    ]


@server.tool(inline=True)
def test_error_handling() -> str:
    """Fail with a ToolError."""
    raise ToolError("This tool intentionally returns an error for testing")


@server.tool
async def test_tool_with_logging(context: Context) -> str:
    """Send three log messages."""
    await context.log("info", "Tool execution started")
    await asyncio.sleep(0.05)
    await context.log("info", "Tool processing data")
    await asyncio.sleep(0.05)
    await context.log("info", "Tool execution completed")
    return "Logged three times."


@server.tool
async def test_logging_tool(context: Context) -> str:
    """Send one log message; a 2026-07-28 client gets it only if it requested logging."""
    await context.log("info", "This is a log message for testing")
    return "Logged once."


@server.tool
async def test_tool_with_progress(context: Context) -> str:
    """Report progress three times."""
    await context.progress(0, 100)
    await asyncio.sleep(0.05)
    await context.progress(50, 100)
    await asyncio.sleep(0.05)
    await context.progress(100, 100)
    return "Reported progress three times."


# The kinds of which the trigger tools have added an item: "tool", "prompt".
added: set[str] = set()


@server.tool(inline=True)
def test_trigger_tool_change() -> str:
    """Add a tool, or remove it if it was added before."""
    if "tool" in added:
        server.remove_tool("test_added_tool")
    else:
        server.add_tool(nothing, name="test_added_tool")
    added.symmetric_difference_update({"tool"})
    return "The list of tools has changed."


@server.tool(inline=True)
def test_trigger_prompt_change() -> str:
    """Add a prompt, or remove it if it was added before."""
    if "prompt" in added:
        server.remove_prompt("test_added_prompt")
    else:
        server.add_prompt(nothing, name="test_added_prompt")
    added.symmetric_difference_update({"prompt"})
    return "The list of prompts has changed."


def nothing() -> str:
    """Do nothing; the trigger tools add and remove this."""
    return "Nothing."


def json_schema_2020_12_tool(arguments: dict[str, Any]) -> str:
    """Accept arguments with a JSON Schema that Python types cannot express."""
    return f"Reached by {arguments.get('contactMethod', 'any way')}."


server.add_tool(
    json_schema_2020_12_tool,
    inline=True,
    input_schema={
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    },
)


# Tools for scenarios that exist over HTTP only


@server.tool(inline=True)
def test_x_mcp_header(
    region: Annotated[str, Meta(extra_json_schema={"x-mcp-header": "Region"})],
) -> str:
    """Return an argument that clients repeat in the header Mcp-Param-Region."""
    return f"Region: {region}"


@server.tool
async def test_reconnection() -> str:
    """Return a text so late that the client comes back for it, if --poll is 1 second."""
    await asyncio.sleep(1.5)
    return "Reconnection test completed successfully."


# Tools that send client requests


@dataclass
class Name:
    name: str


@dataclass
class Color:
    color: str


@dataclass
class Topic:
    context: str


@dataclass
class Confirmation:
    ok: bool


@dataclass
class Account:
    username: str
    email: str


@dataclass
class Profile:
    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: Literal["active", "inactive", "pending"] = "active"
    verified: bool = True


Options = Literal["option1", "option2", "option3"]
OPTIONS = ["option1", "option2", "option3"]
TITLED = {"value1": "First Option", "value2": "Second Option", "value3": "Third Option"}
TitledOptions = Annotated[Literal["value1", "value2", "value3"], choices(TITLED)]


@dataclass
class Choices:
    # The suite defines these names.
    untitledSingle: Options  # noqa: N815
    titledSingle: TitledOptions  # noqa: N815
    untitledMulti: list[Options]  # noqa: N815
    titledMulti: list[TitledOptions]  # noqa: N815


@server.tool
async def test_sampling(prompt: str, context: Context) -> str:
    """Ask the client's model to answer a prompt."""
    answer = await context.sample(prompt, 100)
    return f"LLM response: {answer.text}"


@server.tool
async def test_elicitation(message: str, context: Context) -> str:
    """Ask the user to fill in a form."""
    answer = await context.elicit(message, Account)
    return f"User response: action={answer.action}, content={answer.content}"


@server.tool
async def test_elicitation_sep1034_defaults(context: Context) -> str:
    """Ask the user to confirm a form with default values."""
    answer = await context.elicit("Is this right?", Profile)
    return f"Elicitation completed: action={answer.action}, content={answer.content}"


@server.tool
async def test_elicitation_sep1330_enums(context: Context) -> str:
    """Ask the user to choose, with every kind of choice that a form supports."""
    schema = {
        "type": "object",
        "properties": {
            "untitledSingle": {"type": "string", "enum": OPTIONS},
            "titledSingle": {
                "type": "string",
                "oneOf": [{"const": k, "title": v} for k, v in TITLED.items()],
            },
            "legacyEnum": {
                "type": "string",
                "enum": ["opt1", "opt2", "opt3"],
                "enumNames": ["Option One", "Option Two", "Option Three"],
            },
            "untitledMulti": {"type": "array", "items": {"type": "string", "enum": OPTIONS}},
            "titledMulti": {
                "type": "array",
                "items": {"anyOf": [{"const": k, "title": v} for k, v in TITLED.items()]},
            },
        },
    }
    answer = await context.elicit("Choose.", schema)
    return f"Elicitation completed: action={answer.action}, content={json.dumps(answer.content)}"


@server.tool
async def test_choices(context: Context) -> str:
    """Ask the user to choose, in a form made from a dataclass."""
    answer = await context.elicit("Choose.", Choices)
    return f"Elicitation completed: action={answer.action}, content={answer.content}"


@server.tool
async def test_missing_capability(context: Context) -> str:
    """Use sampling, which the client may not have declared."""
    await context.sample("Say anything.", 10)
    return "The client can sample."


@server.tool
async def test_streaming_elicitation(context: Context) -> str:
    """Ask the user a question after a progress notification."""
    await context.progress(1, 2)
    answer = await context.elicit("What is your name?", Name)
    return f"The answer was: {answer.action}."


@server.tool
async def test_input_required_result_elicitation(context: Context) -> str:
    """Ask the user for a name and return a greeting."""
    answer = await context.elicit("What is your name?", Name, key="user_name")
    return "Hello, nobody!" if answer.content is None else f"Hello, {answer.content.name}!"


@server.tool
async def test_input_required_result_sampling(context: Context) -> str:
    """Ask the client's model a question."""
    answer = await context.sample("What is the capital of France?", 100, key="capital_question")
    return answer.text


@server.tool
async def test_input_required_result_list_roots(context: Context) -> str:
    """Ask the client for its roots."""
    return "Roots: " + ", ".join(root.uri for root in await context.roots(key="client_roots"))


@server.tool
async def test_input_required_result_request_state(context: Context) -> str:
    """Keep a value from one round to the next."""
    value = await context.once("state", lambda: "state-ok")
    answer = await context.elicit("Go on?", Confirmation, key="confirm")
    return f"{value}: {answer.action}"


@server.tool
async def test_input_required_result_multiple_inputs(context: Context) -> str:
    """Send three client requests at once."""
    greeting = Sampling([SamplingMessage("user", TextContent("Generate a greeting"))], 50)
    form = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    answers = await context.ask(
        {
            "user_name": Elicitation("What is your name?", requested_schema=form),
            "greeting": greeting,
            "client_roots": ListRoots(),
        }
    )
    return f"{decode(answers['user_name'], type=ElicitResult).action}, and {len(answers)} answers"


@server.tool
async def test_input_required_result_multi_round(context: Context) -> str:
    """Ask the user two questions, one after the other."""
    first = await context.elicit("Step 1: What is your name?", Name, key="step1")
    second = await context.elicit("Step 2: What is your favorite color?", Color, key="step2")
    return f"{first.content} likes {second.content}"


@server.tool
async def test_input_required_result_tampered_state(context: Context) -> str:
    """Ask a question whose state the client must return unchanged."""
    answer = await context.elicit("Go on?", Confirmation, key="confirm")
    return f"The state was as it should be: {answer.action}"


@server.tool
async def test_input_required_result_capabilities(context: Context) -> str:
    """Send only client requests that the client supports."""
    capabilities = context.client.capabilities
    form = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    questions: dict[str, Elicitation | Sampling | ListRoots] = {}
    if "elicitation" in capabilities:
        questions["user_name"] = Elicitation("What is your name?", requested_schema=form)
    if "sampling" in capabilities:
        questions["greeting"] = Sampling(
            [SamplingMessage("user", TextContent("Generate a greeting"))], 50
        )
    if "roots" in capabilities:
        questions["client_roots"] = ListRoots()
    return f"{len(await context.ask(questions))} answers"


# Resources


server.add_resource(
    "test://static-text",
    name="static-text",
    description="Text that never changes.",
    text="This is the content of the static text resource.",
)
server.add_resource(
    "test://static-binary",
    name="static-binary",
    description="A picture that never changes.",
    blob=RED_PIXEL,
    mime_type="image/png",
)


@server.resource("test://watched-resource", name="watched-resource", inline=True)
def watched_resource() -> str:
    """A resource to subscribe to."""
    return "This is the content of the watched resource."


@server.resource(
    "test://template/{id}/data", name="template", mime_type="application/json", inline=True
)
def template(id: str) -> dict[str, Any]:
    """Data for any id."""
    return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}


# Prompts


@server.prompt(inline=True)
def test_simple_prompt() -> str:
    """Return a text."""
    return "This is a simple prompt for testing."


@server.prompt(inline=True)
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """Return a text that contains two arguments.

    Args:
        arg1: The first argument.
        arg2: The second argument.
    """
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@server.complete("test_prompt_with_arguments", "arg1")
def complete_arg1(value: str) -> list[str]:
    return [word for word in ("paris", "park", "party") if word.startswith(value)]


@server.prompt(inline=True)
def test_prompt_with_embedded_resource(resourceUri: str) -> list[PromptMessage]:  # noqa: N803
    """Return a resource and an instruction.

    Args:
        resourceUri: The URI of the resource.
    """
    resource = ResourceContents(
        resourceUri, text="Embedded resource content for testing.", mime_type="text/plain"
    )
    return [user(resource), user("Please process the embedded resource above.")]


@server.prompt(inline=True)
def test_prompt_with_image() -> list[PromptMessage]:
    """Return a picture and an instruction."""
    return [user(image(RED_PIXEL)), user("Please analyze the image above.")]


@server.prompt
async def test_input_required_result_prompt(context: Context) -> str:
    """Return a text with an answer of the user."""
    answer = await context.elicit("What context should the prompt use?", Topic, key="user_context")
    return f"Use this context: {answer.content.context if answer.content is not None else 'none'}"


if __name__ == "__main__":
    server.run()
