"""Translates requests from a server to its client into the forms of the five revisions.

A "client request" is an elicitation, a sampling or a roots request, which a server sends to its
client while it handles a call. A handler makes one with an Elicitation, a Sampling or a ListRoots.

- to_wire_request() checks the request, and returns its method and params in the form of MCP
  2026-07-28.
- translate_request() translates the method and params to the client's revision, and checks that the
  client has declared the capability for the request.
- read_forwarded() makes the same check for a client request that a proxy has received from the
  server behind it, and that the client gets without a translation.

Spec: 2026-07-28 client/elicitation, client/sampling, client/roots; 2025-11-25 and older: the same
pages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Raw
from msgspec.json import Decoder, decode, encode

from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import MissingCapability
from concertino.jsonrpc.messages import describe_decode_error
from concertino.protocol.call import ClientFacts
from concertino.protocol.revisions import MODERN, Revision
from concertino.types.client_requests import (
    CLIENT_REQUESTS,
    ClientRequest,
    Elicitation,
    InputRequest,
    ListRoots,
    Sampling,
)

__all__ = ["read_forwarded", "to_wire_request", "translate_request"]

# The requests whose params to_wire_request() can check.
_REQUEST_TYPES: Mapping[str, type[Elicitation | Sampling]] = {
    "elicitation/create": Elicitation,
    "sampling/createMessage": Sampling,
}

# An error quotes at most this many characters of the client's input.
QUOTED_CHARS = 200


def to_wire_request(request: ClientRequest) -> InputRequest:
    """Return a request to the client as an InputRequest: method and params in MCP 2026-07-28 form.

    A request that is an InputRequest already is checked and returned.
    Raises ValueError for an incomplete request, and for an unknown method.
    """
    if isinstance(request, ListRoots):
        return InputRequest("roots/list")
    if isinstance(request, Sampling):
        return InputRequest("sampling/createMessage", Raw(encode(request)))
    if isinstance(request, Elicitation):
        _check_elicitation(request)
        return InputRequest("elicitation/create", Raw(encode(request)))

    # The errors name Context.ask(), by which handlers pass their requests.
    if request.method not in CLIENT_REQUESTS:
        expected = ", ".join(CLIENT_REQUESTS)
        quoted = request.method[:QUOTED_CHARS]
        raise ValueError(f"ask: expected one of {expected}, got {quoted!r}")
    if request_type := _REQUEST_TYPES.get(request.method):
        try:
            to_wire_request(decode(request.params, type=request_type))
        except DECODE_ERRORS as exc:
            reason = describe_decode_error(exc, QUOTED_CHARS)
            raise ValueError(f"ask: {request.method}: {reason}") from None
    return request


def _check_elicitation(request: Elicitation) -> None:
    """Raise ValueError if an elicitation has no URL (mode url) or no schema (mode form)."""
    if request.mode == "url":
        if request.url is None:
            raise ValueError("ask: an Elicitation of mode url needs url")
        return
    if request.requested_schema is None:
        raise ValueError("ask: an Elicitation of mode form needs requested_schema")
    if not isinstance(request.requested_schema.get("properties"), Mapping):
        raise ValueError(
            "ask: an Elicitation of mode form needs a requested_schema with properties"
        )


def translate_request(
    request: InputRequest,
    revision: Revision,
    client: ClientFacts,
    make_id: Callable[[], str],
) -> InputRequest:
    """Translate a request to the client, such as an elicitation, to the client's revision.

    request: the request in the form of MCP 2026-07-28, from to_wire_request().
    revision: the revision by which the call is served.
    client: the client, with the capabilities that it has declared.
    make_id: returns the elicitationId that an elicitation with a URL gets if it has none, because
        2025-11-25 requires one.
    Raises MissingCapability if the client has not declared the capability for this request, or if
    the revision has no such request.
    """
    feature = CLIENT_REQUESTS[request.method]
    declared = _check_declared(feature, revision, client)
    if feature == "roots":
        return InputRequest(request.method)

    params: dict[str, Any] = decode(request.params)
    params.pop("_meta", None)
    if feature == "sampling":
        _downgrade_sampling(params, revision, client, declared)
    else:
        _downgrade_elicitation(params, revision, client, declared, make_id)
    return InputRequest(request.method, Raw(encode(params)))


def _check_declared(feature: str, revision: Revision, client: ClientFacts) -> Mapping[str, Any]:
    """Return the settings that a client has declared for a capability.

    feature: the name of the capability, such as "elicitation".
    Raises MissingCapability if the client has not declared it, or its revision does not have it.
    """
    declared: Mapping[str, Any] | None = client.capabilities.get(feature)
    # Sampling and roots exist in all revisions.
    if not isinstance(declared, Mapping) or (feature == "elicitation" and not revision.elicitation):
        raise _missing_capability(client, {feature: {}})
    return declared


def read_forwarded(raw: Raw, client: ClientFacts) -> InputRequest:
    """Decode and check a client request of another server, which a proxy passes on unchanged.

    raw: the client request as JSON, in the form of MCP 2026-07-28.
    client: a client of the same revision, with the capabilities that it has declared.
    Raises MissingCapability if the client has not declared the capability for it, and ValueError if
    `raw` is not a client request.
    """
    request = _decode_input_request(raw)
    if (feature := CLIENT_REQUESTS.get(request.method)) is not None:
        _check_declared(feature, MODERN, client)
    return request


_decode_input_request = Decoder(InputRequest).decode


def _downgrade_sampling(
    params: dict[str, Any],
    revision: Revision,
    client: ClientFacts,
    declared: Mapping[str, Any],
) -> None:
    """Change the params of a sampling request to a form that the client's revision defines.

    declared: the client's capability `sampling`.
    """
    wants_tools = "tools" in params or "toolChoice" in params
    if wants_tools and not (revision.sampling_tools and "tools" in declared):
        raise _missing_capability(client, {"sampling": {"tools": {}}})
    wants_context = params.get("includeContext", "none") != "none"
    # Older revisions have includeContext as well, but no capability for it.
    if wants_context and revision.sampling_tools and "context" not in declared:
        raise _missing_capability(client, {"sampling": {"context": {}}})
    if revision.sampling_tools:
        return

    # In older revisions the content of a message is one block and not a list, and there are fewer
    # kinds of blocks.
    messages: list[dict[str, Any]] = params.get("messages", [])
    params["messages"] = parts = [
        {**message, "content": content}
        for message in messages
        for content in _as_list(message["content"])
    ]
    supported_kinds = {"text", "image"}
    if revision.audio:
        supported_kinds.add("audio")
    for part in parts:
        kind = part["content"]["type"]
        if kind not in supported_kinds:
            # All kinds but audio are uses and results of tools, which need the capability `tools`.
            required: dict[str, Any] = {} if kind == "audio" else {"tools": {}}
            text = f"content of type {kind} is not part of {revision.name}"
            raise MissingCapability(text, {"sampling": required})


def _as_list(content: Any) -> list[Any]:
    """Return the content of a message, which is a block or a list of blocks, as a list."""
    if isinstance(content, list):
        # The elements are decoded JSON.
        return content  # pyright: ignore[reportUnknownVariableType]
    return [content]


def _downgrade_elicitation(
    params: dict[str, Any],
    revision: Revision,
    client: ClientFacts,
    declared: Mapping[str, Any],
    make_id: Callable[[], str],
) -> None:
    """Change the params of an elicitation to a form that the client's revision defines.

    declared: the client's capability `elicitation`.
    """
    if params.get("mode", "form") == "url":
        if not revision.url_elicitation or "url" not in declared:
            raise _missing_capability(client, {"elicitation": {"url": {}}})
        # 2026-07-28 has no elicitationId; 2025-11-25 requires one.
        if revision.modern:
            params.pop("elicitationId", None)
        else:
            params.setdefault("elicitationId", make_id())
        return

    # `"elicitation": {}` means the same as `"elicitation": {"form": {}}`.
    if revision.url_elicitation and "form" not in declared and "url" in declared:
        raise _missing_capability(client, {"elicitation": {"form": {}}})
    if revision.url_elicitation:
        return

    params.pop("mode", None)
    schema = params["requestedSchema"]
    fields: dict[str, dict[str, Any]] = schema["properties"]
    for name, field in fields.items():
        if field.get("type") == "array":
            text = f"a field of several choices ({name}) is not part of {revision.name}"
            raise MissingCapability(text, {"elicitation": {"form": {}}})
    downgraded = {name: _downgrade_field(field) for name, field in fields.items()}
    params["requestedSchema"] = {**schema, "properties": downgraded}


def _downgrade_field(field: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a form field in the form of MCP 2025-06-18.

    In that revision only booleans have defaults, and the titles of choices are in `enumNames`.
    """
    field = {
        key: value
        for key, value in field.items()
        if key != "default" or field.get("type") == "boolean"
    }
    if (choices := field.pop("oneOf", None)) is not None:
        field["enum"] = [choice["const"] for choice in choices]
        field["enumNames"] = [choice["title"] for choice in choices]
    return field


def _missing_capability(client: ClientFacts, required: dict[str, Any]) -> MissingCapability:
    """Return the error for a client that lacks a capability.

    required: the capability as clients declare it, such as {"elicitation": {"url": {}}}.
    """
    # `required` has exactly one capability.
    [(feature, parts)] = required.items()
    path = ".".join((feature, *parts))
    text = f"the client {client.name[:QUOTED_CHARS]!r} has not declared {path}"
    return MissingCapability(text, required)
