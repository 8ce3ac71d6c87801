"""An issuer of tokens for tests: its keys, its tokens, and its HTTP server on loopback.

Tokens are made with joserfc, or by hand where no library makes such tokens.
"""

from __future__ import annotations

import json
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

AUDIENCE = "https://mcp.example/mcp"
Key = RSAKey | ECKey | OKPKey | OctKey


class Issuer:
    """keys: by kid. url: of its server, "" while there is none.

    served: path -> status and body that its server answers with, in place of the usual.
    requests: the paths that were asked for.
    """

    def __init__(self, url: str = "https://issuer.example") -> None:
        self.url = url
        self.keys: dict[str, Key] = {"one": ECKey.generate_key("P-256", {"kid": "one"})}
        self.served: dict[str, tuple[int, bytes]] = {}
        self.requests: list[str] = []
        self.forms: list[dict[str, list[str]]] = []
        self.authorizations: list[str | None] = []
        # Set it to let the server answer, after hang() has cleared it.
        self.may_answer = threading.Event()
        self.may_answer.set()

    def claims(self, **changes: Any) -> dict[str, Any]:
        now = time.time()
        usual = {
            "iss": self.url,
            "sub": "alice",
            "aud": AUDIENCE,
            "client_id": "editor",
            "scope": "read write",
            "iat": now,
            "exp": now + 300,
        }
        merged = {**usual, **changes}
        return {name: value for name, value in merged.items() if value is not None}

    def token(
        self,
        header: Mapping[str, Any] = {},
        *,
        kid: str = "one",
        key: Key | None = None,
        **changes: Any,
    ) -> str:
        """A token; changes are of its claims, None removes one."""
        full = {"alg": "ES256", "kid": kid, "typ": "at+jwt", **header}
        return jwt.encode(
            {name: value for name, value in full.items() if value is not None},
            self.claims(**changes),
            key or self.keys[kid],
            algorithms=[full["alg"]],
        )

    def jwks(self) -> bytes:
        return json.dumps(
            {"keys": [key.as_dict(private=False) for key in self.keys.values()]}
        ).encode()

    def answer(self, path: str) -> tuple[int, bytes]:
        if path in self.served:
            return self.served[path]
        if path == "/.well-known/oauth-authorization-server":
            return 200, json.dumps({"issuer": self.url, "jwks_uri": f"{self.url}/jwks"}).encode()
        return (200, self.jwks()) if path == "/jwks" else (404, b"{}")


@contextmanager
def serving_issuer() -> Iterator[Issuer]:
    """An issuer whose metadata, keys and introspection are served at http://127.0.0.1."""
    issuer = Issuer()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            issuer.requests.append(self.path)
            issuer.authorizations.append(self.headers["Authorization"])
            length = int(self.headers.get("Content-Length", 0))
            body = self.rfile.read(length)
            if self.command == "POST":
                issuer.forms.append(parse_qs(body.decode()))
            issuer.may_answer.wait(30)
            status, content = issuer.answer(self.path)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            try:
                self.wfile.write(content)
            except OSError:
                # The client has read enough.
                pass

        do_GET = do_POST = _answer

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    issuer.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield issuer
    finally:
        issuer.may_answer.set()
        server.shutdown()
        server.server_close()
        thread.join()


def sign_by_hand(header: Mapping[str, Any], claims: Mapping[str, Any], signature: bytes) -> str:
    """A token with any header and signature."""
    parts = [json.dumps(item).encode() for item in (header, claims)]
    return ".".join(urlsafe_b64encode(part).rstrip(b"=").decode() for part in (*parts, signature))
