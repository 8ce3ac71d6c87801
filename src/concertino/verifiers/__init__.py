"""TokenVerifiers, which check the access tokens of requests to an MCP server over HTTP.

    verifier = JwtVerifier("https://login.example.com", "https://mcp.example.com/mcp")
    options = HttpOptions(authorization=Authorization((verifier,)))

- StaticTokens accepts the tokens of a file.
- JwtVerifier accepts JSON Web Tokens that an authorization server (the *issuer*) has signed.
- Introspection asks the issuer about each token.
"""

from __future__ import annotations

from concertino.loading import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concertino.verifiers.introspection import Introspection as Introspection
    from concertino.verifiers.jwt_verifier import JwtVerifier as JwtVerifier
    from concertino.verifiers.static_tokens import StaticTokens as StaticTokens

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "concertino.verifiers.introspection": ("Introspection",),
        "concertino.verifiers.jwt_verifier": ("JwtVerifier",),
        "concertino.verifiers.static_tokens": ("StaticTokens",),
    },
)
