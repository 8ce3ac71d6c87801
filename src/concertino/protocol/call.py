"""What passes between a session and a backend: one call, who makes it, and what can be called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec import Raw, Struct
from msgspec.json import Decoder, encode

from concertino.types.results import CacheScope, Implementation

__all__ = ["Call", "ClientFacts", "InputRequired", "ServerFeatures"]

T = TypeVar("T")
NOTHING: Mapping[str, Raw] = {}


class Call(Struct, frozen=True, gc=False):
    """One canonical request for a backend.

    method: as in 2026-07-28, e.g. `tools/call`; what the session answers itself (initialize, ping, server/discover, logging/*,
    subscriptions) never arrives here. params: the members of `params`, undecoded, without `_meta`, `inputResponses` and
    `requestState`. meta: the members of `_meta` that the protocol does not define itself (trace context, a vendor's keys), to be
    passed on. answers, state: of a call that is made again after an InputRequired: the client's answers so far, by key, and the
    state that was to be kept.
    """

    method: str
    params: Mapping[str, Raw] = NOTHING
    meta: Mapping[str, Raw] = NOTHING
    answers: Mapping[str, Raw] = NOTHING
    state: bytes = b""

    def decode_params(self, shape: type[T]) -> T:
        """The params as `shape`, a Struct or dataclass. Raises msgspec.ValidationError. For calls that are not hot."""
        return Decoder(shape).decode(encode(self.params))


class InputRequired(Struct, frozen=True):
    """A result that is none yet: the call is made again, with the client's answers and this state (basic/patterns/mrtr).

    questions: by key, each a questions.Question. state: the client keeps it, sealed but readable, and cannot change it. At least
    one of the two.
    """

    questions: Mapping[str, Any] = {}  # Any: questions.py is loaded when somebody asks
    state: bytes = b""


class ClientFacts(Struct, frozen=True):
    """Who calls, as it said itself: never a ground for trust (2026-07-28 basic/index).

    protocol_version: the revision that this call is served in. capabilities: what the client can be asked for.
    """

    name: str
    version: str
    protocol_version: str
    capabilities: Mapping[str, Any]
    title: str | None = None


class ServerFeatures(Struct, frozen=True):
    """What a backend offers. A feature that is not offered is answered with -32601.

    experimental, extensions: settings by name, shown as they are (extensions since 2026-07-28). subscriptions: the backend says
    when the content of a resource changes (Notifier.report_update). ttl_ms, cache_scope: for how many milliseconds, and by whom, what
    `server/discover` shows may be kept (2026-07-28 server/utilities/caching).
    """

    info: Implementation
    instructions: str | None = None
    tools: bool = False
    prompts: bool = False
    resources: bool = False
    completions: bool = False
    logging: bool = False
    experimental: Mapping[str, Any] = {}
    extensions: Mapping[str, Any] = {}
    subscriptions: bool = False
    ttl_ms: int = 0
    cache_scope: CacheScope = "private"
