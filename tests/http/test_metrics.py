"""`/metrics`: who gets it, and what is in it. Real servers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from http_service import Answer, HttpService, ask_modern, request, serving

SERVER = Path(__file__).with_name("server_for_http.py")
COUNT = re.compile(
    r"^mcp_server_operation_duration_seconds_count"
    r'\{mcp_method_name="tools/call",gen_ai_tool_name="add"\} (\d+)$',
    re.MULTILINE,
)


def get(service: HttpService, method: str = "GET", **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(request(service.connect(), method, None, named, "/metrics"))


def test_the_numbers_are_served_to_this_machine() -> None:
    with serving(SERVER, "--metrics") as service:
        connection = service.connect()
        for _ in range(3):
            ask_modern(connection, "tools/call", name="add", arguments={"a": 1, "b": 1})

        answer = get(service)

        assert answer.status == 200
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert answer.headers["Cache-Control"] == "no-store"
        found = COUNT.search(answer.body.decode())
        assert found is not None
        assert found[1] == "3"
        head = get(service, "HEAD")
        assert (head.status, head.body) == (200, b"")
        assert get(service, "POST").status == 405


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example.com"},
        {"Origin": "https://evil.example.com"},
        {"X_Forwarded_For": "127.0.0.1"},
        {"Forwarded": "for=127.0.0.1"},
        {"X_Real_IP": "127.0.0.1"},
        {"X_Forwarded_Proto": "https"},
        {"Via": "1.1 proxy"},
    ],
)
def test_foreign_pages_and_clients_of_a_proxy_get_no_numbers(headers: dict[str, str]) -> None:
    with serving(SERVER, "--metrics") as service:
        answer = get(service, **headers)

        assert answer.status == 403
        assert b"mcp_server" not in answer.body


def test_a_server_behind_a_proxy_without_authorization_serves_no_numbers() -> None:
    with serving(SERVER, "--metrics", "--behind-proxy") as service:
        assert get(service).status == 403


def test_there_is_no_such_path_unless_it_is_wanted() -> None:
    with serving(SERVER) as service:
        assert get(service).status == 404


def test_with_authorization_a_token_is_needed(tmp_path: Path) -> None:
    verifier = Path(__file__).with_name("verifier_for_http.py")
    with serving(SERVER, "--metrics", "--auth", f"{verifier}:verify") as service:
        assert get(service).status == 401
        answer = get(service, Authorization="Bearer good")
        assert answer.status == 200
        # A proxy may pass it on: the token decides.
        answer = get(service, Authorization="Bearer good", X_Forwarded_For="192.0.2.1")
        assert answer.status == 200
