"""NatsCredentials: the key by which a client proves to NATS servers who it is, from a file.

    credentials = read_credentials(Path("notes.creds"))

The file contains the seed of a user's key (nkey), as the command `nk -gen user` writes it. A
`.creds` file of the command `nsc` contains the seed and the user's JWT, which the account of the
user has signed. Servers with several accounts need the JWT.
Source: docs.nats.io, "NKey Authentication" and "JWTs"; github.com/nats-io/jwt.
"""

from __future__ import annotations

import os
import re
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from errno import ENOENT
from pathlib import Path
from typing import Any, cast

from msgspec import Struct
from msgspec.json import decode

from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import ConcertinoError
from concertino.installation import missing_extra
from concertino.user_files import read_private_file

__all__ = ["NatsCredentials", "credentials_from_environment", "read_credentials"]

# The environment variable with the path of the file.
SEED = "CONCERTINO_CLUSTER_SEED"
# A seed has 58 characters. A JWT has a few hundred characters, or more with many permissions.
MAX_FILE_BYTES = 64 * 1024
# A block of a `.creds` file: its name, and the text between its first and its last line.
BLOCK = re.compile(rb"-{3,}BEGIN ([^-]+)-{3,}\s*(\S*)\s*-{3,}END [^-]+-{3,}")
JWT_BLOCK = b"NATS USER JWT"
NEW_FILE = "create the file again, for example with `nsc generate creds`"


class NatsCredentials(Struct, frozen=True):
    """The key of a user. Keep it secret.

    seed: the private key, which begins with SU.
    jwt: the JWT of the user, which the user's account has signed; empty if the configuration of the
        servers has the user's public key.
    """

    seed: bytes
    jwt: str = ""

    def __repr__(self) -> str:
        return "NatsCredentials(...)"

    def sign_in(self, nonce: str) -> dict[str, str]:
        """Return the fields of the CONNECT message that prove who the user is.

        nonce: the text in the server's INFO, which the user's key signs.
        Raises ImportError if the extra `nats` is not installed, and ConcertinoError if the seed is
        not valid.
        """
        public, signature = self.sign(nonce)
        if self.jwt:
            return {"jwt": self.jwt, "sig": signature}
        return {"nkey": public, "sig": signature}

    def sign(self, nonce: str) -> tuple[str, str]:
        """Return the public key, and the signature of the nonce in base64.

        nonce: the text in the server's INFO.
        Raises ImportError if the extra `nats` is not installed, and ConcertinoError if the seed is
        not valid.
        """
        try:
            import nkeys  # pyright: ignore[reportMissingTypeStubs]
        except ImportError:
            raise ImportError(missing_extra("a key for NATS", "nats")) from None

        try:
            # A copy of the seed, because the library overwrites the bytes that it gets.
            pair = cast(Any, nkeys).from_seed(bytearray(self.seed))
            signature = urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=").decode()
            return pair.public_key.decode(), signature
        except Exception as exc:
            raise ConcertinoError(f"the seed of the NATS key is not valid: {exc}") from None


def credentials_from_environment() -> NatsCredentials | None:
    """Read the key from the file that the environment variable CONCERTINO_CLUSTER_SEED names.

    Returns None if the variable is not set. Raises the exceptions of read_credentials().
    """
    path = os.environ.get(SEED)
    return read_credentials(Path(path)) if path else None


def read_credentials(path: Path) -> NatsCredentials:
    """Read a file with the seed of a user's key, or a `.creds` file.

    Without a JWT, the seed is checked only by sign(). With a JWT, this function checks that the
    seed is that of the JWT's user, for which it needs the extra `nats`.

    Raises:
        OSError: the file does not exist, cannot be read, or is too long.
        ValueError: the file's mode or owner lets other users read the file, or does not let this
            user read it; the seed or the JWT is missing or damaged; the JWT has expired, or is not
            that of the seed's user.
        ConcertinoError: the file has a JWT, and a seed with a wrong checksum.
        ImportError: the file has a JWT, and the extra `nats` is not installed.
    """
    expected = "a file that only its owner can read: chmod 600"
    try:
        data = read_private_file(path, MAX_FILE_BYTES, forbidden_bits=0o077, expected=expected)
    # The mode of the file or of its directory must be changed, whether too many users or too few
    # may read the file.
    except PermissionError as exc:
        raise ValueError(f"{path}: {exc.strerror}") from None
    if data is None:
        raise FileNotFoundError(ENOENT, "there is no such file", str(path))

    seed = next((word for word in data.split() if word.startswith(b"SU") and len(word) == 58), b"")
    has_jwt = JWT_BLOCK in data
    if not seed:
        rest = " beside its JWT" if has_jwt else ""
        raise ValueError(f"{path}: expected a line with the seed of a NATS user, SU...{rest}")
    if not has_jwt:
        return NatsCredentials(seed)
    jwt = next((text for name, text in BLOCK.findall(data) if name == JWT_BLOCK), b"")
    credentials = NatsCredentials(seed, jwt.decode("ascii", "replace"))
    if problem := _find_problem(credentials):
        raise ValueError(f"{path}: {problem}; {NEW_FILE}")
    return credentials


def _find_problem(credentials: NatsCredentials) -> str:
    """Return what is wrong with a JWT and its seed; "" if they are valid and of the same user."""
    try:
        _, claims, _ = credentials.jwt.split(".")
        # A JWT leaves out the padding of base64, with which the length is a multiple of 4.
        padding = "=" * (-len(claims) % 4)
        decoded: Any = decode(urlsafe_b64decode(claims + padding))
        user, expires = str(decoded["sub"]), float(decoded.get("exp") or 0)
    except (ValueError, KeyError, TypeError, AttributeError, *DECODE_ERRORS):
        return "its JWT is damaged: expected three parts with dots between, with a user in them"
    if not user.startswith("U"):
        return f"its JWT is not that of a user, U..., but of {user[:60]}"
    if expires and expires < time.time():
        date = time.strftime("%Y-%m-%d %H:%M", time.gmtime(expires))
        return f"its JWT has expired on {date} UTC"
    public, _ = credentials.sign("")
    if user != public:
        return f"its seed is that of {public}, and its JWT is that of {user}"
    return ""
