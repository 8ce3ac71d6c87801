"""find_keyring(): the keyring of the operating system, in which LoginStore stores secrets.

The keyring is used if the Python package keyring is installed and supports this system. The
environment variable CONCERTINO_LOGINS overrides that: with `file`, secrets are always stored in
files, and with `keyring`, a missing keyring is an error.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from threading import Thread
from typing import Any, Protocol, TypeVar

from concertino.errors import AuthorizationError

__all__ = ["SecretStore", "find_keyring", "wait_for_keyring"]

VARIABLE = "CONCERTINO_LOGINS"
# The name of this program in the system's keyring.
SERVICE = "concertino"
# How long an access to the keyring may take, because the user may have to unlock it. Less than
# LOCK_WITHIN_S (logins.py), for which other processes wait for the lock of the login.
WITHIN_S = 30.0

Result = TypeVar("Result")


class SecretStore(Protocol):
    """A store of small secrets by name.

    Its methods may block, and raise AuthorizationError if they fail.
    is_available: whether this store can store secrets. If not, LoginStore stores them in files.
    """

    is_available: bool

    def read(self, name: str, /) -> bytes | None:
        """Return a secret; None if the store has none of this name."""
        ...

    def write(self, name: str, secret: bytes, /) -> None:
        """Store a secret, in place of an older one of this name."""
        ...

    def remove(self, name: str, /) -> None:
        """Remove a secret, if there is one of this name."""
        ...


class _NoKeyring:
    """The SecretStore if the system has no keyring, or if the keyring must not be used."""

    is_available = False

    def read(self, name: str) -> bytes | None:
        raise AuthorizationError(
            "this login is in the system's keyring, which is not available here: install the "
            "package keyring, or log in again"
        )

    def write(self, name: str, secret: bytes) -> None:
        raise AuthorizationError("the system's keyring is not available")

    def remove(self, name: str) -> None:
        pass


class _SystemKeyring:
    """The keyring of the operating system, through the package keyring."""

    is_available = True

    def __init__(self, keyring: Any) -> None:
        # Any, because type checkers do not know the package, which may be missing.
        self._keyring = keyring
        self._errors: type[Exception] = import_module("keyring.errors").KeyringError

    def read(self, name: str) -> bytes | None:
        try:
            secret: str | None = self._keyring.get_password(SERVICE, name)
        except self._errors as exc:
            raise AuthorizationError(f"the system's keyring: {exc}") from None
        return None if secret is None else secret.encode()

    def write(self, name: str, secret: bytes) -> None:
        try:
            self._keyring.set_password(SERVICE, name, secret.decode())
        except self._errors as exc:
            raise AuthorizationError(f"the system's keyring: {exc}") from None

    def remove(self, name: str) -> None:
        try:
            if self._keyring.get_password(SERVICE, name) is not None:
                self._keyring.delete_password(SERVICE, name)
        except self._errors as exc:
            raise AuthorizationError(f"the system's keyring: {exc}") from None


async def wait_for_keyring(access: Callable[[], Result], within_s: float = WITHIN_S) -> Result:
    """Run a function that accesses a SecretStore, without blocking the event loop.

    Returns the result of the function, which runs in a thread: a locked keyring blocks its caller
    until the user unlocks it.
    access: the function.
    within_s: the time limit, in seconds. The function continues after the time limit.
    Raises AuthorizationError after the time limit, and the exceptions of the function.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Result] = loop.create_future()

    def resolve(result: Result | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(result)  # pyright: ignore[reportArgumentType]
        else:
            answer.set_exception(error)

    def run() -> None:
        try:
            call = partial(resolve, access(), None)
        except Exception as exc:
            call = partial(resolve, None, exc)
        # The loop may be closed by now.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(call)

    # Nothing can end this thread. As a daemon, it does not delay the end of the process.
    Thread(target=run, name="concertino-keyring", daemon=True).start()
    try:
        async with asyncio.timeout(within_s):
            return await answer
    except TimeoutError:
        raise AuthorizationError(
            f"the system's keyring has not answered for {within_s:g} s: unlock it, or set "
            f"{VARIABLE}=file to keep logins in files"
        ) from None


def find_keyring() -> SecretStore:
    """Return a SecretStore for the system's keyring, as the variable CONCERTINO_LOGINS says.

    - Not set: the store has `is_available=False` if the system has no keyring.
    - `file`: it always has `is_available=False`, so that secrets are stored in files.
    - `keyring`: raises AuthorizationError if the system has no keyring.
    - Any other value: raises AuthorizationError.
    """
    return _find(os.environ.get(VARIABLE, ""))


@cache
def _find(choice: str) -> SecretStore:
    """Return the SecretStore for a value of CONCERTINO_LOGINS; "" if it is not set."""
    if choice not in ("", "file", "keyring"):
        raise AuthorizationError(f"{VARIABLE}: expected file or keyring, got {choice!r}")
    if choice != "file" and find_spec("keyring") is not None:
        keyring: Any = import_module("keyring").get_keyring()
        # The package's backends with a priority below 1 are no real keyrings: its placeholder for a
        # missing keyring (0), and those that write plain files.
        if keyring.priority >= 1:
            return _SystemKeyring(keyring)
    if choice == "keyring":
        raise AuthorizationError(
            f"{VARIABLE}=keyring: the package keyring is not installed, or found no keyring"
        )
    return _NoKeyring()
