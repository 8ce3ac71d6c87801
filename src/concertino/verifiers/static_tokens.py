"""StaticTokens: a TokenVerifier for the tokens in a file, without an authorization server.

    {"tokens": [{"name": "ci", "sha256": "9f86d0...", "scopes": ["orders:read"]}]}

`concertino token` writes the file. It contains only the SHA-256 of each token, so a stolen file
gives no access. As each token is 32 random bytes, it cannot be guessed, and a slow hash as for
passwords is not necessary.
"""

from __future__ import annotations

import hmac
import os
import secrets
import time
from collections.abc import Collection
from hashlib import sha256
from pathlib import Path

from msgspec import Struct
from msgspec.json import Decoder, encode, format

from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import check_scopes
from concertino.http.authorization import InvalidToken
from concertino.protocol.principal import Principal
from concertino.user_files import read_regular_file, write_private_file

__all__ = ["ISSUER", "StaticToken", "StaticTokens", "TokenFile", "make_token"]

# The issuer of the principals of static tokens, in place of a URL.
ISSUER = "static:"
# The beginning of each token, by which programs that look for leaked secrets can recognize it.
PREFIX = "ctk_"
MAX_FILE_BYTES = 1024 * 1024


class StaticToken(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The entry of one token in the file that StaticTokens reads.

    name: the name of the token's owner, which becomes Principal.subject.
    sha256: the SHA-256 of the token, in hexadecimal.
    scopes: the scopes of the token; None for all scopes.
    expires: when the token expires, in seconds since 1970; None if it never expires.
    Raises ValueError for a malformed field.
    """

    name: str
    sha256: str
    scopes: frozenset[str] | None = None
    expires: float | None = None

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > 128:
            raise ValueError("name: expected 1 to 128 characters")
        is_hex = all(char in "0123456789abcdef" for char in self.sha256)
        if len(self.sha256) != 64 or not is_hex:
            raise ValueError("sha256: expected 64 hexadecimal digits in lower case")
        check_scopes(self.scopes or ())


class _Content(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file."""

    tokens: tuple[StaticToken, ...]


_decode = Decoder(_Content).decode


class TokenFile:
    """Reads and writes the file of tokens.

    path: the path of the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def read(self) -> tuple[StaticToken, ...]:
        """Return the entries in the file.

        Raises ValueError if the file cannot be read, is too large or is malformed.
        """
        try:
            return _decode(read_regular_file(self.path, MAX_FILE_BYTES)).tokens
        except OSError as exc:
            raise ValueError(f"{self.path}: {exc.strerror}") from None
        except DECODE_ERRORS as exc:
            raise ValueError(f"{self.path}: {exc}") from None

    def write(self, tokens: Collection[StaticToken]) -> None:
        """Replace the file in one atomic step. Only this user can read the new file (mode 0600).

        tokens: all entries of the new file.
        Raises OSError if the file cannot be written.
        """
        data = format(encode(_Content(tuple(tokens))), indent=2) + b"\n"
        write_private_file(self.path, data)

    def state(self) -> tuple[int, int, int]:
        """Return the inode, size and modification time of the file, to detect that it has changed.

        Raises ValueError if the file does not exist or cannot be reached.
        """
        try:
            status = self.path.stat()
        except OSError as exc:
            raise ValueError(f"{self.path}: {exc.strerror}") from None
        return status.st_ino, status.st_size, status.st_mtime_ns


class StaticTokens:
    """Verifies the access tokens of HTTP requests: accepts the tokens in a file.

        options = HttpOptions(authorization=Authorization((StaticTokens("tokens.json"),)))

    Implements TokenVerifier (http/authorization.py). The file is read again when it has changed.
    path: the path of the file, which `concertino token` writes.
    Raises ValueError if the file cannot be read or is malformed.
    """

    # No authorization server issues these tokens.
    issuers = ()

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = TokenFile(path)
        self._state = self._file.state()
        self._tokens = self._file.read()

    def verify(self, token: str) -> Principal:
        """Return the principal (user) to whom a token belongs.

        Raises InvalidToken for an unknown or expired token. Raises ValueError if the file has
        changed, and now cannot be read or is malformed. The HTTP server then answers all requests
        with status 503.
        """
        self._reload()
        digest = sha256(token.encode()).hexdigest()
        found: StaticToken | None = None
        # All entries are compared, each in constant time. Otherwise the duration would tell an
        # attacker how much of a guess is right.
        for item in self._tokens:
            if hmac.compare_digest(item.sha256, digest):
                found = item
        if found is None:
            raise InvalidToken("the token is not known")
        if found.expires is not None and found.expires <= time.time():
            raise InvalidToken("the token has expired")
        return Principal(found.name, issuer=ISSUER, scopes=found.scopes, expires=found.expires)

    def _reload(self) -> None:
        """Read the file again if it has changed.

        Raises ValueError if it cannot be read or is malformed.
        """
        state = self._file.state()
        if state != self._state:
            self._tokens = self._file.read()
            self._state = state


def make_token(
    name: str, scopes: Collection[str] | None = None, expires: float | None = None
) -> tuple[str, StaticToken]:
    """Return a new token, and its entry for the file.

    name: the name of the token's owner.
    scopes: the scopes of the token; None for all scopes.
    expires: when the token expires, in seconds since 1970; None if it never expires.
    Returns the token, which must be shown to its owner now, and the entry, from which the token
    cannot be computed. Nothing is written to a file.
    Raises ValueError if a scope or the name is malformed.
    """
    token = PREFIX + secrets.token_urlsafe(32)
    allowed = None if scopes is None else check_scopes(scopes)
    return token, StaticToken(name, sha256(token.encode()).hexdigest(), allowed, expires)
