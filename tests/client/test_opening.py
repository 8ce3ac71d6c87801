"""client/negotiation.py: which revision a server speaks, whatever it answers to the first question.

What servers do was read off real ones (mcp 1.x and 2.x, the TypeScript SDK) and off the
specification: 2026-07-28 basic/transports/stdio "Backward compatibility", basic/versioning.
"""

from __future__ import annotations

from typing import Any

import pytest
from client.scripted import (
    LEGACY,
    MODERN,
    SILENCE,
    VERSION,
    Refusal,
    Script,
    legacy,
    modern,
    on_a_loop,
    opened,
)

from concertino.client.client import Client, Timeouts
from concertino.errors import Disconnected, Incompatible, ProtocolError, TimedOut
from concertino.transports.memory import memory_pair

QUICK = Timeouts(connect_s=20, probe_s=0.05)


def refuses(code: int, data: Any = None) -> Any:
    def handler(script: Script, message: dict[str, Any]) -> Any:
        raise Refusal(code, "no", data)

    return handler


@pytest.mark.requirement("ER-3", "ER-4", "ER-9", "DP-1", side="client")
@on_a_loop
async def test_a_server_of_2026_is_asked_once_and_every_request_carries_what_it_demands() -> None:
    async with opened({"tools/list": {"resultType": "complete", "tools": []}}) as (client, script):
        assert client.protocol_version == MODERN
        assert client.server == "script"
        assert await client.list_tools() == []
        assert [message["method"] for message in script.came] == ["server/discover", "tools/list"]
        for message in script.came:
            meta = message["params"]["_meta"]
            assert meta["io.modelcontextprotocol/protocolVersion"] == MODERN
            assert meta["io.modelcontextprotocol/clientCapabilities"] == {}
            assert meta["io.modelcontextprotocol/clientInfo"]["name"] == "concertino"


@pytest.mark.requirement("LC-2", "LC-3", "ER-6", "ER-7", side="client")
@pytest.mark.parametrize("code", [-32601, -32602, -32600, -32603, -32000, 1])
@on_a_loop
async def test_any_other_error_leads_to_the_handshake(code: int) -> None:
    async with opened({"server/discover": refuses(code)}, "legacy") as (client, script):
        assert client.protocol_version == LEGACY
        [asked] = script.of("initialize")
        assert asked["params"]["protocolVersion"] == LEGACY
        assert asked["params"]["clientInfo"]["name"] == "concertino"
        assert "_meta" not in asked["params"]
        await script.until(lambda: script.of("notifications/initialized"))
        assert [message["method"] for message in script.came] == [
            "server/discover",
            "initialize",
            "notifications/initialized",
        ]


@pytest.mark.requirement("ER-6", "ER-16", side="client")
@on_a_loop
async def test_silence_leads_to_the_handshake_and_the_late_answer_is_dropped() -> None:
    """ER-16: the id is known, the era is chosen.

    No cancel is sent: an old server has not heard of the request.
    """
    async with opened({"server/discover": SILENCE, "ping": {}}, "legacy", timeouts=QUICK) as (
        client,
        script,
    ):
        script.answer(script.of("server/discover")[0], modern()["server/discover"])
        await client.ping()
        assert client.protocol_version == LEGACY
        assert client.stray == 0
        assert script.of("notifications/cancelled") == []


@pytest.mark.parametrize("answer", [{}, {"tools": []}, {"supportedVersions": "all"}])
@on_a_loop
async def test_a_result_that_is_none_of_discover_leads_to_the_handshake(answer: Any) -> None:
    """Servers that answer anything with something."""
    async with opened({"server/discover": answer}, "legacy") as (client, _):
        assert client.protocol_version == LEGACY


@pytest.mark.requirement("ER-5", side="client")
@pytest.mark.parametrize(
    ("code", "data"),
    [
        (-32022, {"supported": ["2027-01-01"], "requested": MODERN}),
        (-32021, {"requiredCapabilities": {"sampling": {}}}),
    ],
)
@on_a_loop
async def test_an_error_that_only_newer_servers_have_does_not_lead_to_the_handshake(
    code: int, data: Any
) -> None:
    """ER-5, MUST NOT."""
    ours, theirs = memory_pair()
    script = Script(theirs, legacy() | {"server/discover": refuses(code, data)})
    with pytest.raises(Incompatible, match=r"2027-01-01|requiredCapabilities"):
        await Client(ours).open()
    assert script.of("initialize") == []


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (-32601, "does not speak 2026-07-28: no"),
        (-32603, "refused server/discover: no"),
    ],
)
@on_a_loop
async def test_a_modern_server_that_cannot_start_is_not_called_an_older_one(
    code: int, problem: str
) -> None:
    ours, theirs = memory_pair()
    Script(theirs, {"server/discover": refuses(code)})
    with pytest.raises(Incompatible, match=problem):
        await Client(ours, era="modern").open()


@pytest.mark.requirement("ER-4", side="client")
@on_a_loop
async def test_a_server_that_only_speaks_other_versions_is_told_from_one_that_does_not_answer() -> (
    None
):
    ours, theirs = memory_pair()
    Script(theirs, {"server/discover": {"supportedVersions": ["2027-01-01"], "capabilities": {}}})
    with pytest.raises(Incompatible, match="speaks 2027-01-01"):
        await Client(ours).open()


@pytest.mark.requirement("LC-10", side="client")
@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
@on_a_loop
async def test_every_older_revision_is_spoken_as_the_server_chooses_it(version: str) -> None:
    async with opened(legacy(version) | {"ping": {}}, "legacy") as (client, script):
        assert client.protocol_version == version
        await client.ping()
        assert "_meta" not in script.of("ping")[0]["params"]


@pytest.mark.requirement("LC-5", "LC-12", side="client")
@pytest.mark.parametrize("version", ["2023-01-01", MODERN, ""])
@on_a_loop
async def test_a_version_that_nobody_knows_ends_the_connection(version: str) -> None:
    """LC-5."""
    ours, theirs = memory_pair()
    script = Script(theirs, legacy(version))
    with pytest.raises(Incompatible):
        await Client(ours).open()
    await script.until(lambda: script.over)


@on_a_loop
async def test_a_new_server_that_was_only_slow_is_not_lost() -> None:
    """It answers the handshake by naming what it speaks: python-sdk 2.3 does so after a request of
    2026-07-28.
    """
    asked: list[int] = []

    def discover(script: Script, message: dict[str, Any]) -> Any:
        asked.append(1)
        return modern()["server/discover"] if len(asked) > 1 else SILENCE

    handlers = {
        "server/discover": discover,
        "initialize": refuses(-32022, {"supported": [MODERN], "requested": LEGACY}),
    }
    async with opened(handlers, timeouts=QUICK) as (client, _):
        assert client.protocol_version == MODERN


@pytest.mark.requirement("ER-13", side="client")
@on_a_loop
async def test_an_era_that_is_given_is_not_asked_for() -> None:
    async with opened(legacy(), "legacy", era="legacy") as (client, script):
        assert client.protocol_version == LEGACY
        assert script.of("server/discover") == []
    with pytest.raises(Incompatible, match="server/discover"):
        async with opened({}, "legacy", era="modern"):
            pass


@pytest.mark.requirement("LC-11", "LC-12", side="client")
@on_a_loop
async def test_a_server_that_says_nothing_at_all_costs_no_more_than_the_time_to_connect() -> None:
    ours, theirs = memory_pair()
    script = Script(theirs, {"server/discover": SILENCE, "initialize": SILENCE})
    with pytest.raises(TimedOut, match="initialize: no answer within"):
        await Client(ours, timeouts=Timeouts(connect_s=0.2, probe_s=0.05)).open()
    await script.until(lambda: script.over)
    assert script.of("notifications/cancelled") == []  # LC-11: initialize is never cancelled


@on_a_loop
async def test_a_server_that_ignores_the_probe_has_half_the_time_for_its_handshake() -> None:
    """Not none, as it would if connecting may take no longer than the probe."""
    ours, theirs = memory_pair()
    Script(theirs, {**legacy(), "server/discover": SILENCE})
    async with Client(ours, timeouts=Timeouts(connect_s=4, probe_s=30)) as client:
        assert client.protocol_version == LEGACY


@on_a_loop
async def test_a_malformed_handshake_is_shown() -> None:
    ours, theirs = memory_pair()
    Script(theirs, {"initialize": {"version": "mine"}})
    with pytest.raises(
        ProtocolError, match=r'expected protocolVersion, got \{"version": ?"mine"\}'
    ):
        await Client(ours).open()


@pytest.mark.requirement("ER-8", side="client")
@on_a_loop
async def test_a_connection_that_cannot_be_opened_again_is_not() -> None:
    ours, theirs = memory_pair()

    def leave(script: Script, message: dict[str, Any]) -> Any:
        script.connection.other._eof_pending = True
        script.connection.other._schedule_delivery()
        return SILENCE

    Script(theirs, {"server/discover": leave})
    with pytest.raises(
        Disconnected, match="server/discover: the connection ended before the answer came"
    ):
        await Client(ours).open()


@pytest.mark.requirement("ER-3", side="client")
@on_a_loop
async def test_what_the_probe_says_is_the_version_in_the_request() -> None:
    async with opened() as (_, script):
        assert script.came[0]["params"]["_meta"][VERSION] == MODERN
