"""The keyring of the system, if the package keyring is installed and has one: find_keyring().

CONCERTINO_LOGINS=file keeps logins in files in any case, and =keyring fails without a keyring.
"""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

from concertino.errors import AuthorizationError

__all__ = ["SecretStore", "find_keyring"]

VARIABLE = "CONCERTINO_LOGINS"
SERVICE = "concertino"


class SecretStore(Protocol):
    """A store of small secrets by name.

    is_available: whether this store can be used.
    """

    is_available: bool

    def read(self, name: str, /) -> bytes | None:
        """Return a secret; None if there is none."""
        ...

    def write(self, name: str, secret: bytes, /) -> None:
        """Keep a secret."""
        ...

    def remove(self, name: str, /) -> None:
        """Forget a secret, if there is one."""
        ...


class _NoKeyring:
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
        # typing: the package is optional
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


def find_keyring() -> SecretStore:
    """Return the system's keyring, or one that is not available. Raises AuthorizationError."""
    return _find(os.environ.get(VARIABLE, ""))


@cache
def _find(choice: str) -> SecretStore:
    if choice not in ("", "file", "keyring"):
        raise AuthorizationError(f"{VARIABLE}: expected file or keyring, got {choice!r}")
    if choice != "file" and find_spec("keyring") is not None:
        keyring: Any = import_module("keyring").get_keyring()
        # Its stand-in for no keyring at all has the priority 0; plain files have less than 1.
        if keyring.priority >= 1:
            return _SystemKeyring(keyring)
    if choice == "keyring":
        raise AuthorizationError(
            f"{VARIABLE}=keyring: the package keyring is not installed, or found no keyring"
        )
    return _NoKeyring()
