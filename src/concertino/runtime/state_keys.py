"""The keys that several processes of one server share, derived from CONCERTINO_STATE_KEY.

A server signs the states that clients store for it, such as a `requestState` (protocol/seal.py).
The variable contains one secret, or two as `NEW,OLD` while a secret is being replaced. New states
are then signed with NEW, and states that were signed with either secret are accepted. Each purpose
has a different key, so that a text signed for one purpose is not accepted for another.
"""

from __future__ import annotations

import hmac
import os

__all__ = ["STATE_KEY", "derive_keys"]

# The environment variable with the secrets.
STATE_KEY = "CONCERTINO_STATE_KEY"
# The length of the shortest secret that is accepted.
MIN_KEY_CHARACTERS = 32


def derive_keys(purpose: str) -> list[bytes]:
    """Return the keys for a purpose, one for each secret in CONCERTINO_STATE_KEY.

    The variable holds one secret, or two as `NEW,OLD` while a secret is being replaced. The first
    key signs, and each of them verifies.
    purpose: a name that no other use of the keys has, such as "requestState".
    Returns [] if the variable is not set. Raises ValueError if a secret is too short.
    """
    text = os.environ.get(STATE_KEY)
    if text is None:
        return []
    secrets = [secret.strip() for secret in text.split(",")]
    for secret in secrets:
        if len(secret) < MIN_KEY_CHARACTERS:
            hint = " (a comma separates the new secret from the old one)" if "," in text else ""
            raise ValueError(
                f"{STATE_KEY}: expected at least {MIN_KEY_CHARACTERS} characters, "
                f"got {len(secret)}{hint}"
            )
    message = f"concertino {purpose}".encode()
    return [hmac.digest(secret.encode(), message, "sha256") for secret in secrets]
