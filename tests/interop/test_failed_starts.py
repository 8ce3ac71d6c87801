"""What users of official clients and of FastMCP see of a server of ours that cannot start: the
sentence that names the reason, in each era that the client speaks.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from interop import node, programs
from interop.tools import python_with
from stdio.harness import environment
from stdio.test_start_failures import AT_START, RUN

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
MODERN = "2026-07-28"
LEGACY = "2025-11-25"

Command = Sequence[str | Path]


def with_library(library: str, mode: str) -> Command:
    """Return the command of failed_start.py with a Python client library."""
    interpreters: dict[str, Callable[[], Path]] = {
        "mcp1": lambda: python_with("mcp1", "mcp>=1.20,<2"),
        "mcp2": lambda: Path(sys.executable),
        "fastmcp": lambda: python_with("fastmcp", "fastmcp>=4"),
    }
    return [interpreters[library](), HERE / "failed_start.py", library, mode]


def with_typescript(script: str, *mode: str) -> Command:
    """Return the command of a client that would talk to examples/tour.py."""
    folder = node.packages()
    # Node looks for modules where the file lies.
    for name in (script, "conversation.mjs"):
        shutil.copy(HERE / name, folder)
    return [node.node(), folder / script, *mode]


def with_inspector(era: str) -> Command:
    modules = node.packages() / "node_modules" / ".bin"
    options = ["--cli", "--protocol-era", era, "--method", "tools/list"]
    # It gives servers little of its environment.
    passed = [word for item in environment().items() for word in ("-e", "=".join(item))]
    return [modules / "node", modules / "mcp-inspector", *options, *passed, "--"]


CLIENTS: dict[str, Callable[[], Command]] = {
    "mcp 1": lambda: with_library("mcp1", ""),
    "mcp 2, legacy": lambda: with_library("mcp2", "legacy"),
    "mcp 2, auto": lambda: with_library("mcp2", "auto"),
    "mcp 2, modern": lambda: with_library("mcp2", MODERN),
    "FastMCP, legacy": lambda: with_library("fastmcp", "legacy"),
    "FastMCP, auto": lambda: with_library("fastmcp", "auto"),
    "FastMCP, modern": lambda: with_library("fastmcp", MODERN),
    "TypeScript 1": lambda: with_typescript("typescript_1.mjs"),
    "TypeScript 2, legacy": lambda: with_typescript("typescript_2.mjs", "legacy"),
    "TypeScript 2, auto": lambda: with_typescript("typescript_2.mjs", "auto"),
    "TypeScript 2, modern": lambda: with_typescript("typescript_2.mjs", MODERN),
    "Go, legacy": lambda: [programs.go_client(), LEGACY],
    "Go, modern": lambda: [programs.go_client(), MODERN],
    "rmcp, legacy": lambda: [programs.rust_stdio_client(), "legacy"],
    "rmcp, auto": lambda: [programs.rust_stdio_client(), "auto"],
    "rmcp, modern": lambda: [programs.rust_stdio_client(), "modern"],
    "Inspector, legacy": lambda: with_inspector("legacy"),
    "Inspector, auto": lambda: with_inspector("auto"),
    "Inspector, modern": lambda: with_inspector("modern"),
}
# With a pinned revision, the TypeScript client drops whatever error answers `server/discover`.
PINNED = ["TypeScript 2, modern", "Inspector, modern"]
PINNED_SENTENCE = (
    f"the server did not offer pinned protocol version {MODERN} via server/discover"
    " (no fallback in pin mode)"
)
# The source of server.py, the arguments of Python before its path, and the sentence.
SERVE = ["-m", "concertino", "serve"]
KINDS: dict[str, tuple[str, Command, str]] = {
    "an import error": (
        "import no_such_module_here\n",
        SERVE,
        "cannot start: ModuleNotFoundError: No module named 'no_such_module_here' (server.py:1)",
    ),
    "a lifespan": (
        AT_START["a lifespan"][0] + RUN,
        [],
        "cannot start: OSError: no database (server.py:6)",
    ),
    "a wrong option": (
        AT_START["a lifespan"][0],
        [*SERVE, "--no-such-option"],
        "cannot start: unrecognized arguments: --no-such-option",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_shows_why_a_server_cannot_start(client: str, kind: str, tmp_path: Path) -> None:
    source, words, sentence = KINDS[kind]
    server = tmp_path / "server.py"
    server.write_text(source)
    command = CLIENTS[client]()

    ran = node.run(
        [*command, sys.executable, *words, server],
        {**environment(), "HOME": str(tmp_path)},
        cwd=tmp_path,
    )

    # stderr also has the log of the server, in other words.
    expected = PINNED_SENTENCE if client in PINNED else sentence
    assert expected in ran.stdout + ran.stderr, (ran.stdout, ran.stderr)
    assert not ran.left, "a server was left behind"
