"""A page in headless Chromium that calls servers of ours: what CORS and the checks of Origin and
Host let it do.

The page is on another origin than the servers. Chromium takes the names of the sites for addresses
of this machine, so that they are in the same address space as the servers, as after DNS rebinding.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any
from urllib.parse import urlencode

import pytest
from http_service import HttpService, serving
from interop.tools import system_program

from concertino import SyncClient

pytestmark = pytest.mark.slow

PAGE = Path(__file__).with_name("page.html").read_bytes()
REPORT_S = 120.0
SERVER = """
from concertino import Context, Server

server = Server("pages")
hits = 0


@server.tool
async def hit() -> str:
    global hits
    hits += 1
    return f"hit {hits}"


@server.tool
async def count_hits() -> int:
    return hits


@server.tool
async def count(context: Context) -> str:
    for step in (1, 2):
        await context.progress(step, 2)
    return "counted"
"""


class Site(ThreadingHTTPServer):
    """Serves the page under every name, and takes its reports."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), PageHandler)
        self.reports: Queue[Any] = Queue()


class PageHandler(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        self._answer(200 if self.path.startswith("/?") else 404, PAGE)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, b"")
        self.server.reports.put(json.loads(body))

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def running_site() -> Iterator[Site]:
    with Site() as site:
        thread = Thread(target=site.serve_forever)
        thread.start()
        try:
            yield site
        finally:
            site.shutdown()
            thread.join()


@contextmanager
def running_chromium(url: str, folder: Path) -> Iterator[None]:
    command = [
        system_program("chromium"),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        f"--user-data-dir={folder / 'profile'}",
        "--host-resolver-rules=MAP *.example.com 127.0.0.1",
        "--no-proxy-server",
        "--remote-debugging-pipe",
        url,
    ]
    # The browser ends when this pipe for a debugger closes, with all of its processes.
    reads, writes = os.pipe()
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            ["sh", "-c", 'exec "$@" 3<&0 4>&1', "sh", *command],
            stdin=reads,
            stdout=log,
            stderr=log,
            env={**os.environ, "HOME": str(folder)},
        )
    os.close(reads)
    try:
        yield
    finally:
        os.close(writes)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def count_hits(service: HttpService) -> int:
    with SyncClient(service.url) as client:
        return client.call_tool("count_hits", into=int)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what the page has seen at each origin, and how often the tools were called."""
    folder = tmp_path_factory.mktemp("browser")
    target = folder / "pages.py"
    target.write_text(SERVER)
    with running_site() as site:
        port = site.server_address[1]
        allowed = f"http://app.example.com:{port}"
        with serving(target) as closed, serving(target, "--allow-origin", allowed) as open_:
            servers = {
                "closed": closed.url,
                "open": open_.url,
                "rebound": closed.url.replace("127.0.0.1", "rebound.example.com"),
            }
            # The last page first. Each goes to the next one when it has sent its report.
            url = ""
            for host in ("localhost", "other.example.com", "app.example.com"):
                query = urlencode({**servers, "next": url})
                url = f"http://{host}:{port}/?{query}"
            with running_chromium(url, folder):
                reports = [site.reports.get(timeout=REPORT_S) for _ in range(3)]
            hits = {"closed": count_hits(closed), "open": count_hits(open_)}
    found = {report["origin"].split("//")[1].split(":")[0]: report["seen"] for report in reports}
    return {**found, "hits": hits}


def test_a_page_of_an_allowed_origin_calls_tools_and_reads_the_answers(seen: Any) -> None:
    assert seen["app.example.com"]["callOpen"] == {"status": 200, "text": "hit 1"}


def test_a_page_of_an_allowed_origin_uses_a_session_and_reads_its_streams(seen: Any) -> None:
    assert seen["app.example.com"]["useSession"] == {
        "statuses": [200, 202, 200, 204],
        "type": "text/event-stream",
        "progress": 2,
        "isCounted": True,
    }


def test_a_page_of_another_origin_may_not_call_a_server_that_allows_one(seen: Any) -> None:
    page = seen["other.example.com"]
    assert page["callOpen"] == page["useSession"] == "TypeError"


def test_a_page_of_this_machine_may_call_a_server_that_allows_an_origin(seen: Any) -> None:
    assert seen["localhost"]["callOpen"]["status"] == 200


@pytest.mark.parametrize("origin", ["app.example.com", "other.example.com", "localhost"])
def test_without_allowed_origins_no_page_can_call_or_read(seen: Any, origin: str) -> None:
    assert seen[origin]["callClosed"] == seen[origin]["callRebound"] == "TypeError"


def test_requests_that_browsers_send_without_asking_call_no_tool(seen: Any) -> None:
    # The browser has sent them, so it was the server that has refused them.
    for origin in ("app.example.com", "other.example.com", "localhost"):
        assert seen[origin]["sendToClosed"] == seen[origin]["sendToRebound"] == "sent"
    assert seen["hits"]["closed"] == 0
