"""server_file.py: the formats of the hosts, warnings, and mistakes with their places."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator
from proxy.files import HOST_FILES

from concertino.proxy.file_values import FileValue
from concertino.proxy.json_comments import parse_json
from concertino.proxy.server_file import (
    MAX_BYTES,
    ServerEntry,
    ServerFile,
    parse_server_file,
    read_server_file,
)
from concertino.proxy.server_members import IGNORED_KEYS, SERVER_KEYS
from concertino.proxy.server_options import GUARD_KEYS, OPTION_KEYS, ServerOptions
from concertino.proxy.toml_values import parse_toml
from concertino.proxy.value_reader import InvalidServerFile, Template
from concertino.transforms import ArgumentChange, ToolChange

DOCS = Path(__file__).parents[2] / "docs" / "reference"
SCHEMA: dict[str, Any] = msgspec.json.decode((DOCS / "server-file.schema.json").read_bytes())


def host_file(name: str) -> ServerFile:
    return parse_server_file(HOST_FILES[name].encode(), f"/project/{name}")


def server(file: ServerFile, name: str) -> ServerEntry:
    return next(entry for entry in file.servers if entry.name == name)


def parse(text: str, name: str = "mcp.json") -> ServerFile:
    return parse_server_file(text.encode(), name)


def one(members: str, name: str = "mcp.json") -> ServerEntry:
    return parse(f'{{"mcpServers": {{"a": {{{members}}}}}}}', name).servers[0]


def texts(templates: tuple[Template, ...]) -> list[str]:
    return [template.text for template in templates]


def test_the_file_of_claude_desktop() -> None:
    file = host_file("claude_desktop_config.json")
    files, search = file.servers
    assert (files.name, files.command, files.is_enabled) == (
        "filesystem",
        Template("npx", 6, 18),
        True,
    )
    assert texts(files.args) == [
        "-y",
        "@modelcontextprotocol/server-filesystem",
        "/home/me/Desktop",
    ]
    assert search.env == {"BRAVE_API_KEY": Template("${BRAVE_API_KEY}", 12, 32)}
    assert not search.is_enabled
    assert file.warnings == ()


def test_the_file_of_claude_code() -> None:
    file = host_file(".mcp.json")
    api, db = file.servers
    assert (api.command, api.options.timeout_s) == (None, 600)
    assert api.url is not None
    assert api.url.text == "${API_BASE_URL:-https://api.example.com}/mcp"
    assert api.headers["Authorization"].text == "Bearer ${API_KEY}"
    assert (db.command, db.args, db.env) == (Template("${HOME}/bin/db", 10, 40), (), {})
    assert file.workspace == Path("/project")


def test_the_file_of_vs_code() -> None:
    file = host_file(".vscode/mcp.json")
    assert file.workspace == Path("/project")
    perplexity = server(file, "Perplexity")
    assert {name: item.text for name, item in perplexity.env.items()} == {
        "PERPLEXITY_API_KEY": "${input:perplexity-key}",
        "RETRIES": "3",
    }
    assert perplexity.env_file is not None
    assert perplexity.env_file.text == "${workspaceFolder}/.env"
    key, region = file.inputs["perplexity-key"], file.inputs["region"]
    assert (key.description, key.is_secret, key.default) == ("Perplexity API Key", True, None)
    assert (region.choices, region.is_secret, region.default) == (("eu", "us"), False, "eu")
    assert file.warnings == ()


def test_the_file_of_codex() -> None:
    file = host_file("config.toml")
    context7, figma = file.servers
    assert texts(context7.args) == ["-y", "@upstash/context7-mcp"]
    assert context7.env == {"MY_ENV_VAR": Template("MY_ENV_VALUE", 15, 1)}
    assert context7.start_timeout_s == 20
    assert context7.options == ServerOptions(
        timeout_s=45.5,
        allow=("search", "open"),
        deny=("open",),
        inherit=("LOCAL_TOKEN", "REMOTE_TOKEN"),
    )
    assert {name: item.text for name, item in figma.headers.items()} == {
        "Authorization": "Bearer ${FIGMA_OAUTH_TOKEN}",
        "X-Figma-Region": "us-east-1",
        "X-Team": "${FIGMA_TEAM}",
    }
    assert figma.options == ServerOptions(pin=True)
    assert file.warnings == ()


def test_the_file_of_gemini() -> None:
    python, remote = host_file("settings.json").servers
    assert python.cwd == Template("./servers", 8, 14)
    # $VAR is not replaced by any other host, and so not by us.
    assert python.env["API_KEY"].text == "$EXTERNAL_API_KEY"
    assert python.options == ServerOptions(timeout_s=15, allow=("safe_*",), deny=("safe_not",))
    assert remote.url is not None
    assert remote.url.text == "http://localhost:3000/mcp"


def test_our_own_keys() -> None:
    assert host_file("mcp.json").servers[0].options == ServerOptions(
        allow=("get_*", "prompt:*"),
        deny=("get_secret*",),
        rename={"get_me": "whoami"},
        tools={
            "get_issue": ToolChange(
                tags=("bugs",),
                arguments={
                    "owner": ArgumentChange(env="OWNER"),
                    "repo": ArgumentChange(value=["a", {"b": 1}]),
                },
            )
        },
        prompts_as_tools=True,
        rate_limit=("10/60", "get_*=5/1"),
        max_in_flight=4,
        timeout_s=30,
        max_result_bytes=50000,
        redact=True,
        isolation="session",
        idle_s=600,
        ping_s=30,
        pin=True,
        inherit=("HTTPS_PROXY",),
    )


@pytest.mark.parametrize(
    ("members", "timeout_s"),
    [('"timeout": 60', 60), ('"timeout": 999', 999), ('"timeout": 1000', 1)],
)
def test_a_small_time_limit_is_in_seconds(members: str, timeout_s: float) -> None:
    assert one(f'"command": "a", {members}').options.timeout_s == timeout_s


def test_our_own_key_goes_before_the_hosts_key() -> None:
    entry = one('"command": "a", "timeout": 5000, "x-concertino": {"guards": {"timeout_s": 7}}')
    assert entry.options.timeout_s == 7


@pytest.mark.parametrize(
    ("members", "warning"),
    [
        ('"comand": "b"', "mcpServers.a.comand: not known, and ignored; did you mean 'command'?"),
        (
            '"x_concertino": {}',
            "mcpServers.a.x_concertino: not known, and ignored; did you mean 'x-concertino'?",
        ),
        ('"retries": 1', "mcpServers.a.retries: not known, and ignored"),
    ],
)
def test_an_unknown_member_of_a_server_is_a_warning(members: str, warning: str) -> None:
    text = f'{{"mcpServers": {{"a": {{"command": "a",\n {members}}}}}}}'
    assert parse(text).warnings == (f"mcp.json:2:2: {warning}",)


def test_a_file_without_servers_is_a_warning() -> None:
    file = parse('{"mcpServers": {}}')
    assert (file.servers, file.warnings) == ((), ("mcp.json:1:2: mcpServers: there is no server",))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[]", "mcp.json:1:1: the file: expected an object, got a list"),
        ("{", "mcp.json:1:2: expected JSON: expected a name or '}', got the end of the file"),
        (
            '{"calculator": {}}',
            "mcp.json:1:1: the file: expected one of mcpServers, servers, mcp_servers, got none "
            "of them",
        ),
        (
            '{"inputs": [],\n"mcpservers": {}}',
            "mcp.json:2:1: the file: expected one of mcpServers, servers, mcp_servers, got "
            "'mcpservers'; did you mean 'mcpServers'?",
        ),
        (
            '{"mcpServers": {},\n"servers": {}}',
            "mcp.json:2:1: the file: expected one of mcpServers, servers, mcp_servers, got "
            "mcpServers and servers",
        ),
        ('{"servers": []}', "mcp.json:1:13: servers: expected an object, got a list"),
        (
            '{"servers": {"": {}}}',
            "mcp.json:1:14: servers: expected a name of 1 to 128 visible characters",
        ),
        ('{"servers": {"a": 1}}', "mcp.json:1:19: servers.a: expected an object, got 1"),
        (
            '{"servers": {"a": {}}}',
            "mcp.json:1:14: servers.a: expected command or url, got neither",
        ),
        (
            '{"servers": {"a": {"command": "x",\n"url": "y"}}}',
            "mcp.json:2:8: servers.a.url: expected command or url, got both",
        ),
        (
            '{"servers": {"a": {"type": "http", "command": "x"}}}',
            "mcp.json:1:14: servers.a: expected url for a server of this type",
        ),
        (
            '{"servers": {"a": {"type": "htpp", "url": "x"}}}',
            "mcp.json:1:28: servers.a.type: expected one of 'stdio', 'local', 'http', "
            "'streamable-http', "
            "'streamableHttp', 'remote', 'sse', 'ws'; did you mean 'http'?",
        ),
        (
            '{"servers": {"a": {"command": ["x"]}}}',
            "mcp.json:1:31: servers.a.command: expected a text, got a list",
        ),
        (
            '{"servers": {"a": {"command": ""}}}',
            "mcp.json:1:31: servers.a.command: expected a text, got an empty text",
        ),
        (
            '{"servers": {"a": {"command": "x", "args": "y"}}}',
            "mcp.json:1:44: servers.a.args: expected a list, got a text",
        ),
        (
            '{"servers": {"a": {"command": "x", "args": ["y", true]}}}',
            "mcp.json:1:50: servers.a.args[1]: expected a text, got true",
        ),
        (
            '{"servers": {"a": {"command": "x", "env": {"A=B": ""}}}}',
            "mcp.json:1:44: servers.a.env: expected the name of a variable, got 'A=B'",
        ),
        (
            '{"servers": {"a": {"command": "x", "env": {"A": "b\\u0000"}}}}',
            "mcp.json:1:49: servers.a.env.A: expected a text without a NUL character",
        ),
        (
            '{"servers": {"a": {"url": "x", "headers": {"A b": "c"}}}}',
            "mcp.json:1:51: servers.a.headers: expected the name of a header, got 'A b'",
        ),
        (
            '{"servers": {"a": {"command": "x", "disabled": "yes"}}}',
            "mcp.json:1:48: servers.a.disabled: expected true or false, got a text",
        ),
        (
            '{"servers": {"a": {"command": "x", "timeout": 0}}}',
            "mcp.json:1:47: servers.a.timeout: expected a positive number, got 0",
        ),
        ('{"servers": {}, "inputs": [{}]}', "mcp.json:1:28: inputs[0]: expected an id"),
        (
            '{"servers": {}, "inputs": [{"id": "a"}, {"id": "a"}]}',
            "mcp.json:1:41: inputs[1]: 'a' is there already",
        ),
    ],
)
def test_a_mistake_is_an_error_with_its_place(text: str, error: str) -> None:
    with pytest.raises(InvalidServerFile) as caught:
        parse(text)
    assert str(caught.value) == error


@pytest.mark.parametrize(
    ("own", "error"),
    [
        (
            '{"alow": []}',
            "2:2: mcpServers.a.x-concertino.alow: no such member; did you mean 'allow'?",
        ),
        (
            '{"idleS": 1}',
            "2:2: mcpServers.a.x-concertino.idleS: no such member; did you mean 'idle_s'?",
        ),
        (
            '{"zzz": 1}',
            "2:2: mcpServers.a.x-concertino.zzz: no such member; there are allow, deny, rename, "
            "tools, prompts_as_tools, resources_as_tools, guards, isolation, idle_s, ping_s, "
            "heartbeat_s, cache, lazy, shared, pin, inherit, auth",
        ),
        (
            '{"pin": "yes"}',
            "2:9: mcpServers.a.x-concertino.pin: expected true or false, got a text",
        ),
        (
            '{"idle_s": -1}',
            "2:12: mcpServers.a.x-concertino.idle_s: expected a positive number, got -1",
        ),
        (
            '{"guards": {"timeout": 1}}',
            "2:13: mcpServers.a.x-concertino.guards.timeout: no such member; did you mean "
            "'timeout_s'?",
        ),
        (
            '{"guards": {"max_in_flight": 1.5}}',
            "2:30: mcpServers.a.x-concertino.guards.max_in_flight: expected a positive whole "
            "number, got 1.5",
        ),
        (
            '{"guards": {"rate_limit": "10"}}',
            "2:27: mcpServers.a.x-concertino.guards.rate_limit: expected CALLS/SECONDS or "
            "GLOB=CALLS/SECONDS, "
            "such as '10/60', got '10'",
        ),
        (
            '{"isolation": "sesion"}',
            "2:15: mcpServers.a.x-concertino.isolation: expected one of 'auto', 'principal', "
            "'session'; "
            "did you mean 'session'?",
        ),
        (
            '{"isolation": "session", "shared": true}',
            "2:26: mcpServers.a.x-concertino.shared: expected no isolation, got 'session' too",
        ),
        (
            '{"rename": {"a": "c", "b": "c"}}',
            "2:12: mcpServers.a.x-concertino.rename: both 'a' and 'b' would be called 'c'",
        ),
        (
            '{"tools": {"x": {"nam": "y"}}}',
            "2:18: mcpServers.a.x-concertino.tools.x.nam: no such member; did you mean 'name'?",
        ),
        (
            '{"tools": {"x": {"arguments": {"y": {"value": 1, "env": "Z"}}}}}',
            "2:37: mcpServers.a.x-concertino.tools.x.arguments.y: expected one of default, value "
            "and env, got value and env",
        ),
        (
            '{"tools": {"x": {"name": "y"}}, "rename": {"x": "z"}}',
            "2:1: mcpServers.a.x-concertino.tools: rename and tools both have a name for 'x'",
        ),
        (
            '{"tools": {"x": {"name": "z"}}, "rename": {"y": "z"}}',
            "2:1: mcpServers.a.x-concertino.tools: both 'x' and 'y' would be called 'z'",
        ),
        (
            '{"tools": {"x": {"arguments": {"a": {"name": "b"}, "b": {}}}}}',
            "2:17: mcpServers.a.x-concertino.tools.x: both 'a' and 'b' would be called 'b'",
        ),
        (
            '{"allow": ["tool:"]}',
            "2:11: mcpServers.a.x-concertino.allow: expected tool:, prompt: or resource: "
            "before a name with a colon, such as 'resource:tool:', got 'tool:'",
        ),
    ],
)
def test_a_mistake_in_our_own_keys_is_an_error(own: str, error: str) -> None:
    with pytest.raises(InvalidServerFile) as caught:
        parse(f'{{"mcpServers": {{"a": {{"command": "b", "x-concertino":\n{own}}}}}}}')
    assert str(caught.value) == f"mcp.json:{error}"


def test_a_mistake_in_toml_has_the_place_of_its_statement() -> None:
    with pytest.raises(InvalidServerFile) as caught:
        parse('[mcp_servers.a]\ncommand = "x"\n  args = 1\n', "config.toml")
    assert str(caught.value) == "config.toml:3:3: mcp_servers.a.args: expected a list, got 1"


def test_no_error_shows_a_text_of_the_file() -> None:
    with pytest.raises(InvalidServerFile) as caught:
        one('"command": "x", "env": "hunter2"')
    assert "hunter2" not in str(caught.value)


def test_a_file_of_another_encoding_or_of_too_many_bytes_is_refused() -> None:
    with pytest.raises(InvalidServerFile, match=r"^mcp.json:2: expected UTF-8$"):
        parse_server_file(b'{\n"a": "\xe9"}', "mcp.json")
    with pytest.raises(InvalidServerFile, match=r"^mcp.json: expected at most 1048576 bytes$"):
        parse_server_file(b" " * (MAX_BYTES + 1), "mcp.json")


def test_a_file_is_read_with_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"a": {"command": "b"}}}')
    os.chmod(tmp_path / "mcp.json", 0o600)
    monkeypatch.chdir(tmp_path)
    file = read_server_file("mcp.json")
    assert (file.path, file.workspace) == (tmp_path / "mcp.json", tmp_path)


def test_a_file_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    with pytest.raises(InvalidServerFile) as caught:
        read_server_file(path)
    assert str(caught.value) == f"{path}: No such file or directory"


# The published schema


def plain(value: FileValue) -> Any:
    content = value.content
    if isinstance(content, Mapping):
        return {name: plain(member.value) for name, member in content.items()}
    return [plain(item) for item in content] if isinstance(content, tuple) else content


@pytest.mark.parametrize("name", HOST_FILES)
def test_the_schema_describes_the_files_of_the_hosts(name: str) -> None:
    parse_text = parse_toml if name.endswith(".toml") else parse_json
    Draft202012Validator(SCHEMA).validate(plain(parse_text(HOST_FILES[name])))


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"mcpServers": {}, "servers": {}}',
        '{"servers": {"a": {}}}',
        '{"servers": {"a": {"command": "x", "url": "y"}}}',
        '{"servers": {"a": {"command": "x", "args": "y"}}}',
        '{"servers": {"a": {"command": "x", "x-concertino": {"alow": []}}}}',
        '{"servers": {"a": {"command": "x", "x-concertino": {"guards": {"timeout": 1}}}}}',
        '{"servers": {"a": {"command": "x", "x-concertino": {"isolation": "all"}}}}',
        '{"servers": {"a": {"type": "htpp", "url": "x"}}}',
        '{"servers": {}, "inputs": [{}]}',
    ],
)
def test_the_schema_and_the_reader_refuse_the_same(text: str) -> None:
    assert not Draft202012Validator(SCHEMA).is_valid(msgspec.json.decode(text))
    with pytest.raises(InvalidServerFile):
        parse(text)


def test_the_schema_has_every_key() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    parts = SCHEMA["$defs"]
    assert set(parts["server"]["properties"]) == {*SERVER_KEYS, "x-concertino"}
    assert list(parts["options"]["properties"]) == list(OPTION_KEYS)
    assert list(parts["options"]["properties"]["guards"]["properties"]) == list(GUARD_KEYS)
    assert not IGNORED_KEYS & set(SERVER_KEYS)
