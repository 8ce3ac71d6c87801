"""The system's keyring, which may be locked: then it waits for a person."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from concertino.authorization import logins
from concertino.authorization.keyrings import wait_for_keyring
from concertino.authorization.logins import ClientIdentity, Login, LoginStore
from concertino.errors import AuthorizationError

LIMIT_S = 30.0
LOGIN = Login(
    server="https://a.example/mcp",
    resource="https://a.example/mcp",
    issuer="https://i.example",
    token_endpoint="https://i.example/token",
    client=ClientIdentity(client_id="c", client_secret="client-secret-1"),
    access_token="access-token-1",
    refresh_token="refresh-token-1",
)


class LockedKeyring:
    """A keyring that waits until it is unlocked. is_asked: whether somebody waits."""

    is_available = True

    def __init__(self) -> None:
        self.is_asked = threading.Event()
        self.is_unlocked = threading.Event()
        self.secrets: dict[str, bytes] = {}

    def _wait(self) -> None:
        self.is_asked.set()
        assert self.is_unlocked.wait(LIMIT_S)

    def read(self, name: str) -> bytes | None:
        self._wait()
        return self.secrets.get(name)

    def write(self, name: str, secret: bytes) -> None:
        self._wait()
        self.secrets[name] = secret

    def remove(self, name: str) -> None:
        self._wait()
        self.secrets.pop(name, None)


async def unlock_when_asked(keyring: LockedKeyring) -> None:
    """Unlock the keyring from the event loop: a loop that is blocked cannot do it."""
    while not keyring.is_asked.is_set():
        await asyncio.sleep(0.001)
    keyring.is_unlocked.set()


def test_a_locked_keyring_does_not_block_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keyring = LockedKeyring()
    monkeypatch.setattr(logins, "find_keyring", lambda: keyring)
    store = LoginStore(tmp_path)

    async def use() -> None:
        await asyncio.gather(store.save("key", LOGIN), unlock_when_asked(keyring))
        assert b"access-token-1" not in (tmp_path / "key.json").read_bytes()
        assert b"client-secret-1" not in (tmp_path / "key.json").read_bytes()

        keyring.is_asked.clear()
        keyring.is_unlocked.clear()
        login, _ = await asyncio.gather(store.load("key"), unlock_when_asked(keyring))
        assert login == LOGIN == store.load_blocking("key")

        keyring.is_asked.clear()
        keyring.is_unlocked.clear()
        gone, _ = await asyncio.gather(store.remove("key"), unlock_when_asked(keyring))
        assert gone
        assert keyring.secrets == {}
        assert not await store.remove("key")

    asyncio.run(asyncio.wait_for(use(), LIMIT_S))


def test_a_keyring_that_stays_locked_is_given_up() -> None:
    keyring = LockedKeyring()

    async def use() -> None:
        with pytest.raises(AuthorizationError, match="unlock it, or set CONCERTINO_LOGINS=file"):
            await wait_for_keyring(lambda: keyring.read("key"), within_s=0.01)

    try:
        asyncio.run(asyncio.wait_for(use(), LIMIT_S))
    finally:
        keyring.is_unlocked.set()


def test_what_the_keyring_raises_reaches_the_caller() -> None:
    def refuse() -> bytes:
        raise AuthorizationError("the system's keyring: denied")

    with pytest.raises(AuthorizationError, match="denied"):
        asyncio.run(wait_for_keyring(refuse))
