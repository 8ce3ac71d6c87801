"""find_keyring(): the keyring of the operating system, in which LoginStore stores secrets.

It is used if the Python package keyring is installed and supports this system. The environment
variable CONCERTINO_LOGINS overrides that: with `file`, secrets are always stored in files, and with
`keyring`, a missing keyring is an error.
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
# The name of this program in the system's keyring.
SERVICE = "concertino"


class SecretStore(Protocol):
    """A store of small secrets by name. Its methods raise AuthorizationError if they fail.

    is_available: whether secrets can be stored here. If not, they are stored in files.
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
    """Takes the place of the system's keyring where there is none, or it is not to be used."""

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
    """Return the system's keyring. If there is none, the store's is_available is False.

    Raises AuthorizationError if CONCERTINO_LOGINS is `keyring` and there is none, or if the
    variable has an unknown value.
    """
    return _find(os.environ.get(VARIABLE, ""))


@cache
def _find(choice: str) -> SecretStore:
    """Do the work of find_keyring(). choice: the value of CONCERTINO_LOGINS."""
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
