"""log_in() at servers that have nothing to log in to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from authorization_server import AuthorizationServer, Response, as_json, running
from loops import on_a_loop

from concertino.authorization.flow import PageOpener
from concertino.authorization.login_commands import log_in
from concertino.authorization.logins import LoginStore, login_key
from concertino.authorization.settings import OAuth
from concertino.errors import AuthorizationError


class OpenServer(AuthorizationServer):
    """A server that serves everybody, and has none of the paths of an authorization server."""

    async def answer(self, request: Any) -> Response:
        self.requests.append(request)
        if request.path == "/mcp":
            return as_json({"jsonrpc": "2.0", "id": 1, "result": {}})
        return 404, {}, b""


@on_a_loop
async def test_at_a_server_that_asks_for_no_login_nobody_is_registered(tmp_path: Path) -> None:
    async with running(OpenServer()) as server:
        with pytest.raises(AuthorizationError, match=f"^{server.url} asks for no login$"):
            await log_in(server.url, OAuth(), PageOpener(), LoginStore(tmp_path))
        assert "/register" not in server.paths()


@on_a_loop
async def test_a_login_that_cannot_be_removed_is_named(tmp_path: Path) -> None:
    store = LoginStore(tmp_path)
    key = login_key("https://server.example/mcp", "", "authorization_code")
    file = tmp_path / f"{key}.json"
    # A directory cannot be unlinked, whoever asks.
    file.mkdir()
    with pytest.raises(AuthorizationError, match=f"^{file}: Is a directory$"):
        await store.remove(key)
