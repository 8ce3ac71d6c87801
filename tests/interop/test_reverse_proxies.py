"""nginx and Caddy in front of a server of ours, with the configurations that the guides show."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Literal

import pytest
from http_service import MODERN, Answer, modern, modern_headers, post, request, serving
from interop.tools import system_program

from concertino import Client

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "how-to"
SERVER = ROOT / "tests" / "http" / "server_for_http.py"
VERIFIER = ROOT / "tests" / "http" / "verifier_for_http.py"
START_S = 30.0
CALL_S = 30.0
LARGE = 500_000
Era = Literal["modern", "legacy"]
proxies = pytest.mark.parametrize("proxy", ["nginx", "caddy"])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def documented(guide: str, beginning: str, **replacements: str) -> str:
    """Return a configuration that a guide shows.

    beginning: how the block begins.
    replacements: what stands in it -> what a test needs. All of it must be there.
    """
    blocks = re.findall(r"```text\n(.*?)```", (GUIDES / guide).read_text(), re.DOTALL)
    (block,) = [text for text in blocks if text.startswith(beginning)]
    for text, other in replacements.items():
        assert text in block, text
        block = block.replace(text, other)
    return block


@contextmanager
def running(command: list[str | Path], folder: Path, port: int) -> Iterator[None]:
    """Run a proxy until the end of the block. It listens at the beginning."""
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder)},
        )
    try:
        until = time.monotonic() + START_S
        while True:
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < until, (folder / "log").read_text()
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.02)
        yield
    finally:
        process.terminate()
        process.wait()


@contextmanager
def nginx(folder: Path, port: int, http: str) -> Iterator[None]:
    """Run nginx with these lines in `http { ... }`."""
    program = system_program("nginx")
    places = "".join(
        f"{name}_temp_path {folder}/{name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    # Its workers may reach the socket of this user only if they are of this user.
    user = "user root;\n" if os.geteuid() == 0 else ""
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off;\n{user}pid {folder}/pid;\nerror_log stderr;\nevents {{ }}\n"
        f"http {{\naccess_log off;\n{places}{http}\n}}\n"
    )
    with running([program, "-p", folder, "-c", config], folder, port):
        yield


@contextmanager
def caddy(folder: Path, port: int, site: str) -> Iterator[None]:
    """Run Caddy with this site."""
    program = system_program("caddy")
    version = subprocess.run([program, "version"], capture_output=True, text=True, check=True)
    if version.stdout.removeprefix("v").startswith("2.6.2"):
        # The guide says so: the option has another name in the version of Debian and Ubuntu.
        site = re.sub(r"request_buffers \S+", "buffer_requests", site)
    config = folder / "Caddyfile"
    config.write_text(f"{{\n\tadmin off\n\tauto_https off\n}}\n{site}\n")
    command = [program, "run", "--config", config, "--adapter", "caddyfile"]
    with running(command, folder, port):
        yield


@contextmanager
def in_front_of_a_socket(proxy: str, folder: Path, path: Path) -> Iterator[int]:
    """Run a proxy as docs/how-to/http-in-production.md shows it. Gives its port."""
    port = free_port()
    if proxy == "nginx":
        lines = documented(
            "http-in-production.md",
            "upstream shop",
            **{"/run/shop/mcp.sock": str(path), "listen 443 ssl;": f"listen 127.0.0.1:{port};"},
        )
        with nginx(folder, port, lines):
            yield port
        return
    site = documented(
        "http-in-production.md",
        "mcp.example.com",
        **{"/run/shop/mcp.sock": str(path), "mcp.example.com {": f"http://127.0.0.1:{port} {{"},
    )
    with caddy(folder, port, site):
        yield port


@proxies
@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_calls_and_streams_pass_at_once(proxy: str, era: Era, tmp_path: Path) -> None:
    path = tmp_path / "mcp.sock"

    async def talk(url: str) -> None:
        has_progress = asyncio.Event()

        def on_progress(*_: object) -> None:
            has_progress.set()

        async with Client(url, era=era) as client, Client(url, era=era) as other:
            assert (client.protocol_version == MODERN) is (era == "modern")
            assert "add" in [tool.name for tool in await client.list_tools()]
            calls = (client.call_tool("add", {"a": at, "b": 1}, into=int) for at in range(30))
            assert await asyncio.gather(*calls) == list(range(1, 31))
            large = "x" * LARGE
            for _ in range(40):
                results = await asyncio.gather(
                    *(client.call_tool("large", {"size": LARGE}, into=str) for _ in range(8))
                )
                assert results == [large] * 8

            # The progress arrives while the call waits: nothing holds the events back.
            waiting = asyncio.ensure_future(
                client.call_tool("wait", into=str, progress=on_progress)
            )
            await has_progress.wait()
            await other.call_tool("release")
            assert await waiting == "released"

    with (
        serving(SERVER, "--http", f"unix:{path}"),
        in_front_of_a_socket(proxy, tmp_path, path) as port,
    ):
        asyncio.run(asyncio.wait_for(talk(f"http://127.0.0.1:{port}/mcp"), CALL_S))


@proxies
def test_a_token_that_came_to_the_proxy_without_tls_is_refused(proxy: str, tmp_path: Path) -> None:
    """docs/how-to/authorization.md: here the proxy has no TLS, as it should have."""
    port = free_port()
    options = (
        "--behind-proxy", "--trusted-proxy", "127.0.0.1", "--public-url",
        "https://mcp.example.com/mcp", "--auth", f"{VERIFIER}:verify", "--allow-host", "127.0.0.1",
    )  # fmt: skip
    message = modern("tools/call", name="whoami", arguments={})
    headers = {**modern_headers(message), "Authorization": "Bearer good"}

    with serving(SERVER, *options) as service:
        address = "{}:{}".format(*service.address)
        if proxy == "nginx":
            lines = documented("authorization.md", "location /mcp", **{"127.0.0.1:8000": address})
            front = nginx(tmp_path, port, f"server {{ listen 127.0.0.1:{port};\n{lines} }}")
        else:
            site = documented(
                "authorization.md",
                "mcp.example.com",
                **{
                    "127.0.0.1:8000": address,
                    "mcp.example.com {": f"http://127.0.0.1:{port} {{",
                },
            )
            front = caddy(tmp_path, port, site)
        with front:
            connection = HTTPConnection("127.0.0.1", port, timeout=CALL_S)
            answer = post(connection, message, headers)
            assert answer.status == 403
            assert "without TLS" in answer.json["error"]["message"]
            # The metadata of a server without issuers are not there, and no proxy invents them.
            path = "/.well-known/oauth-protected-resource/mcp"
            assert Answer(request(connection, "GET", path=path)).status in (403, 404)
            connection.close()
