"""The key `auth` of servers in a file: read, approved, and used without a person."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from authorization_server import AuthorizationServer, running
from loops import on_a_loop

from concertino import Client
from concertino.client import HttpParameters
from concertino.errors import ConcertinoError
from concertino.proxy.definitions import define_server
from concertino.proxy.expansion import Expander
from concertino.proxy.server_file import ServerFile, parse_server_file
from concertino.proxy.server_launch import expand_entry, read_launch_secrets
from concertino.proxy.value_reader import InvalidServerFile


def parse(auth: dict[str, Any], url: str = "https://a.example/mcp") -> ServerFile:
    server = {"url": url, "x-concertino": {"auth": auth}}
    return parse_server_file(json.dumps({"mcpServers": {"a": server}}).encode(), "mcp.json")


MACHINE = {
    "grant": "client_credentials",
    "client_id": "known",
    "client_secret": "${env:A_SECRET}",
    "scopes": ["x", "y"],
}


@on_a_loop
async def test_a_server_of_a_file_is_used_with_its_credentials(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("A_SECRET", "s3cr:t/ü")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("CONCERTINO_LOGINS", "file")
    async with running(AuthorizationServer()) as service:
        file = parse(MACHINE, service.url)
        launch = expand_entry(file.servers[0], file, Expander(file, os.environ, {}), {})
        target = await read_launch_secrets(launch)
        assert isinstance(target, HttpParameters)
        async with Client(target) as client:
            assert await client.call_tool("t", into=str) == "ok"
        [request] = service.of("/token")
        assert request.form["scope"] == "x y"


@on_a_loop
async def test_the_url_of_the_metadata_may_be_in_a_variable() -> None:
    file = parse({"client_metadata_url": "${ABOUT}"})
    found: list[object] = []
    for about in ("https://a.example/about", "http://a.example/about"):
        expander = Expander(file, {"ABOUT": about}, {})
        launch = expand_entry(file.servers[0], file, expander, {})
        try:
            found.append(await read_launch_secrets(launch))
        except ConcertinoError as exc:
            found.append(str(exc))
    assert isinstance(found[0], HttpParameters)
    assert found[0].auth is not None
    assert found[0].auth.client_metadata_url == "https://a.example/about"
    assert found[1] == "auth: client_metadata_url: expected an https URL with a path"


@pytest.mark.parametrize(
    ("auth", "text"),
    [
        ({"client_idd": "x"}, "client_id"),
        ({"client_secret": "x"}, "client_id: expected one beside"),
        ({"grant": "password"}, "expected one of"),
        ({"grant": "client_credentials", "client_id": "x"}, "client_secret or private_key"),
        ({"client_metadata_url": "http://a.example/x"}, "https"),
    ],
)
def test_what_does_not_belong_together_is_refused(auth: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidServerFile, match=text):
        parse(auth)


def test_other_credentials_are_approved_anew_and_secrets_are_not_shown() -> None:
    def definition(**changes: Any) -> Any:
        file = parse({**MACHINE, **changes})
        return define_server(file.servers[0], file, {}, b"key")

    approved = definition(client_secret="hunter22")
    assert approved["auth.client_secret"].log_text == ""
    assert approved["auth.grant"].log_text == "client_credentials"
    for change in ({"issuer": "https://b.example"}, {"scopes": ["z"]}, {"client_id": "other"}):
        assert definition(client_secret="hunter22", **change) != approved
