"""The values that a session and a backend exchange.

A Session turns a client's request into a Call and passes it to a Backend (backend/interface.py).
ClientFacts tells the backend who calls; ServerFeatures tells the session what the backend offers. A
backend returns a result, or InputRequired to ask the client something first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec import Raw, Struct
from msgspec.json import Decoder, encode

from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import invalid_params
from concertino.types.results import CacheScope, Implementation

__all__ = [
    "Call",
    "ClientFacts",
    "InputRequired",
    "ServerFeatures",
    "read_text_arguments",
    "read_text_param",
]

T = TypeVar("T")
# The default of the fields of a Call. All calls share this dict, so nobody may change it.
NOTHING: Mapping[str, Raw] = {}

_decode_text = Decoder(str).decode
_decode_texts = Decoder(dict[str, str]).decode
_decode_object = Decoder(dict[str, Any]).decode


class Call(Struct, frozen=True, gc=False):
    """A request that the session passes to the backend, the code that answers it.

    Its form is that of MCP 2026-07-28, whatever revision the client speaks.

    method: for example `tools/call`. A backend never gets initialize, ping, server/discover,
        logging/* and the requests about subscriptions, because the session answers them.
    params: name -> undecoded JSON, for all params except `_meta`, `inputResponses` and
        `requestState`.
    meta: key -> undecoded JSON, for the keys of `_meta` that the protocol does not define, such as
        trace context. A backend that forwards the call to another server also forwards `meta`.
    answers: the client's answers to the questions in the backend's InputRequired, by key; empty
        unless the client repeats the call.
    state: the state in the backend's InputRequired; empty unless the client repeats the call.
    """

    method: str
    params: Mapping[str, Raw] = NOTHING
    meta: Mapping[str, Raw] = NOTHING
    answers: Mapping[str, Raw] = NOTHING
    state: bytes = b""

    @property
    def name(self) -> str | None:
        """Return the name of the tool or prompt that is called, or the URI that is read.

        This is the param `uri` of `resources/read`, and the param `name` of all other methods,
        which may be methods of extensions. Returns None if the client has not sent a string. Each
        access decodes the JSON again.
        """
        member = "uri" if self.method == "resources/read" else "name"
        try:
            return _decode_text(self.params[member])
        except (KeyError, *DECODE_ERRORS):
            return None

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a tool or prompt as the client has sent them, not validated.

        Returns {} if the client has not sent an object. Each access decodes the JSON again and
        returns a new dict, so changing the dict does not change the call. To change the arguments,
        make a new Call.
        """
        try:
            return _decode_object(self.params["arguments"])
        except (KeyError, *DECODE_ERRORS):
            return {}

    def decode_params(self, shape: type[T]) -> T:
        """Return the params as an object of the class `shape`, a Struct or dataclass.

        Slow: it encodes all params and decodes them again.
        Raises msgspec.ValidationError if they are not valid for the class.
        """
        return Decoder(shape).decode(encode(self.params))


def read_text_param(params: Mapping[str, Raw], name: str) -> str:
    """Return a string in the params of a call, such as `uri`.

    Raises RpcError -32602 if the param is missing or not a string.
    """
    try:
        return _decode_text(params[name])
    except KeyError:
        raise invalid_params(f"Missing required field: {name}") from None
    except DECODE_ERRORS:
        raise invalid_params(f"{name}: expected str") from None


def read_text_arguments(params: Mapping[str, Raw]) -> dict[str, str]:
    """Return the arguments in the params of `prompts/get`; {} if there are none.

    Raises RpcError -32602 if they are not an object of strings.
    """
    try:
        return _decode_texts(params["arguments"]) if "arguments" in params else {}
    except DECODE_ERRORS as exc:
        text = str(exc).replace("`", "").replace("Expected", "expected")
        raise invalid_params(f"arguments: {text}") from None


class InputRequired(Struct, frozen=True):
    """The return value of a backend that needs answers from the client to finish a call.

        return InputRequired({"confirm": Elicitation("Delete it?", requested_schema=schema)})

    The session asks the client the questions. Then the backend gets the call again, with the
    answers in Call.answers and with `state` in Call.state (MCP 2026-07-28 basic/patterns/mrtr). At
    least one of the two fields must not be empty.

    questions: requests to the client by key. Each is a ClientRequest (types/client_requests.py), or
        a request of another server as undecoded JSON. 2026-07-28 clients get such JSON unchanged;
        for older clients it is translated. Without questions, the client only repeats the call.
    state: any bytes that the backend needs to continue. The client stores these bytes until it
        repeats the call. It can read them, but not change them: they are sealed
        (seal.py).
    """

    # Any and not ClientRequest, whose module is loaded only when a backend asks something.
    questions: Mapping[str, Any] = {}
    state: bytes = b""


class ClientFacts(Struct, frozen=True):
    """What the session knows about the client.

    protocol_version: the name of the revision by which the call is served.

    The client describes itself by all other fields. Do not rely on them for security: nobody has
    verified them.

    name, version, title: from the client's `clientInfo`. Without one, name and version are "" and
        title is None.
    capabilities: the client's capabilities, such as {"elicitation": {}}.
    """

    name: str
    version: str
    protocol_version: str
    capabilities: Mapping[str, Any]
    title: str | None = None


class ServerFeatures(Struct, frozen=True):
    """What a backend offers to clients.

    If a client requests a feature that the backend does not offer, it gets the error -32601, unless
    other_methods is True.

    info: the server's name, version and so on, as in `serverInfo`.
    instructions: the text about the server that hosts show their model; None for no text.
    tools, prompts, resources, completions, logging: whether the backend has this capability.
    experimental, extensions: capabilities by name, sent to clients unchanged; `extensions` only to
        MCP 2026-07-28 clients.
    other_capabilities: capabilities that the specification does not define, by name.
    other_methods: whether the backend also gets all other requests: those for features that it has
        not declared, and those with methods that the specification does not define, such as the
        methods of extensions.
    subscriptions: whether the backend reports changed resources with Notifier.report_update().
    ttl_ms: how many milliseconds a client may cache the result of `server/discover`.
    cache_scope: who may cache the result: "public" for everybody, or "private" for one user only
        (2026-07-28 server/utilities/caching).
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
    other_capabilities: Mapping[str, Any] = {}
    other_methods: bool = False
