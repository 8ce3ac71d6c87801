"""Login, a client's tokens for one server, and LoginStore, which stores the logins of a user.

Each login is a file that only this user can read (mode 0600). It is replaced in one atomic step. If
the system has a keyring (keyrings.py), the secrets are stored there, and the file contains only
what `concertino whoami` shows.

Several processes may use one login. Authorization servers replace the refresh token at each use,
and many revoke all tokens when an old refresh token is used again. So a process holds the lock of
a login while it reads, refreshes and writes it. If the process dies, the system releases the lock.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import math
import os
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from msgspec import Struct
from msgspec.json import decode, encode
from msgspec.structs import replace

from concertino.authorization.keyrings import find_keyring, wait_for_keyring
from concertino.authorization.settings import PERSON_GRANTS
from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import AuthorizationError
from concertino.logs.redact import learn_current_secrets
from concertino.user_files import read_private_file, user_folder, write_private_file

__all__ = ["ClientIdentity", "Login", "LoginStore", "login_key", "logins_folder"]

# The largest file of a login, in bytes.
MAX_BYTES = 256 * 1024
# The shortest and the longest pause between two attempts to get a lock that another process holds,
# in seconds.
LEAST_POLL_S = 0.005
MOST_POLL_S = 0.05
# How long to wait for a lock, in seconds. The process that holds it sends a few requests of at most
# 5 s each.
LOCK_WITHIN_S = 60.0

T = TypeVar("T")


class ClientIdentity(Struct, frozen=True, kw_only=True):
    """A client as an authorization server knows it.

    client_id: the id of the client.
    client_secret: the secret of the client; "" if it has none.
    auth_method: how the client authenticates at the token endpoint: a value of
        `token_endpoint_auth_method` in RFC 7591, such as `client_secret_basic`.
    redirect_uri: the redirect URI of the registration; "" if any may be used.
    is_registered_by_us: True if this program has registered the client, False if the user has.
    expires_at: when the secret expires, in seconds since 1970; 0 if it does not expire.
    """

    client_id: str
    client_secret: str = ""
    auth_method: str = "none"
    redirect_uri: str = ""
    is_registered_by_us: bool = False
    expires_at: float = 0


class Login(Struct, frozen=True, kw_only=True):
    """A client's tokens for one server, with what is needed to refresh and revoke them.

    server: the URL of the MCP server, as the user has named it.
    resource: the resource identifier of the MCP server (RFC 8707): the server's URL, or a shorter
        URL in the server's metadata.
    issuer: the URL of the authorization server.
    token_endpoint: the URL at which the authorization server issues and refreshes tokens.
    revocation_endpoint: the URL at which it revokes tokens; "" if there is none.
    client: this client's registration at the authorization server.
    scopes: the scopes that were requested, and scopes that were granted in addition.
    access_token, refresh_token: the tokens; "" for a token that the client does not have.
    expires_at: when the access token expires, in seconds since 1970; None if that is not known.
    obtained_at: when the access token was obtained, in seconds since 1970.
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
        """Return whether there is an access token that will still be valid in `margin_s` seconds.

        A token whose expiry is not known counts as valid.
        """
        if not self.access_token:
            return False
        return self.expires_at is None or time.time() + margin_s < self.expires_at

    def without_tokens(self) -> Login:
        """Return a copy without the tokens, but with the registration of the client."""
        return replace(self, access_token="", refresh_token="", expires_at=None)

    def without_refresh(self) -> Login:
        """Return a copy without the refresh token, but with the access token."""
        return replace(self, refresh_token="")


def login_key(server: str, client_id: str, grant: str) -> str:
    """Return the name under which LoginStore stores the login of a client at a server.

    server: the URL of the MCP server.
    client_id: the id in the user's settings; "" if there is none.
    grant: how access is obtained, such as "authorization_code" (settings.py has all values).
    """
    return hashlib.sha256("\n".join((server, client_id, grant)).encode()).hexdigest()[:32]


def _is_of_person(key: str, login: Login) -> bool:
    """Return whether a login belongs to a person; False if a program has credentials of its own.

    key: the name of the login, from login_key().
    """
    # The key is a hash, so compare it with all keys of a person's logins. The settings may have had
    # no client id.
    ids = ("", login.client.client_id)
    return any(key == login_key(login.server, id, grant) for id in ids for grant in PERSON_GRANTS)


def logins_folder() -> Path:
    """Return the directory of the logins: `$XDG_STATE_HOME/concertino/logins`.

    The default of the variable is ~/.local/state. Raises RuntimeError for a user without a home
    directory.
    """
    return user_folder("XDG_STATE_HOME", ".local/state", os.environ) / "concertino" / "logins"


class _LoginFile(Struct, frozen=True):
    """The content of the file of a login.

    login: the login; without its tokens and the client's secret if they are in the keyring.
    keyring: whether the complete login is in the system's keyring.
    """

    login: Login
    keyring: bool = False


class LoginStore:
    """Reads and writes the logins of this user, which are in files or in the system's keyring.

        async with store.lock(key):
            login = await store.load(key)
            ...
            await store.save(key, changed_login)

    The parameter `key` of the methods is the name of a login, from login_key().
    folder: the directory of the files; None for logins_folder().
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = logins_folder() if folder is None else folder

    def has(self, key: str) -> bool:
        """Return whether a login of this name is stored. Does not read the keyring."""
        return self._path(key).exists()

    def names(self) -> list[str]:
        """Return the names of all logins."""
        return sorted(path.stem for path in self.folder.glob("*.json"))

    def newest_key(self, server: str) -> str:
        """Return the key of the login at a server that has the newest access token.

        Only logins that a person has made count, and not those with the grant client_credentials.
        If there is none, returns the key under which `concertino login` would store one. Files that
        cannot be read are ignored.
        server: the URL of the MCP server.
        """
        newest, obtained_at = login_key(server, client_id="", grant=PERSON_GRANTS[0]), -math.inf
        for key in self.names():
            try:
                file = self._read_file(key)
            except AuthorizationError:
                continue
            if file is None or file.login.server != server or not _is_of_person(key, file.login):
                continue
            if file.login.obtained_at > obtained_at:
                newest, obtained_at = key, file.login.obtained_at
        return newest

    def load_blocking(self, key: str) -> Login | None:
        """Return a login; None if there is none.

        Like load(), but blocks while the system's keyring is locked.
        Raises AuthorizationError if its file or the keyring cannot be read.
        """
        file = self._read_file(key)
        if file is None:
            return None
        complete = find_keyring().read(key) if file.keyring else None
        return self._make_login(key, file, complete)

    async def load(self, key: str) -> Login | None:
        """Return a login without blocking the event loop; None if there is none.

        If the system's keyring is locked, waits until the user has unlocked it.
        Raises AuthorizationError if the login's file or the keyring cannot be read, and if the
        keyring stays locked for 30 s.
        """
        file = self._read_file(key)
        if file is None:
            return None
        complete = None
        if file.keyring:
            complete = await wait_for_keyring(lambda: find_keyring().read(key))
        return self._make_login(key, file, complete)

    def _read_file(self, key: str) -> _LoginFile | None:
        """Return the content of the file of a login; None if there is no file."""
        data = _read_own_file(self._path(key))
        return None if data is None else self._decode(key, data, _LoginFile)

    def _make_login(self, key: str, file: _LoginFile, complete: bytes | None) -> Login | None:
        """Return the login whose file was read; None if it should be in the keyring and is not.

        complete: the login with its secrets, as JSON from the keyring; None if it is not there.
        """
        if file.keyring and complete is None:
            return None
        login = file.login if complete is None else self._decode(key, complete, Login)
        _learn_secrets(key, login)
        return login

    def _decode(self, key: str, data: bytes, kind: type[T]) -> T:
        """Decode stored data. Raises AuthorizationError if it is malformed."""
        try:
            return decode(data, type=kind)
        except DECODE_ERRORS:
            raise AuthorizationError(
                f"{self._path(key)}: no login of this version; remove the file and log in again"
            ) from None

    def save_blocking(self, key: str, login: Login) -> None:
        """Store a login. Raises AuthorizationError if it cannot be written.

        Like save(), but blocks while the system's keyring is locked.
        """
        _learn_secrets(key, login)
        keyring = find_keyring()
        if keyring.is_available:
            keyring.write(key, encode(login))
        self._write_file(key, login, keyring.is_available)

    async def save(self, key: str, login: Login) -> None:
        """Store a login without blocking the event loop.

        If the system's keyring is locked, waits until the user has unlocked it.
        Raises AuthorizationError if the login cannot be written, and if the keyring stays locked
        for 30 s.
        """
        _learn_secrets(key, login)
        keyring = find_keyring()
        if keyring.is_available:
            await wait_for_keyring(lambda: keyring.write(key, encode(login)))
        self._write_file(key, login, keyring.is_available)

    def _write_file(self, key: str, login: Login, has_keyring: bool) -> None:
        """Write the file of a login, without the secrets if these are in the keyring."""
        file = _LoginFile(login)
        if has_keyring:
            client = replace(login.client, client_secret="")
            # Keep expires_at, which without_tokens() removes: `concertino whoami` shows it.
            public = replace(login.without_tokens(), client=client, expires_at=login.expires_at)
            file = _LoginFile(public, keyring=True)
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_private_file(path, encode(file))
        except OSError as exc:
            raise AuthorizationError(f"{path}: {exc.strerror}") from None

    async def remove(self, key: str) -> bool:
        """Remove a login, and return whether there was one.

        Raises AuthorizationError if the system's keyring fails, or if the file cannot be removed.
        """
        # The secrets first: without them, the file alone counts as no login.
        keyring = find_keyring()
        if keyring.is_available:
            await wait_for_keyring(lambda: keyring.remove(key))
        path = self._path(key)
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        except OSError as exc:
            raise AuthorizationError(f"{path}: {exc.strerror}") from None
        return True

    @asynccontextmanager
    async def lock(self, key: str) -> AsyncGenerator[None]:
        """Hold the lock of a login inside `async with`, to read, refresh and write the login.

        If another process holds the lock, waits without blocking the event loop.
        Raises AuthorizationError if the other process holds the lock for longer than a minute,
        or if the file of the lock cannot be made.
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
    """Lock a file, as soon as no other process holds its lock.

    path: the path of the file, for the text of the error.
    """
    # Try again and again, because a thread that waits for the lock could not be cancelled.
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


def _learn_secrets(key: str, login: Login) -> None:
    """Let the logs redact the secrets of a login, in place of its earlier secrets."""
    learn_current_secrets(
        key, (login.access_token, login.refresh_token, login.client.client_secret)
    )


def _read_own_file(path: Path) -> bytes | None:
    """Return the content of a file; None if it does not exist.

    Raises AuthorizationError if it cannot be read, or if other users can read or write it.
    """
    try:
        return read_private_file(
            path, MAX_BYTES, 0o077, "a file that only you can read (mode 0600)"
        )
    except OSError as exc:
        raise AuthorizationError(f"{path}: {exc.strerror}") from None
