"""The pages about hubs, docs/reference/plugins-file.md and examples/orchestra: started as they say,
and spoken to.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from docs.pages import DOCS, ROOT, ask_server, blocks, paste, run_shell

from concertino.orchestra.plugin_entry import PluginEntry
from concertino.orchestra.plugins_file import InvalidPluginsFile, PluginsFile, read_plugins

HOW_TO = DOCS / "how-to"
PAGE = HOW_TO / "hub.md"
REFERENCE = DOCS / "reference" / "plugins-file.md"


@pytest.mark.slow
def test_the_page_s_commands_do_what_it_says(tmp_path: Path) -> None:
    assert paste(PAGE, tmp_path) == ["greeter.py", "storage.py"]
    file, watched = blocks(PAGE.read_text(), "yaml")
    (tmp_path / "watched.yaml").write_text(watched)
    [watching] = read_plugins(tmp_path / "watched.yaml").enabled
    assert watching.watch is not None
    assert watching.watch.folders == (str(tmp_path),)
    (tmp_path / "plugins.yaml").write_text(file)
    said = run_shell(PAGE, tmp_path)
    assert "Greet somebody." in said
    assert "Hello, Ada!" in said
    assert "Hello, Bob!" in said
    assert "[hub] 2 of 2 plugins run" in said
    assert not (tmp_path / "run" / "hub").exists()
    assert (tmp_path / "certs" / "orchestrator-to-tools.greeter.key").exists()


def test_the_files_with_servers_hubs_and_models_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    monkeypatch.setenv("TICKETS_TOKEN", "x")
    monkeypatch.chdir(tmp_path)
    with_servers, laboratory = blocks((HOW_TO / "hub-servers.md").read_text(), "yaml")
    [with_models] = blocks((HOW_TO / "ai-providers.md").read_text(), "yaml")

    Path("with-models.yaml").write_text(with_models)
    ids = [entry.id for entry in read_plugins("with-models.yaml").enabled]
    assert ids == ["ai.openai", "ai.local"]
    Path("with-servers.yaml").write_text(with_servers)
    ids = [entry.id for entry in read_plugins("with-servers.yaml").enabled]
    assert ids == ["tools.files", "tools.tickets"]
    Path("with-laboratory.yaml").write_text(laboratory)
    [bridge] = read_plugins("with-laboratory.yaml").enabled
    assert "--orchestrator-addr=laboratory.example:50100" in bridge.config["server"]


def test_the_example_keeps_notes(tmp_path: Path) -> None:
    folder = tmp_path / "orchestra"
    shutil.copytree(ROOT / "examples" / "orchestra", folder)
    command = [sys.executable, "-m", "concertino", "serve", "plugins.yaml"]
    keep = {"name": "keep", "arguments": {"name": "first", "text": "Hello you"}}
    recall = {"name": "recall", "arguments": {"name": "other"}}
    results, _, log = ask_server(
        command, [("tools/call", keep), ("tools/call", recall), ("tools/list", {})], folder
    )
    assert results[0]["content"] == [{"type": "text", "text": "kept first, version 1"}], log
    assert results[1]["isError"]
    assert results[1]["content"][0]["text"] == "notes/other.md: there is nothing under this path"
    assert [tool["name"] for tool in results[2]["tools"]] == ["keep", "recall"]
    [read] = ask_server(command, [("resources/read", {"uri": "orchestra://notes/first"})], folder)[
        0
    ]
    assert read["contents"][0]["text"] == "Hello you"


def test_the_reference_has_every_member_and_its_file_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = REFERENCE.read_text()
    rows = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    members = {*PluginsFile.__struct_fields__, *PluginEntry.__struct_fields__} - {
        "path",
        "warnings",
        "line",
        "is_mcp",
        "is_bridge",
    }
    assert members | {"tcp_addr"} <= rows
    [file] = blocks(page, "yaml")
    monkeypatch.setenv("FEATURES_API_KEY", "x")
    monkeypatch.chdir(tmp_path)
    Path("plugins.yaml").write_text(file)
    assert [entry.id for entry in read_plugins("plugins.yaml").enabled] == [
        "storage.markdown",
        "tools.features",
    ]
    # The message that it shows is what a mistake gives; only its line depends on where the entry
    # stands.
    [shown] = re.findall(r"^plugins\.yaml:\d+: (.*)$", page, re.MULTILINE)
    Path("plugins.yaml").write_text(
        file.replace("    enabled: true\n    socket", "    enabled: maybe\n    socket")
    )
    with pytest.raises(InvalidPluginsFile, match=re.escape(shown)):
        read_plugins("plugins.yaml")


def test_the_codes_of_the_reference_are_the_hub_s() -> None:
    source = (ROOT / "src" / "concertino" / "orchestra" / "hub.py").read_text()
    given = set(re.findall(r'error_response\([^"]*"(\w+)"', source))
    assert given
    assert {f'"{code}"' for code in given} <= {
        json.dumps(code) for code in re.findall(r"`(\w+)`", REFERENCE.read_text())
    }
