"""docs/how-to/authorization.md: its server, its function and its commands do what the page says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from docs.pages import DOCS, environment, paste
from http_service import Answer, HttpService, ask_modern, modern, modern_headers, post, serving

from concertino import SyncClient
from concertino.client import ServerParameters

PAGE = DOCS / "how-to" / "authorization.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert paste(PAGE, tmp_path) == ["ask.py", "my_tokens.py", "shop.py"]
    return tmp_path


def call(service: HttpService, token: str, name: str, **arguments: str) -> Answer:
    message = modern("tools/call", name=name, arguments=arguments)
    headers = {"Authorization": f"Bearer {token}", **modern_headers(message)}
    return post(service.connect(), message, headers)


def text(answer: Answer) -> str:
    found: str = answer.json["result"]["content"][0]["text"]
    return found


def test_nobody_is_known_and_nobody_is_limited_on_stdio(folder: Path) -> None:
    target = ServerParameters(sys.executable, ["shop.py"], cwd=folder, env=environment())
    with SyncClient(target) as client:
        assert client.call_tool("whoami").text == "nobody that I know"
        assert client.call_tool("order", {"item": "pear"}).text == "ordered pear"


def test_the_file_of_tokens(folder: Path) -> None:
    tokens = folder / "tokens.json"
    words = ["token", "new", "ci", "--file", str(tokens)]
    made = subprocess.run(
        [sys.executable, "-m", "concertino", *words], capture_output=True, text=True, check=True
    )
    with serving(folder / "shop.py", "--auth-tokens", str(tokens)) as service:
        assert text(call(service, made.stdout.strip(), "whoami")) == "ci"
        assert ask_modern(service.connect(), "tools/list").status == 401
        asked = subprocess.run(
            [sys.executable, "ask.py", service.url],
            cwd=folder,
            env=environment(SHOP_TOKEN=made.stdout.strip()),
            capture_output=True,
            text=True,
            check=True,
        )
        assert asked.stdout == "ci\n"


def test_the_function_and_the_scopes(folder: Path) -> None:
    auth = ("--auth", f"{folder / 'my_tokens.py'}:verify")
    with serving(folder / "shop.py", *auth, PARTNER_TOKEN="s3cret") as service:
        assert text(call(service, "s3cret", "whoami")) == "partner"
        assert call(service, "other", "whoami").status == 401
        answers = [
            call(service, "s3cret", "order", item="pear"),
            call(service, "s3cret", "read_orders", customer="ann"),
        ]
        assert [answer.status for answer in answers] == [403, 403]
        assert 'scope="orders:write"' in answers[0].headers["WWW-Authenticate"]
        assert 'scope="orders:ann"' in answers[1].headers["WWW-Authenticate"]
