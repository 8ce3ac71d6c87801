"""Start examples as a client would, speak to them, and show what passes. See scripts/demo."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import Any

from demo_orchestra import orchestra

from concertino import Client, Disconnected, Limits, RpcError
from concertino.client import RawClient, attempt
from concertino.transports import connect
from concertino.transports.pipe import PipeConnection
from concertino.transports.trace import trace_connection

ROOT = Path(__file__).resolve().parent.parent
SERVER = ROOT / "examples" / "tour.py"
LIBRARY = ROOT / "examples" / "library"
WIDTH = min(shutil.get_terminal_size().columns, 110)
COLOURS = (
    sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
)
sys.stdout.reconfigure(errors="replace")  # a terminal without arrows shows question marks
BOLD, DIM, RED, GREEN, BLUE = "1", "2", "31", "32", "34"
CLIENT = {"name": "demo", "version": "1.0"}
# What every request of 2026-07-28 brings along instead of a handshake.
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": CLIENT,
}


async def main() -> int:
    say(
        paint(
            "A server, started as a client starts it, and every message on its stdin (──▶) and"
            " stdout (◀──).",
            BOLD,
        )
    )
    say(f"\n$ python {SERVER.relative_to(ROOT)}")
    server = Child([sys.executable, str(SERVER)])
    try:
        async with asyncio.timeout(60):
            await with_handshake(server.client, server)
            await without_handshake(server.client)
            await the_end(server.client, server)
            await from_python()
            await a_library()
            chapter("Plugins in processes of their own: a hub, and a bridge to it")
            await orchestra(say, step)
    except (Disconnected, RuntimeError, TimeoutError) as why:
        say(paint(f"\nThe demo has failed: {why or 'the server does not answer'}", RED))
        await server.show_log()
        server.process.kill()
        return 1
    print_configuration()
    return 0


async def with_handshake(client: RawClient, server: "Child") -> None:
    chapter("Revision 2025-11-25: a handshake first")
    step(
        "Opening",
        "Both sides say who they are and agree on a revision; these are remembered for the"
        " connection.",
    )
    opening = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": CLIENT}
    await client.request("initialize", opening)
    client.notify("notifications/initialized")
    await server.show_log()

    step(
        "List",
        "The schemas were made from the type hints and docstrings of the functions in the file.",
    )
    await client.request("tools/list")

    step("Call", "A result comes as text for the model and as structured content for programs.")
    await client.request("tools/call", {"name": "statistics", "arguments": {"values": [3, 4, 8]}})

    step(
        "Bad arguments",
        "All of them are reported at once, in a result that a model can act on. The tool is not"
        " called.",
    )
    await client.request(
        "tools/call", {"name": "bake", "arguments": {"cake": "cheese", "minutes": "5", "oven": 1}}
    )

    step(
        "A tool that fails",
        "Its words reach the model; the call is answered, and the server goes on.",
    )
    await client.request("tools/call", {"name": "divide", "arguments": {"a": 1, "b": 0}})

    step(
        "An unknown tool", "That is the client's mistake, not the model's, and so a protocol error."
    )
    with suppress(RpcError):
        await client.request("tools/call", {"name": "bake_bread"})

    step("Progress", "Asked for by a token. Log messages of the tool come the same way.")
    await client.request(
        "tools/call",
        {"name": "bake", "arguments": {"cake": "plum"}, "_meta": {"progressToken": "cake-1"}},
    )

    step(
        "Cancel",
        "The client gives up on a call of a minute. It is never answered, and the next one is at"
        " once.",
    )
    call = asyncio.ensure_future(
        client.request("tools/call", {"name": "wait", "arguments": {"seconds": 60}})
    )
    await asyncio.sleep(0.3)
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call
    await client.request("ping")

    step(
        "A stray print",
        "stdout is the protocol's, but a print() in a tool does no harm: it goes to the log, and is"
        " named.",
    )
    await client.request(
        "tools/call", {"name": "chat", "arguments": {"text": "Hello from a tool!"}}
    )
    await server.show_log()


async def without_handshake(client: RawClient) -> None:
    chapter("Revision 2026-07-28: no handshake, on the same connection")
    step(
        "Discover",
        "Each request says in _meta which revision it speaks, so there is nothing to agree on"
        " before.",
    )
    await client.request("server/discover", {"_meta": META})

    step("Call", "The answer has the shape of that revision: resultType, and the server's name.")
    await client.request(
        "tools/call", {"name": "add", "arguments": {"a": 40, "b": 2}, "_meta": META}
    )

    step("A revision that does not exist", "The error lists those that can be asked for.")
    meta = META | {"io.modelcontextprotocol/protocolVersion": "2031-01-01"}
    with suppress(RpcError):
        await client.request("tools/list", {"_meta": meta})


async def the_end(client: RawClient, server: "Child") -> None:
    chapter("Shutdown")
    step(
        "End of input",
        "The client closes the server's stdin; calls under way would be finished first.",
    )
    await client.aclose()
    code = await asyncio.to_thread(server.process.wait)
    await server.show_log()
    say(f"  The server has ended with exit code {paint(str(code), GREEN if code == 0 else RED)}.")


async def from_python() -> None:
    chapter("The same from Python: Client")
    step(
        "Start, call, end",
        "Client starts the server, finds out the revision, gives results as types, and ends the"
        " server with all that it started.",
    )
    async with Client([sys.executable, str(SERVER)], trace=show_message) as client:
        described = await client.call_tool("statistics", {"values": [3, 4, 8]}, into=dict)
        say(
            f"  {client.server} speaks {client.protocol_version}; the mean is"
            f" {paint(str(described['mean']), GREEN)}."
        )
        outcome = await attempt(client.call_tool("bake_bread"))
        say(f"  A failure as a value: {paint(str(outcome), RED)}")
    say(f"  The server has ended with exit code {client.exit_status}.")


async def a_library() -> None:
    chapter("A folder of Markdown as a server: concertino serve examples/library")
    step(
        "What it has",
        "Documents and prompts are read beside the opening; lists and searches wait for that.",
    )
    async with Client([sys.executable, "-m", "concertino", "serve", str(LIBRARY)]) as client:
        documents, prompts = await client.list_resources(), await client.list_prompts()
        say(
            f"  {len(documents)} resources, {len(prompts)} prompts; for instance"
            f" {paint(documents[0].uri, BLUE)}"
        )
        step(
            "A search that fits",
            "What answers the question, in full, and never more than the tokens that were asked"
            " for.",
        )
        uri = "orchestr8://match?query=my+server+prints+to+stdout&maxTokens=900"
        say(f"  {paint('──▶', BLUE)} {uri}")
        (found,) = (await client.read_resource(uri)).contents
        lines = str(found.text).splitlines()
        for line in [*lines[:12], "...", *lines[-3:]]:
            say(f"      {line[: WIDTH - 6]}")


def print_configuration() -> None:
    chapter("Your turn")
    command = Path(sys.executable).with_name("concertino")
    entry = {"mcpServers": {"tour": {"command": str(command), "args": ["serve", str(SERVER)]}}}
    say("Paste this into the configuration of a client (Claude Desktop, Cursor, .mcp.json, ...):\n")
    say(json.dumps(entry, indent=2))
    say("\nFor Claude Code:\n")
    say(f"claude mcp add tour -- {command} serve {SERVER}")
    say("\nThen open examples/calculator.py: ten lines to begin with.")


class Child:
    """A server in a process of its own, and the client that speaks to it over two pipes."""

    def __init__(self, command: list[str]) -> None:
        its_stdin, ours_to_write = os.pipe()
        ours_to_read, its_stdout = os.pipe()
        self.process = subprocess.Popen(
            command, stdin=its_stdin, stdout=its_stdout, stderr=subprocess.PIPE
        )
        os.close(its_stdin)
        os.close(its_stdout)
        pipe = PipeConnection(ours_to_read, ours_to_write, Limits())
        self.client = connect(trace_connection(pipe, show_message))
        assert self.process.stderr is not None
        self._log = self.process.stderr.fileno()
        os.set_blocking(self._log, False)

    async def show_log(self) -> None:
        """What the server has written to stderr since the last time."""
        await asyncio.sleep(0.1)
        said = b""
        with suppress(BlockingIOError):
            while chunk := os.read(self._log, 65536):
                said += chunk
        if said:
            say(paint("  stderr of the server:", DIM))
        for line in said.decode().splitlines():
            say(
                paint(
                    textwrap.indent(textwrap.fill(line, WIDTH - 4, subsequent_indent="  "), "    "),
                    DIM,
                )
            )


# How it looks


def say(text: str = "") -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:  # `scripts/demo | head`: whoever reads this has seen enough
        os._exit(0)


def paint(text: str, colour: str) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m" if COLOURS else text


def chapter(title: str) -> None:
    say("\n" + paint(f"{title} ".ljust(WIDTH, "─"), BOLD))


def step(title: str, explanation: str) -> None:
    say("\n" + paint(title, BOLD))
    say(paint(textwrap.fill(explanation, WIDTH), DIM))


def show_message(direction: str, text: str) -> None:
    """One message: an arrow for its direction, then its JSON, with what is long left out."""
    message = json.loads(text)
    arrow, colour = ("──▶", BLUE) if direction == "->" else ("◀──", GREEN)
    if "error" in message or message.get("result", {}).get("isError"):
        colour = RED
    message.pop("jsonrpc")
    shown = json.dumps(shortened(message), ensure_ascii=False)
    first, *others = textwrap.wrap(shown, WIDTH - 6, break_on_hyphens=False)
    say(f"  {paint(arrow, colour)} {first}")
    for line in others:
        say(f"      {line}")


metas_shown: list[object] = []


def shortened(value: Any) -> Any:
    """JSON with long strings and lists cut, and each `_meta` spelled out only the first time."""
    match value:
        case str() if len(value) > 260:
            return f"{value[:240]}… ({len(value)} characters)"
        case [{}, _, *_]:
            return [shortened(value[0]), f"… {len(value) - 1} more"]
        case list():
            return [shortened(item) for item in value]
        case {"_meta": meta} if meta in metas_shown:
            return shortened(value | {"_meta": "… as before"})
        case dict():
            if (
                "io.modelcontextprotocol/protocolVersion" in value
                or "io.modelcontextprotocol/serverInfo" in value
            ):
                metas_shown.append(value)
            return {name: shortened(item) for name, item in value.items()}
    return value


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(asyncio.run(main()))
