"""A client's request, with everything that the session and the runtime know about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from concertino.jsonrpc.incoming_requests import IncomingRequest
from concertino.protocol.call import Call, ClientFacts
from concertino.protocol.call_hooks import CallHooks, CallTimer
from concertino.protocol.request_profile import RequestProfile
from concertino.protocol.revisions import MODERN
from concertino.protocol.wire_results import ResultEncoder
from concertino.types.results import Implementation

if TYPE_CHECKING:
    from concertino.protocol.dialogue import Dialogue

__all__ = ["SessionRequest"]

# Placeholders until the session has read the request.
NO_CALL = Call("")
NO_PROFILE = RequestProfile(
    ResultEncoder(MODERN, Implementation("", "")), frozenset(), ClientFacts("", "", "", {})
)


class SessionRequest(IncomingRequest, eq=False):
    """A client's request, with everything that the session knows about it.

    profile: how it is served; call: the canonical request for the backend. Both are set before the
    request is passed to `start`.
    dialogue: what the call asks its client; None until it asks, or is repeated with answers.
    hooks: what to do at the end of the call, set by whoever begins it.
    timer: the call's time limit, while it waits.
    """

    profile: RequestProfile = NO_PROFILE
    call: Call = NO_CALL
    dialogue: Dialogue | None = None
    hooks: CallHooks | None = None
    timer: CallTimer | None = None
