"""UpstreamMaker: makes the upstreams of a proxy, its connections to the server.

A connection is opened in the era of its client: "legacy" (revisions with the handshake
`initialize`) or "modern" (2026-07-28). A server may be started before any client has connected.
Then its process starts at once, but the session with it is opened only when the first message of
the first client has shown the client's era.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from concertino.backend.interface import ClientFacts, Notifier, opens_with_handshake
from concertino.client.negotiation import Era, HandshakeChoice
from concertino.protocol.revisions import REVISION_BY_NAME
from concertino.proxy.upstream import OpeningOptions, Upstream, UpstreamSettings

__all__ = ["UpstreamMaker"]

# How long to wait for the first message of the first client, which shows the client's era, before
# the session with the started server is opened.
FIRST_MESSAGE_S = 2.0
# The client capabilities that are declared to a server before 2026-07-28 if it is started before
# any client is known: all, because the client may have any of them. What the client lacks is
# refused when the server asks for it (server_questions.py).
EVERYTHING: Mapping[str, Any] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}, "context": {}},
    "roots": {"listChanged": True},
}


class UpstreamMaker:
    """Makes the upstreams of one proxy, which are its connections to the server.

    The upstreams that it returns are not open yet.

    settings: the settings that all upstreams share.
    era: which revisions to speak with the server: "legacy" (up to 2025-11-25, with `initialize`) or
        "modern" (2026-07-28). With "auto", a server that speaks both is opened in the era of its
        first client.

    Attributes:
    outlet: the Notifier of the proxy, which gets changes that the server reports. Set it before the
        first upstream is made.
    """

    # Proxy.start() sets it.
    outlet: Notifier

    def __init__(self, settings: UpstreamSettings, era: Era) -> None:
        self.settings = settings
        self._era: Era = era
        # Whether the first client has opened its session with a handshake; None before that.
        self._has_handshake: bool | None = None

    def make_first(self) -> Upstream:
        """Return an upstream (connection to the server) to open before a client has made a call.

        If `era` is "auto", open() first starts the server, and then waits for the first client's
        first message, at most two seconds. If this message is `initialize`, open() begins with
        `initialize`, too.
        """
        return self._make(EVERYTHING, self._first_has_handshake)

    def make_for(self, client: ClientFacts) -> Upstream:
        """Return an upstream (connection to the server) for a client.

        If `era` is "auto", open() uses the handshake `initialize` if this client has used it.
        client: what the client has said about itself: its revision and capabilities.
        """

        async def prefers_handshake() -> bool:
            return not REVISION_BY_NAME[client.protocol_version].modern

        return self._make(client.capabilities, prefers_handshake)

    def make_again(self, before: Upstream | None) -> Upstream:
        """Return an upstream (connection to the server) that replaces another, with its options.

        before: the upstream to replace; None to return what make_first() returns.
        """
        if before is None:
            return self.make_first()
        return Upstream(self.settings, self.outlet, before.options)

    def _make(
        self, capabilities: Mapping[str, Any], prefers_handshake: HandshakeChoice
    ) -> Upstream:
        era = prefers_handshake if self._era == "auto" else self._era
        return Upstream(self.settings, self.outlet, OpeningOptions(capabilities, era))

    async def _first_has_handshake(self) -> bool:
        """Wait for the first client's first message, and return whether it is a handshake."""
        # A server that is restarted keeps its era, so the answer is remembered.
        if self._has_handshake is None:
            self._has_handshake = await opens_with_handshake(self.outlet, FIRST_MESSAGE_S)
        return self._has_handshake
