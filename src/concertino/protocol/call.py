"""The types that a session and a backend exchange: calls, facts about clients, and features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder, encode

from concertino.types.results import CacheScope, Implementation

__all__ = ["Call", "ClientFacts", "InputRequired", "ServerFeatures"]

T = TypeVar("T")
NOTHING: Mapping[str, Raw] = {}

_decode_text = Decoder(str).decode
_decode_object = Decoder(dict[str, Any]).decode


class Call(Struct, frozen=True, gc=False):
    """One canonical request for a backend, in the shape of revision 2026-07-28.

    method: for example `tools/call`. The session answers initialize, ping, server/discover,
    logging/* and subscriptions itself; those never reach a backend.
    params: the members of `params`, undecoded, without `_meta`, `inputResponses` and
    `requestState`.
    meta: the members of `_meta` that the protocol does not define, such as trace context; pass them
    on to other servers.
    answers, state: of a call that the client repeats after an InputRequired: its answers so far,
    by key, and the backend's state.
    """

    method: str
    params: Mapping[str, Raw] = NOTHING
    meta: Mapping[str, Raw] = NOTHING
    answers: Mapping[str, Raw] = NOTHING
    state: bytes = b""

    @property
    def name(self) -> str | None:
        """The tool or prompt that is called, or the URI of the resource that is read.

        Decoded at each use. None for other methods, and where the client sent no such string.
        """
        member = "uri" if self.method == "resources/read" else "name"
        try:
            return _decode_text(self.params[member])
        except (KeyError, DecodeError, UnicodeError):
            return None

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of a tool or prompt, as the client sent them: not yet validated.

        Decoded at each use, so keep the value to use it twice. Empty if the client sent no object.
        Changes of the returned dict do not affect the call; to change arguments, make a new Call.
        """
        try:
            return _decode_object(self.params["arguments"])
        except (KeyError, DecodeError, UnicodeError, RecursionError):
            return {}

    def decode_params(self, shape: type[T]) -> T:
        """Return the params as `shape`, a Struct or dataclass.

        Encodes and decodes once more, so do not use it on a hot path. Raises
        msgspec.ValidationError if they do not fit.
        """
        return Decoder(shape).decode(encode(self.params))


class InputRequired(Struct, frozen=True):
    """A backend's result that asks the client something before the call can be finished.

    The client repeats the call with its answers and this state (basic/patterns/mrtr).
    questions: by key, each a ClientRequest of types/client_requests.py.
    state: kept by the client, which can read but not change it.
    At least one of the two must be given.
    """

    # Any: types/client_requests.py is loaded only when a backend asks something.
    questions: Mapping[str, Any] = {}
    state: bytes = b""


class ClientFacts(Struct, frozen=True):
    """What the client says about itself. Never trust it (2026-07-28 basic/index).

    protocol_version: the revision that this call is served in.
    capabilities: the client requests that the client supports.
    """

    name: str
    version: str
    protocol_version: str
    capabilities: Mapping[str, Any]
    title: str | None = None


class ServerFeatures(Struct, frozen=True):
    """What a backend offers. Requests of any other feature are answered with -32601.

    experimental, extensions: settings by name, sent to clients as they are (extensions since
    2026-07-28).
    subscriptions: the backend reports changed resources with Notifier.report_update().
    ttl_ms, cache_scope: how many milliseconds, and by whom, the result of `server/discover` may be
    cached (2026-07-28 server/utilities/caching).
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
