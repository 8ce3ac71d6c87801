"""Authorization over HTTP: a real server process, tokens of a real issuer on loopback and of a
file. Rows of ../shared/spec/AUTHORIZATION.md in parentheses.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from http_service import (
    Answer,
    HttpService,
    call,
    modern,
    modern_headers,
    post,
    request,
    serving,
)
from verifiers.issuer import Issuer, serving_issuer

SERVER = Path(__file__).with_name("server_with_scopes.py")
PUBLIC = "https://mcp.example/mcp"
METADATA = "https://mcp.example/.well-known/oauth-protected-resource/mcp"
REVISIONS = ["2025-11-25", "2026-07-28"]
revision = pytest.mark.parametrize("revision", REVISIONS)


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with serving_issuer() as running:
        yield running


@pytest.fixture(scope="module")
def service(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpService]:
    tokens = tmp_path_factory.mktemp("tokens") / "t.json"
    entries = [
        {"name": name, "sha256": hashlib.sha256(name.encode()).hexdigest(), "scopes": ["read"]}
        for name in ("static-1", "static-2")
    ]
    tokens.write_text(json.dumps({"tokens": entries}))
    with serving(
        SERVER, "--public-url", PUBLIC, "--auth-issuer", issuer.url, "--auth-tokens", str(tokens),
        "--auth-scope", "read",
    ) as running:  # fmt: skip
        yield running


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


class Caller:
    """Sends requests of one revision with a token, in a session if the revision has them."""

    def __init__(self, service: HttpService, revision: str, token: str) -> None:
        self.connection = service.connect()
        self.revision = revision
        self.headers = bearer(token)
        if revision != "2026-07-28":
            opened = self.initialize()
            assert opened.status == 200, opened.body
            self.headers |= {
                "Mcp-Session-Id": opened.headers["Mcp-Session-Id"],
                "MCP-Protocol-Version": revision,
            }

    def initialize(self) -> Answer:
        params = {
            "protocolVersion": self.revision,
            "capabilities": {"elicitation": {}},
            "clientInfo": {"name": "t", "version": "1"},
        }
        message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
        return post(self.connection, message, self.headers)

    def ask(self, method: str, **params: Any) -> Answer:
        if self.revision == "2026-07-28":
            message = modern(method, **params)
            return post(self.connection, message, {**self.headers, **modern_headers(message)})
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return post(self.connection, message, self.headers)

    def call(self, name: str, **arguments: Any) -> Answer:
        return self.ask("tools/call", name=name, arguments=arguments)


def challenge(answer: Answer) -> dict[str, str]:
    """The parameters of the one challenge (RFC 6750)."""
    (line,) = answer.headers.get_all("WWW-Authenticate") or [""]
    scheme, _, rest = line.partition(" ")
    assert scheme == "Bearer"
    pairs = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', rest)
    assert ", ".join(f'{name}="{value}"' for name, value in pairs) == rest
    return dict(pairs)


def result_of(answer: Answer) -> Any:
    (message,) = answer.messages or [answer.json]
    return message["result"]


def whoami(caller: Caller) -> list[str]:
    content = result_of(caller.call("whoami"))["content"]
    return json.loads(content[0]["text"]) if len(content) == 1 else [b["text"] for b in content]


# 401 and 400


@pytest.mark.requirement("RS-2", "RS-10", "RS-20", "RS-21", "RS-26", side="authorization")
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE", "PUT"])
def test_every_method_needs_a_token(service: HttpService, method: str) -> None:
    body = modern("tools/list") if method == "POST" else None
    answer = Answer(request(service.connect(), method, body))

    assert answer.status == 401  # RS-20
    # RS-2, RS-21, RS-26: no error, because there was no token.
    assert challenge(answer) == {"scope": "read", "resource_metadata": METADATA}


@pytest.mark.requirement("RS-26", side="authorization")
@pytest.mark.parametrize("value", ["Basic YTpi", "DPoP abc", "Negotiate", ""])
def test_another_scheme_is_no_token(service: HttpService, value: str) -> None:
    answer = post(service.connect(), modern("tools/list"), {"Authorization": value})
    assert answer.status == 401
    assert "error" not in challenge(answer)


@pytest.mark.requirement("RS-20", side="authorization")
@pytest.mark.parametrize(
    "value", ["Bearer", "Bearer ", "Bearer a b", 'Bearer "a"', "Bearer ä", "Bearer " + "a" * 8193]
)
def test_a_malformed_token_is_a_bad_request(service: HttpService, value: str) -> None:
    headers = {"Authorization": value.encode("latin-1").decode("latin-1")}
    answer = post(service.connect(), modern("tools/list"), headers)

    assert answer.status == 400  # RS-20
    assert challenge(answer)["error"] == "invalid_request"


@pytest.mark.requirement("RS-20", side="authorization")
def test_two_tokens_are_a_bad_request(service: HttpService, issuer: Issuer) -> None:
    line = f"Authorization: Bearer {issuer.token()}\r\n"
    with socket.create_connection(service.address, 30) as client:
        client.sendall(f"GET /mcp HTTP/1.1\r\nHost: localhost\r\n{line}{line}\r\n".encode())
        assert client.recv(65536).startswith(b"HTTP/1.1 400 ")


@pytest.mark.requirement("RS-14", side="authorization")
def test_a_token_in_the_query_or_the_body_is_not_looked_at(
    service: HttpService, issuer: Issuer
) -> None:
    token = issuer.token()  # RS-14
    connection = service.connect()
    asked = request(connection, "POST", modern("tools/list"), path=f"/mcp?access_token={token}")
    assert Answer(asked).status == 401
    answer = post(service.connect(), {**modern("tools/list"), "access_token": token})
    assert answer.status == 401


INVALID: dict[str, dict[str, Any]] = {
    "another audience": {"aud": "https://other.example/mcp"},
    "expired": {"exp": 1000},
    "not valid yet": {"nbf": 4e9},
    "another issuer": {"iss": "https://issuer.example"},
}


@pytest.mark.requirement("RS-2", "RS-11", "RS-12", "RS-13", "RS-26", side="authorization")
@revision
@pytest.mark.parametrize("changes", INVALID.values(), ids=INVALID)
def test_an_invalid_token_is_refused(
    service: HttpService, issuer: Issuer, revision: str, changes: dict[str, Any]
) -> None:
    headers = bearer(issuer.token(**changes))
    if revision == "2026-07-28":
        message = modern("tools/list")
        headers |= modern_headers(message)
    else:
        message = call(1, "whoami")
    for _ in range(2):
        answer = post(service.connect(), message, headers)
        assert answer.status == 401  # RS-11, RS-13
        found = challenge(answer)
        assert (found["error"], found["resource_metadata"]) == ("invalid_token", METADATA)
        assert answer.json["error"]["message"] == found["error_description"]


@pytest.mark.requirement("RS-10", side="authorization")
def test_a_refused_client_has_sent_no_body(service: HttpService) -> None:
    with socket.create_connection(service.address, 30) as client:
        # The body of 1 MB never comes, and neither does 100 Continue.
        client.sendall(
            b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 1000000\r\nExpect: 100-continue\r\n\r\n"
        )
        assert client.recv(65536).startswith(b"HTTP/1.1 401 ")


def test_the_host_is_checked_before_the_token(service: HttpService, issuer: Issuer) -> None:
    headers = {"Host": "evil.example", **bearer(issuer.token())}
    assert post(service.connect(), modern("tools/list"), headers).status == 403


@pytest.mark.parametrize("host", ["mcp.example", "MCP.example:443", "localhost"])
def test_the_server_has_its_public_name(service: HttpService, host: str) -> None:
    answer = post(service.connect(), modern("tools/list"), {"Host": host})
    assert answer.status == 401


# Accepted tokens


@pytest.mark.requirement("AU-13", side="authorization")
@revision
def test_the_principal_is_what_the_token_says(
    service: HttpService, issuer: Issuer, revision: str
) -> None:
    caller = Caller(service, revision, issuer.token())
    assert whoami(caller) == ["alice", "editor", "read", "write"]
    assert whoami(Caller(service, revision, "static-1")) == ["static-1", "", "read"]


def test_one_connection_carries_the_requests_of_many_callers(
    service: HttpService, issuer: Issuer
) -> None:
    # As behind a reverse proxy, which keeps a few connections for all clients.
    connection = service.connect()
    callers = [Caller(service, "2026-07-28", issuer.token(sub=f"u{n}")) for n in range(5)]
    for caller in callers:
        caller.connection = connection
    for _ in range(3):
        for number, caller in enumerate(callers):
            assert whoami(caller)[0] == f"u{number}"


@pytest.mark.requirement("RS-10", side="authorization")
def test_a_new_token_of_the_same_caller_counts_at_once(
    service: HttpService, issuer: Issuer
) -> None:
    for revision in REVISIONS:
        caller = Caller(service, revision, issuer.token(scope="read"))
        assert whoami(caller) == ["alice", "editor", "read"]
        assert caller.call("change", text="x").status == 403
        caller.headers |= bearer(issuer.token(scope="read write"))
        assert whoami(caller) == ["alice", "editor", "read", "write"]
        assert caller.call("change", text="x").status == 200
        caller.headers |= bearer(issuer.token(scope="read"))
        assert caller.call("change", text="x").status == 403


# Scopes


@pytest.mark.requirement("RS-20", "RS-22", side="authorization")
@revision
def test_a_token_without_the_servers_scope_is_forbidden(
    service: HttpService, issuer: Issuer, revision: str
) -> None:
    message = modern("tools/list")
    headers = {**bearer(issuer.token(scope="write")), **modern_headers(message)}
    answer = post(service.connect(), message, headers)

    assert answer.status == 403  # RS-20, RS-22
    found = challenge(answer)
    assert (found["error"], found["scope"]) == ("insufficient_scope", "read")
    assert found["resource_metadata"] == METADATA


@pytest.mark.requirement("RS-22", "RS-23", "RS-25", "AU-12", side="authorization")
@pytest.mark.parametrize(
    ("method", "params", "needed"),
    [
        ("tools/call", {"name": "change", "arguments": {"text": "x"}}, "read write"),
        ("tools/call", {"name": "destroy", "arguments": {}}, "admin read write"),
        ("tools/call", {"name": "open_file", "arguments": {"path": "x"}}, "files:x read"),
        ("prompts/get", {"name": "draft"}, "read write"),
        ("resources/read", {"uri": "note://secret"}, "admin read"),
        ("resources/read", {"uri": "page://x"}, "admin read"),
    ],
)
@revision
def test_an_operation_names_all_scopes_that_it_needs(
    service: HttpService,
    issuer: Issuer,
    revision: str,
    method: str,
    params: Mapping[str, Any],
    needed: str,
) -> None:
    answer = Caller(service, revision, issuer.token(scope="read")).ask(method, **params)

    assert answer.status == 403  # RS-22, RS-23
    found = challenge(answer)
    assert (found["error"], found["scope"]) == ("insufficient_scope", needed)
    assert answer.json["error"]["code"] == -31003
    assert answer.json["id"] == 1
    allowed = Caller(service, revision, issuer.token(scope=needed)).ask(method, **params)
    assert "result" in (allowed.messages or [allowed.json])[0]


@pytest.mark.requirement("AU-12", side="authorization")
@revision
def test_lists_have_what_the_token_allows(
    service: HttpService, issuer: Issuer, revision: str
) -> None:
    def names(scope: str, method: str, member: str) -> set[str]:
        result = result_of(Caller(service, revision, issuer.token(scope=scope)).ask(method))
        if revision == "2026-07-28":
            assert result.get("cacheScope", "private") == "private"
        return {item.get("uri", item.get("uriTemplate", item["name"])) for item in result[member]}

    free = {"whoami", "open_file", "ask", "wait"}
    assert names("read", "tools/list", "tools") == free
    assert names("read write", "tools/list", "tools") == free | {"change"}
    assert names("read write admin", "tools/list", "tools") == free | {"change", "destroy"}
    assert names("read", "prompts/list", "prompts") == set()
    assert names("read", "resources/list", "resources") == {"note://public"}
    assert names("read admin", "resources/list", "resources") == {"note://public", "note://secret"}
    templates = "resources/templates/list", "resourceTemplates"
    assert names("read", *templates) == set()
    assert names("read admin", *templates) == {"page://{name}"}


# What belongs to a principal


@pytest.mark.requirement("RS-16", side="authorization")
@pytest.mark.parametrize(
    "other", [{"sub": "mallory"}, {"client_id": "other-client"}], ids=["subject", "client"]
)
def test_a_session_belongs_to_its_principal(
    service: HttpService, issuer: Issuer, other: dict[str, str]
) -> None:
    owner = Caller(service, "2025-11-25", issuer.token())
    thief = {**owner.headers, **bearer(issuer.token(**other))}
    stream = {**thief, "Accept": "text/event-stream"}

    answers = [
        post(service.connect(), call(1, "whoami"), thief),
        Answer(request(service.connect(), "GET", None, stream)),
        Answer(request(service.connect(), "GET", None, {**stream, "Last-Event-ID": "0-0"})),
        Answer(request(service.connect(), "DELETE", None, thief)),
    ]
    assert [answer.status for answer in answers] == [404] * 4
    assert whoami(owner)[0] == "alice"
    # A static token of another name neither.
    assert post(service.connect(), call(1, "whoami"), {**thief, **bearer("static-1")}).status == 404


@pytest.mark.requirement("RS-16", side="authorization")
def test_a_sealed_state_belongs_to_its_principal(service: HttpService, issuer: Issuer) -> None:
    meta = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}

    def repeat(token: str, **params: Any) -> Answer:
        message = modern("tools/call", name="ask", arguments={}, _meta=meta, **params)
        return post(service.connect(), message, {**bearer(token), **modern_headers(message)})

    asked = repeat(issuer.token()).json["result"]
    answers = {"name": {"action": "accept", "content": {"name": "Ann"}}}
    state = {"requestState": asked["requestState"], "inputResponses": answers}
    stolen = repeat(issuer.token(sub="mallory"), **state)
    other_client = repeat(issuer.token(client_id="other"), **state)
    # Another connection and another token of the same user and client.
    own = repeat(issuer.token(scope="read"), **state)

    assert [stolen.json["error"]["code"], other_client.json["error"]["code"]] == [-32602, -32602]
    assert own.json["result"]["content"][0]["text"] == "hello Ann"


def test_what_a_client_says_about_itself_does_not_count(
    service: HttpService, issuer: Issuer
) -> None:
    message = modern("tools/call", name="whoami", arguments={})
    message["params"]["_meta"]["io.modelcontextprotocol/clientInfo"] = {
        "name": "root", "version": "1",
    }  # fmt: skip
    answer = post(service.connect(), message, {**bearer(issuer.token()), **modern_headers(message)})
    assert "root" not in answer.body.decode()


# Metadata


@pytest.mark.requirement("RS-1", "RS-3", "RS-4", "RS-5", "RS-7", side="authorization")
@pytest.mark.parametrize(
    "path",
    ["/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-protected-resource"],
)
def test_metadata_are_served_to_everybody(service: HttpService, issuer: Issuer, path: str) -> None:
    connection = service.connect()
    # RS-1, RS-4, RS-5: from the configuration, whatever the client calls the server.
    answer = Answer(request(connection, "GET", None, {"Host": "localhost:1"}, path))

    assert answer.status == 200
    assert answer.json == {
        "resource": PUBLIC,
        "authorization_servers": [issuer.url],
        "bearer_methods_supported": ["header"],
        "scopes_supported": ["read"],
    }
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
    head = request(connection, "HEAD", None, {}, path)
    assert (head.status, head.read()) == (200, b"")
    assert int(head.headers["Content-Length"]) == len(answer.body)
    assert Answer(request(connection, "POST", None, {}, path)).status == 405
    # The preflight request of a page whose client names its revision.
    asked = {
        "Origin": "http://localhost:3000",
        "Access-Control-Request-Method": "GET",
        "Access-Control-Request-Headers": "mcp-protocol-version",
    }
    preflight = Answer(request(connection, "OPTIONS", None, asked, path))
    assert preflight.status == 204
    assert preflight.headers.get_all("Access-Control-Allow-Origin") == ["*"]
    assert preflight.headers["Access-Control-Allow-Methods"] == "GET"
    assert preflight.headers["Access-Control-Allow-Headers"] == "MCP-Protocol-Version"


def test_other_well_known_places_are_empty(service: HttpService) -> None:
    path = "/.well-known/oauth-authorization-server"
    assert Answer(request(service.connect(), "GET", None, {}, path)).status == 404


def test_health_needs_no_token_and_everything_else_does(service: HttpService) -> None:
    def status(path: str) -> int:
        return Answer(request(service.connect(), "GET", None, {}, path)).status

    assert (status("/healthz"), status("/metrics"), status("/other")) == (200, 401, 401)


@pytest.mark.requirement("AU-22", side="authorization")
def test_no_token_is_logged(issuer: Issuer) -> None:
    with serving(SERVER, "--public-url", PUBLIC, "--auth-issuer", issuer.url, "--trace") as service:
        token = issuer.token()
        Caller(service, "2026-07-28", token).call("whoami")
        bad = issuer.token(aud="https://other.example")
        post(service.connect(), modern("tools/list"), bearer(bad))
        errors = service.end()
    assert "another server" in errors
    for secret in (token, bad):
        assert secret not in errors
        assert secret.rpartition(".")[2] not in errors


def test_keys_that_cannot_be_fetched_are_no_fault_of_the_token(issuer: Issuer) -> None:
    with serving_issuer() as other:
        other.served["/jwks"] = 500, b""
        with serving(SERVER, "--public-url", PUBLIC, "--auth-issuer", other.url) as service:
            answer = post(service.connect(), modern("tools/list"), bearer(other.token()))
            assert (answer.status, answer.headers["Retry-After"]) == (503, "1")


def test_a_request_waits_for_the_keys_and_then_is_served(issuer: Issuer) -> None:
    with serving_issuer() as other:
        other.may_answer.clear()
        with serving(SERVER, "--public-url", PUBLIC, "--auth-issuer", other.url) as service:
            message = modern("tools/call", name="whoami", arguments={})
            connections: list[HTTPConnection] = []
            for _ in range(3):
                connection = service.connect()
                headers = {**modern_headers(message), **bearer(other.token()), "Accept":
                           "application/json", "Content-Type": "application/json"}  # fmt: skip
                connection.request("POST", "/mcp", json.dumps(message), headers)
                connections.append(connection)
            other.may_answer.set()
            assert [item.getresponse().status for item in connections] == [200] * 3
            assert other.requests.count("/jwks") == 1


@pytest.mark.requirement("AU-1", side="authorization")
def test_requests_without_a_body_wait_for_a_verifier_and_then_are_served() -> None:
    verifier = Path(__file__).with_name("verifier_for_http.py")
    with serving(SERVER, "--auth", f"{verifier}:verify") as service:
        # No session is named: with a valid token, GET and DELETE are not allowed.
        for method in ("GET", "DELETE", "HEAD"):
            connection = service.connect()
            answer = Answer(request(connection, method, headers=bearer("later")))
            assert answer.status == 405, method
