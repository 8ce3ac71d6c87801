"""What pages of the documentation say about programs in Node: their texts, options and clients."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import mcp
import pytest
from docs.pages import DOCS, ROOT, blocks, environment, paste, quoted_texts
from interop import node

pytestmark = pytest.mark.slow

HOW_TO = DOCS / "how-to"


@pytest.mark.parametrize("text", quoted_texts("What clients say"))
def test_a_text_of_a_client_in_troubleshooting_stands_in_that_client(text: str) -> None:
    # Two are made by Node itself: here too.
    if text == "spawn ... ENOENT":
        code = "require('child_process').spawn('/no/such').on('error', e => console.log(e.message))"
    elif text == "is not valid JSON":
        code = "try { JSON.parse('starting') } catch (e) { console.log(e.message) }"
    else:
        modules = node.packages() / "node_modules" / "@modelcontextprotocol"
        sources = [
            *(modules / "sdk" / "dist" / "esm" / "shared").glob("*.js"),
            *(modules / "client" / "dist").glob("*.mjs"),
            *Path(mcp.__file__).parent.rglob("*.py"),
        ]
        assert any(text in path.read_text() for path in sources), text
        return
    ran = node.run([node.node(), "-e", code], {})
    assert re.search(re.escape(text).replace(r"\.\.\.", ".*"), ran.stdout), ran.stdout


def test_the_inspector_knows_the_command_of_the_page_about_deployment(tmp_path: Path) -> None:
    """The page's command, but with the packages that are installed already instead of npx, and with
    this concertino.
    """
    [command] = re.findall(
        r"mcp-inspector (--cli .*?)\n```", (HOW_TO / "deploy.md").read_text(), re.DOTALL
    )
    modules = node.packages() / "node_modules"
    (tmp_path / "calculator.py").write_text(blocks((ROOT / "README.md").read_text(), "python")[0])
    (tmp_path / "concertino").write_text(f'#!/bin/sh\nexec {sys.executable} -m concertino "$@"\n')
    (tmp_path / "concertino").chmod(0o755)
    here = {
        "/absolute/path/to/.venv/bin/concertino": "concertino",
        "/absolute/path/to/calculator.py": "calculator.py",
    }
    words = [
        str(tmp_path / here[word]) if word in here else word
        for word in command.replace("\\\n", " ").split()
    ]
    variables = ["-e", f"PYTHONPATH={environment()['PYTHONPATH']}"]
    inspector = [modules / ".bin" / "node", modules / ".bin" / "mcp-inspector"]
    ran = node.run(
        [*inspector, *words, *variables], {**environment(), "HOME": str(tmp_path)}, cwd=tmp_path
    )
    assert ran.code == 0, ran.stderr
    assert json.loads(ran.stdout)["structuredContent"] == {"result": 42}


def test_the_official_typescript_client_calls_the_websocket_server_of_its_page(
    tmp_path: Path,
) -> None:
    paste(HOW_TO / "custom-transport.md", tmp_path)
    folder = node.packages()
    # Modules are looked up from where the file lies.
    source = Path(__file__).with_name("websocket.mjs")
    (folder / source.name).write_text(source.read_text())
    # With a WebSocket of its own.
    modern_node = folder / "node_modules" / ".bin" / "node"

    with subprocess.Popen(
        [sys.executable, "websocket_server.py"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            ran = node.run(
                [modern_node, folder / source.name, address], environment(), cwd=tmp_path
            )
        finally:
            server.kill()

    assert ran.code == 0, ran.stderr
    assert json.loads(ran.stdout) == {"server": "shop", "tools": ["price"], "price": {"result": 3}}
