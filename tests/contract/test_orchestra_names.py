"""Names of the Orchestra plugin protocol: keys, flags, error codes and certificate files."""

from __future__ import annotations

import json
import re
import signal
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contract.orchestra_programs import ask, message, pack_struct
from contract.programs import (
    INITIALIZE,
    INITIALIZED,
    call_main,
    command,
    request,
    run,
    start,
    tool_bodies,
)
from google.protobuf.struct_pb2 import Struct

PLUGIN = """
import os, sys
from concertino import Plugin, ToolError
plugin = Plugin(
    "tools.first", version="1.2.0", description="D", author="A", needs_storage=["markdown"],
    needs_tools=["x"], needs_ai=["y"], needs_events=["z"],
)
configuration = {}
@plugin.on_boot
def remember(given: dict) -> None:
    configuration.update(given)
@plugin.tool
def facts() -> dict:
    return {
        "argv": sys.argv[1:], "hub": os.environ["CONCERTINO_HUB_PID"], "word": os.environ["WORD"],
        "home": os.environ["HOME"], "configuration": configuration,
    }
@plugin.tool
def add(a: int, b: int) -> int:
    return a + b
@plugin.tool
def fail() -> str:
    raise ValueError("no luck")
@plugin.tool
def refuse() -> str:
    raise ToolError("NO_SHELF", "there is no shelf", suggestion="Build one")
@plugin.tool
def die() -> str:
    os._exit(1)
@plugin.prompt
def greet(name: str) -> str:
    return f"Hello, {name}"
plugin.run()
"""
FIRST = f"{{id: tools.first, binary: {sys.executable}, args: [first.py], enabled: true"
# Every key there is.
PLUGINS = f"""
listen_addr: unix:hub
tcp_addr: localhost:50101
certs_dir: certificates
plugins:
  - id: tools.first
    binary: {sys.executable}
    args: [first.py]
    env: {{WORD: hello, HOME: null}}
    config: {{colour: blue}}
    enabled: true
    provides_storage: []
    provides_ai: []
    depends_on: [storage.markdown]
    socket: true
  - id: storage.markdown
    binary: {sys.executable}
    args: [-m, concertino, plugin, markdown, --workspace=.]
    enabled: true
    provides_storage: [markdown]
    socket: true
  - id: tools.last
    binary: nothing
    enabled: false
"""


@pytest.fixture(scope="module")
def private() -> Iterator[Path]:
    """Make a folder for sockets: its name is short, and nobody else may enter it."""
    with tempfile.TemporaryDirectory(prefix="c-") as folder:
        yield Path(folder).resolve()


@pytest.fixture(scope="module")
def hub(private: Path) -> Iterator[Any]:
    (private / "first.py").write_text(PLUGIN)
    (private / "plugins.yaml").write_text(PLUGINS)
    with start(command("orchestrate", "plugins.yaml"), cwd=private) as running:
        running.wait_for("Listening on")
        yield running
        running.process.send_signal(signal.SIGTERM)
        assert running.end() == 0


def tool_call(name: str, **arguments: Any) -> Any:
    return message(
        "PluginRequest",
        request_id="1",
        tool_call={"tool_name": name, "arguments": pack_struct(arguments)},
    )


def test_a_hub_passes_what_plugins_yaml_says_to_a_plugin(hub: Any, private: Path) -> None:
    [response] = ask(f"{private}/hub", tool_call("facts"))
    result = Struct()
    result.ParseFromString(response.tool_call.result)
    facts = json.loads(dict(result)["text"]) if "text" in result else dict(result)
    flags = dict(word.split("=", 1) for word in facts["argv"])
    assert list(flags) == ["--orchestrator-addr", "--listen-addr", "--certs-dir"]
    assert flags["--certs-dir"] == f"{private}/certificates"
    assert flags["--orchestrator-addr"].startswith("unix:")
    assert flags["--listen-addr"].startswith("unix:")
    assert facts["hub"] == str(hub.process.pid)
    assert facts["word"] == "hello"
    assert facts["home"]
    assert dict(facts["configuration"]) == {"colour": "blue"}


@pytest.mark.parametrize(
    ("question", "code"),
    [
        (tool_call("none"), "tool_not_found"),
        (tool_call("add", a=1), "validation_error"),
        (tool_call("fail"), "handler_error"),
        (tool_call("refuse"), "NO_SHELF"),
        (message("PluginRequest", request_id="1", publish={"topic": ""}), "validation_error"),
        (message("PluginRequest", request_id="1", subscribe={"topic": "t"}), "not_a_plugin"),
        (message("PluginRequest", request_id="1"), "unknown_request"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_hub_refuses_with(hub: Any, private: Path, question: Any, code: str) -> None:
    [response] = ask(f"{private}/hub", question)
    assert response.WhichOneof("response") == "tool_call"
    assert response.tool_call.success is False
    assert response.tool_call.error_code == code


@pytest.mark.parametrize(
    ("kind", "fields", "code", "text"),
    [
        ("prompt_get", {"prompt_name": "none"}, "prompt_not_found", "the prompt 'none'"),
        ("storage_read", {"path": "a.md"}, "storage_not_found", "the storage 'none'"),
        ("storage_write", {"path": "a.md"}, "", "the storage 'none'"),
        ("storage_delete", {"path": "a.md"}, "storage_not_found", "the storage 'none'"),
        ("storage_list", {"prefix": "notes/"}, "storage_not_found", "the storage 'none'"),
    ],
)
def test_an_unknown_prompt_or_storage_is_refused_in_the_type_that_was_asked_for(
    hub: Any, private: Path, kind: str, fields: dict[str, str], code: str, text: str
) -> None:
    if kind != "prompt_get":
        fields = {**fields, "storage_type": "none"}
    [response] = ask(f"{private}/hub", message("PluginRequest", request_id="1", **{kind: fields}))
    assert response.WhichOneof("response") == kind
    found = getattr(response, kind)
    # Upstream's schema has a place for the reason of a failed write only.
    if kind == "storage_write":
        assert (found.success, found.error) == (False, f"no plugin has {text}")
    else:
        assert (found.failure.code, found.failure.message) == (code, f"no plugin has {text}")
    if kind == "prompt_get":
        assert found.description == f"no plugin has {text}"


def test_a_tool_error_of_a_plugin_says_its_code_in_its_text(hub: Any, private: Path) -> None:
    [response] = ask(f"{private}/hub", tool_call("refuse"))
    assert response.tool_call.error_message == (
        '{"error":"there is no shelf","code":"NO_SHELF","suggestion":"Build one"}'
    )


def test_a_hub_routes_storage_and_prompts(hub: Any, private: Path) -> None:
    written, read, prompt, tools = ask(
        f"{private}/hub",
        message(
            "PluginRequest",
            request_id="1",
            storage_write={"path": "notes/a.md", "content": b"# A\n"},
        ),
        message(
            "PluginRequest",
            request_id="2",
            storage_read={"path": "notes/a.md", "storage_type": "markdown"},
        ),
        message(
            "PluginRequest",
            request_id="3",
            prompt_get={"prompt_name": "greet", "arguments": {"name": "Ann"}},
        ),
        message("PluginRequest", request_id="4", list_tools={}),
    )
    assert written.storage_write.new_version == 1
    assert (read.storage_read.content, read.storage_read.version) == (b"# A\n", 1)
    assert prompt.prompt_get.messages[0].content.text == "Hello, Ann"
    assert {tool.name for tool in tools.list_tools.tools} == {
        "facts",
        "add",
        "fail",
        "refuse",
        "die",
    }


def test_a_bridge_says_the_same_to_mcp_clients(hub: Any, private: Path) -> None:
    write = {"path": "notes/b.md", "content": b"# B\n", "expected_version": -1}
    ask(f"{private}/hub", message("PluginRequest", request_id="1", storage_write=write))
    with start(command("bridge", "--orchestrator-addr", "unix:hub"), cwd=private) as bridge:
        bridge.wait_for("connected to orchestrator")
        bridge.write(
            INITIALIZE,
            INITIALIZED,
            request(1, "tools/call", name="add", arguments={"a": 1, "b": 2}),
        )
        lines = [bridge.read_line(), bridge.read_line()]
        bridge.write(
            request(2, "tools/call", name="none", arguments={}), request(3, "some/unknown")
        )
        lines += [bridge.read_line(), bridge.read_line()]
        bridge.write(request(4, "resources/list"), request(5, "resources/templates/list"))
        lines += [bridge.read_line(), bridge.read_line()]
        assert bridge.end() == 0
    found = {line["id"]: line for line in map(json.loads, lines)}
    assert found[0]["result"]["serverInfo"]["name"] == "orchestra"
    assert found[1]["result"] == {"content": [{"type": "text", "text": "3"}]}
    assert found[2]["result"]["isError"] is True
    assert found[3]["error"] == {"code": -32601, "message": "method not found: some/unknown"}
    resources = {resource["uri"] for resource in found[4]["result"]["resources"]}
    assert "orchestra://notes/b" in resources
    assert [item["uriTemplate"] for item in found[5]["result"]["resourceTemplates"]] == [
        "orchestra://features/{id}",
        "orchestra://notes/{id}",
        "orchestra://docs/{id}",
    ]


def test_an_unknown_key_of_plugins_yaml_is_refused(tmp_path: Path) -> None:
    for text in (
        "plugins: []\nno_such_key: 1\n",
        "plugins:\n  - {id: a, binary: b, no_such_key: 1}\n",
    ):
        (tmp_path / "plugins.yaml").write_text(text)
        ended = run(command("orchestrate", "plugins.yaml"), cwd=tmp_path)
        assert ended.code == 2
        assert "no_such_key" in ended.err


# A plugin that speaks the protocol by hand, and answers two tools in ways that it must not.
ODD = """
import os, socket, sys
from contract.orchestra_programs import exactly, message
[address] = [word[19:] for word in sys.argv if word.startswith("--listen-addr=unix:")]
listening = socket.socket(socket.AF_UNIX)
listening.bind(address)
os.chmod(address, 0o600)
listening.listen()
os.write(2, f"READY unix:{address}\\n".encode())
connection, _ = listening.accept()
ANSWERS = {
    "register": {"register": {"accepted": True}},
    "boot": {"boot": {"ready": True}},
    "health": {"health": {"status": "HEALTHY"}},
    "list_tools": {"list_tools": {"tools": [{"name": "other"}, {"name": "broken"}]}},
    "shutdown": {"shutdown": {"clean": True}},
}
while True:
    request = message("PluginRequest")
    request.ParseFromString(exactly(connection, int.from_bytes(exactly(connection, 4), "big")))
    kind = request.WhichOneof("request")
    fields = ANSWERS.get(kind, {"boot": {"ready": True}} if kind == "tool_call" else {})
    payload = message("PluginResponse", request_id=request.request_id, **fields).SerializeToString()
    if request.tool_call.tool_name == "broken":
        empty = message("PluginResponse", request_id=request.request_id)
        payload = empty.SerializeToString() + b"\\x52\\x03\\x12\\x05x"
    connection.sendall(len(payload).to_bytes(4, "big") + payload)
"""


def test_what_a_plugin_gets_wrong_has_codes(private: Path) -> None:
    folder = private / "wrong"
    folder.mkdir(mode=0o700)
    (folder / "first.py").write_text(PLUGIN)
    (folder / "odd.py").write_text(ODD)
    entries = [
        f"{{id: tools.{name}, binary: {sys.executable}, args: [{name}.py], enabled: true, "
        f"socket: true, env: {{WORD: hello, PYTHONPATH: {Path(__file__).parents[1]}}}}}"
        for name in ("first", "odd")
    ]
    (folder / "plugins.yaml").write_text(
        "listen_addr: unix:hub\nplugins:\n" + "".join(f"  - {entry}\n" for entry in entries)
    )
    with start(command("orchestrate", "plugins.yaml"), cwd=folder) as running:
        running.wait_for("Listening on")
        responses = ask(f"{folder}/hub", tool_call("other"), tool_call("broken"), tool_call("die"))
        running.process.send_signal(signal.SIGTERM)
        assert running.end() == 0
    codes = [response.tool_call.error_code for response in responses]
    assert codes == ["invalid_response", "routing_error", "plugin_unavailable"]


def test_the_manifest_of_a_plugin_is_this_line() -> None:
    ended = run([sys.executable, "-c", PLUGIN, "--manifest"])
    assert ended.out == (
        '{"id":"tools.first","version":"1.2.0","description":"D","author":"A","language":"python",'
        '"provides_tools":["facts","add","fail","refuse","die"],"provides_storage":[],"provides_transport":[],'
        '"provides_ai":[],"provides_prompts":["greet"],"provides_events":[],"needs_storage":["markdown"],'
        '"needs_events":["z"],"needs_ai":["y"],"needs_tools":["x"]}\n'
    )
    assert ended.code == 0


def test_a_plugin_takes_these_flags() -> None:
    help = run([sys.executable, "-c", PLUGIN, "--help"], env={"NO_COLOR": "1"}).out
    assert re.findall(r"^  (--[a-z-]+)", help, re.MULTILINE) == [
        "--listen-addr",
        "--orchestrator-addr",
        "--cluster",
        "--config",
        "--certs-dir",
        "--manifest",
    ]


# Certificates


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def certificates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Make a folder with a certificate authority."""
    folder = tmp_path / "certs"
    assert call_main(capsys, "certs", "init", "--certs-dir", folder).code == 0
    return folder


def test_an_authority_is_two_files(certificates: Path) -> None:
    assert names(certificates) == ["ca.crt", "ca.key"]
    assert stat.S_IMODE(certificates.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in certificates.iterdir()} == {0o600}
    assert (certificates / "ca.crt").read_text().startswith("-----BEGIN CERTIFICATE-----\n")
    assert (certificates / "ca.key").read_text().startswith("-----BEGIN PRIVATE KEY-----\n")


def test_a_certificate_is_two_files_of_its_name(
    certificates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["orchestrator", "tools.first", "tools.first-client"]
    assert call_main(capsys, "certs", "issue", *given, "--certs-dir", certificates).code == 0
    assert names(certificates) == sorted(
        f"{name}.{kind}" for name in ("ca", *given) for kind in ("crt", "key")
    )
    ended = call_main(capsys, "certs", "show", "--certs-dir", certificates)
    assert [line.split()[0] for line in ended.out.splitlines()] == ["ca", *given]
    assert ended.code == 0
    assert call_main(capsys, "certs", "renew", "ca", "--certs-dir", certificates).code == 0


def test_hub_plugin_and_bridge_issue_themselves_these_certificates(
    certificates: Path, tmp_path: Path
) -> None:
    (tmp_path / "first.py").write_text(PLUGIN)
    entry = f"{FIRST}}}"
    (tmp_path / "plugins.yaml").write_text(
        f"listen_addr: localhost:0\ncerts_dir: {certificates}\nplugins:\n  - {entry}\n"
    )
    with start(command("orchestrate", "plugins.yaml"), cwd=tmp_path) as hub:
        address = hub.wait_for("Listening on").rpartition(" ")[2]
        words = command("bridge", "--orchestrator-addr", address, "--certs-dir", certificates)
        with start(words) as bridge:
            bridge.wait_for("transport.stdio: connected to orchestrator at ")
            assert bridge.end() == 0
        hub.process.send_signal(signal.SIGTERM)
        assert hub.end() == 0
    issued = [
        "orchestrator-to-tools.first",
        "orchestrator",
        "tools.first-client",
        "tools.first",
        "transport.stdio-client",
    ]
    assert names(certificates) == sorted(
        f"{name}.{kind}" for name in ("ca", *issued) for kind in ("crt", "key")
    )


def test_a_plugins_file_can_be_served_to_an_mcp_client(private: Path) -> None:
    folder = private / "served"
    folder.mkdir(mode=0o700)
    (folder / "first.py").write_text(PLUGIN)
    entry = f"{FIRST}, socket: true}}"
    (folder / "plugins.yaml").write_text(f"listen_addr: unix:hub\nplugins:\n  - {entry}\n")
    call = request(1, "tools/call", name="add", arguments={"a": 1, "b": 2})
    ended = run(command("serve", "plugins.yaml"), [INITIALIZE, INITIALIZED, call], cwd=folder)
    assert tool_bodies(ended.out)[1] == 3
