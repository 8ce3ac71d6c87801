"""What a ServerConnection takes from its transport."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from concertino import Server
from concertino.backend import Host, Principal
from concertino.transports import memory_pair


class KnownClient:
    """A Connection whose transport says who its client is."""

    def __init__(self, inner: Any, facts: Mapping[str, object]) -> None:
        self._inner = inner
        self.facts = facts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def attach(facts: Mapping[str, object]) -> bytes:
    """Return the identity of a connection with these facts."""

    async def run() -> bytes:
        async with Host(Server("test")) as host:
            ours, _ = memory_pair()
            connection: Any = KnownClient(ours, facts)
            return host.attach(connection).principal

    return asyncio.run(run())


@pytest.mark.parametrize("principal", ["ada", 7, {"subject": "ada"}])
def test_a_principal_of_an_unknown_type_is_an_error_and_not_nobody(principal: object) -> None:
    with pytest.raises(TypeError, match="expected a Principal or None, got"):
        attach({"principal": principal})


def test_a_principal_is_the_one_of_the_transport_or_else_the_user_of_the_system() -> None:
    assert attach({}) == attach({"principal": None}) == b""
    assert attach({"principal": Principal("ada")}) == Principal("ada").identity
    assert attach({"uid": 7, "principal": None}) == attach({"uid": 7}) != b""
