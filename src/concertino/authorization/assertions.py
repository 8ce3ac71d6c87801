"""sign_assertion(): lets a client prove who it is with a private key in place of a secret.

The client authenticates at the token endpoint in this way if its method is `private_key_jwt`. This
module needs the extra `auth` (`concertino[auth]`).
Source: RFC 7523; OpenID Connect Core 1.0, section 9.
"""

from __future__ import annotations

import os
import time

from concertino.errors import AuthorizationError
from concertino.installation import missing_extra

try:
    from joserfc import jwt
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, OKPKey, RSAKey
except ModuleNotFoundError:
    raise ImportError(missing_extra("a client with a private key", "auth")) from None

__all__ = ["sign_assertion"]

# How long an assertion is valid, in seconds. The client uses it at once, but the clocks of client
# and server may differ.
LIFE_S = 300
# Signature algorithm -> the kind of key that it needs.
ALGORITHM_KEYS = {
    "ES256": ECKey, "ES384": ECKey, "ES512": ECKey, "RS256": RSAKey, "RS384": RSAKey,
    "RS512": RSAKey, "PS256": RSAKey, "PS384": RSAKey, "PS512": RSAKey, "EdDSA": OKPKey,
}  # fmt: skip


def sign_assertion(key: str, algorithm: str, client_id: str, issuer: str) -> str:
    """Return a signed JWT (RFC 7523), by which a client proves who it is in one request.

    The JWT is valid for 5 minutes.
    key: the client's private key, in PEM.
    algorithm: the signature algorithm, such as "ES256" or "RS256".
    client_id: the id under which the client is registered.
    issuer: the issuer identifier of the authorization server that gets the assertion.
    Raises AuthorizationError if the key cannot sign with this algorithm.
    """
    if algorithm not in ALGORITHM_KEYS:
        raise AuthorizationError(
            f"key_algorithm: expected one of {', '.join(ALGORITHM_KEYS)}, got {algorithm!r}"
        )
    now = int(time.time())
    claims = {
        "iss": client_id,
        "sub": client_id,
        "aud": issuer,
        "jti": os.urandom(16).hex(),
        "iat": now,
        "exp": now + LIFE_S,
    }
    try:
        private_key = ALGORITHM_KEYS[algorithm].import_key(key)
        return jwt.encode({"alg": algorithm}, claims, private_key, algorithms=[algorithm])
    except (JoseError, ValueError, TypeError) as exc:
        # The text of the cause could show parts of the key.
        raise AuthorizationError(
            f"private_key: no key in PEM for {algorithm} ({type(exc).__name__})"
        ) from None
