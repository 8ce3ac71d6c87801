"""Login: a client's access to one server, and LoginStore, which stores logins.

Each login is a file of this user alone (mode 0600), written completely or not at all. With the
package keyring and a working keyring of the system, the file has what `concertino whoami` shows,
and the secrets are in the keyring.

Several processes use one login. Authorization servers replace the refresh token at each use, and
many end the whole login when an old one is shown. So the lock of a login is held around reading,
refreshing and writing it; a process that dies releases it.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import DecodeError, Struct
from msgspec.json import decode, encode
from msgspec.structs import replace

from concertino.authorization.keyrings import find_keyring
from concertino.errors import AuthorizationError
from concertino.logs.redact import learn_current_secrets
from concertino.user_files import read_private_file, user_folder, write_private_file

__all__ = ["ClientIdentity", "Login", "LoginStore", "login_key", "logins_folder"]

MAX_BYTES = 256 * 1024
# Between two attempts to get a lock that another process has.
LEAST_POLL_S, MOST_POLL_S = 0.005, 0.05
# A process that holds a lock does one request of at most 5 s, and a few more while it logs in.
LOCK_WITHIN_S = 60.0


class ClientIdentity(Struct, frozen=True, kw_only=True):
    """The registration of a client at an authorization server.

    auth_method: how the client sends its secret to the token endpoint, as in RFC 7591.
    redirect_uri: the redirect URI of the registration; "" if any may be used.
    is_registered_by_us: whether this client has registered itself.
    expires_at: when the secret expires, in seconds since 1970; 0 for never.
    """

    client_id: str
    client_secret: str = ""
    auth_method: str = "none"
    redirect_uri: str = ""
    is_registered_by_us: bool = False
    expires_at: float = 0


class Login(Struct, frozen=True, kw_only=True):
    """The access to one server.

    server: the URL of the server.
    resource: the resource identifier, which names the server to its authorization server.
    issuer: the URL of the authorization server.
    client: our registration at the authorization server.
    scopes: the scopes that were requested, and others that were granted.
    expires_at: when the access token expires, in seconds since 1970; None if that is not known.
    obtained_at: when the access token was obtained.
    """

    server: str
    resource: str
    issuer: str
    token_endpoint: str
    revocation_endpoint: str = ""
    client: ClientIdentity
    scopes: tuple[str, ...] = ()
    access_token: str = ""
    refresh_token: str = ""
    expires_at: float | None = None
    obtained_at: float = 0

    def __repr__(self) -> str:
        return f"<Login at {self.server}>"

    def is_valid(self, margin_s: float = 0) -> bool:
        """Return whether there is an access token that has not expired.

        margin_s: the time for which the token is needed, in seconds.
        """
        if not self.access_token:
            return False
        return self.expires_at is None or time.time() + margin_s < self.expires_at

    def without_tokens(self) -> Login:
        """Return the login without its tokens; the registration of the client stays."""
        return replace(self, access_token="", refresh_token="", expires_at=None)

    def without_refresh(self) -> Login:
        """Return the login without its refresh token."""
        return replace(self, refresh_token="")


def login_key(server: str, client_id: str, grant: str) -> str:
    """Return the name of a login: each server, client and kind of access has its own."""
    return hashlib.sha256("\n".join((server, client_id, grant)).encode()).hexdigest()[:32]


def logins_folder() -> Path:
    """Return the folder of the logins: `$XDG_STATE_HOME/concertino/logins`."""
    return user_folder("XDG_STATE_HOME", ".local/state", os.environ) / "concertino" / "logins"


class _LoginFile(Struct, frozen=True):
    """The content of a file. keyring: whether the secrets are in the system's keyring."""

    login: Login
    keyring: bool = False


class LoginStore:
    """The logins of this user. folder: the folder of their files."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = logins_folder() if folder is None else folder

    def has(self, key: str) -> bool:
        """Return whether there is a login."""
        return self._path(key).exists()

    def names(self) -> list[str]:
        """Return the names of all logins."""
        return sorted(path.stem for path in self.folder.glob("*.json"))

    def read(self, key: str) -> Login | None:
        """Return a login; None if there is none. Raises AuthorizationError."""
        path = self._path(key)
        data = _read_own_file(path)
        if data is None:
            return None
        try:
            file = decode(data, type=_LoginFile)
            login = file.login
            if file.keyring:
                secrets = find_keyring().read(key)
                if secrets is None:
                    return None
                login = decode(secrets, type=Login)
        except (DecodeError, RecursionError):
            raise AuthorizationError(
                f"{path}: no login of this version; remove the file and log in again"
            ) from None
        learn_current_secrets(
            key, (login.access_token, login.refresh_token, login.client.client_secret)
        )
        return login

    def write(self, key: str, login: Login) -> None:
        """Keep a login. Raises AuthorizationError."""
        learn_current_secrets(
            key, (login.access_token, login.refresh_token, login.client.client_secret)
        )
        keyring = find_keyring()
        file = _LoginFile(login)
        if keyring.is_available:
            keyring.write(key, encode(login))
            client = replace(login.client, client_secret="")
            file = _LoginFile(replace(login.without_tokens(), client=client), True)
            file = replace(file, login=replace(file.login, expires_at=login.expires_at))
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_private_file(path, encode(file))
        except OSError as exc:
            raise AuthorizationError(f"{path}: {exc.strerror}") from None

    def remove(self, key: str) -> bool:
        """Forget a login. Returns whether there was one."""
        find_keyring().remove(key)
        try:
            self._path(key).unlink()
        except FileNotFoundError:
            return False
        return True

    @asynccontextmanager
    async def lock(self, key: str) -> AsyncGenerator[None]:
        """Hold the lock of a login inside `async with`, around reading, refreshing and writing it.

        Raises AuthorizationError if another process holds the lock for a minute.
        """
        path = self._path(key).with_suffix(".lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as exc:
            raise AuthorizationError(f"{path}: {exc.strerror}") from None
        try:
            await _lock(descriptor, path)
            yield
        finally:
            os.close(descriptor)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"


async def _lock(descriptor: int, path: Path) -> None:
    """Lock a file. A thread that waits for a lock could not be cancelled, so it is polled."""
    pause = LEAST_POLL_S
    until = time.monotonic() + LOCK_WITHIN_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise AuthorizationError(
                    f"{path}: another process has been renewing this login for a minute"
                ) from None
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, MOST_POLL_S)


def _read_own_file(path: Path) -> bytes | None:
    """Return the content of a file; None if there is none.

    Raises AuthorizationError if other users can read or write it.
    """
    try:
        return read_private_file(
            path, MAX_BYTES, 0o077, "a file that only you can read (mode 0600)"
        )
    except OSError as exc:
        raise AuthorizationError(f"{path}: {exc.strerror}") from None
    except ValueError as exc:
        raise AuthorizationError(f"{path}: {exc}") from None
