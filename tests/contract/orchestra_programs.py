"""Messages of the plugin protocol over a Unix socket, made from the registered descriptors."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.struct_pb2 import Struct

from concertino import Plugin

__all__ = ["PACKAGE", "ask", "descriptor", "message", "pack_struct"]

PACKAGE = "orchestra.plugin.v1"
assert Plugin("tools.none")  # loads the generated module, which registers its descriptors


def descriptor(name: str) -> Any:
    """Return the descriptor of a message by its name in the schema."""
    return descriptor_pool.Default().FindMessageTypeByName(f"{PACKAGE}.{name}")


def message(name: str, **fields: Any) -> Any:
    """Return a message of this name."""
    return message_factory.GetMessageClass(descriptor(name))(**fields)


def pack_struct(value: Mapping[str, Any]) -> bytes:
    """Return a JSON object as a serialized google.protobuf.Struct."""
    made = Struct()
    made.update(dict(value))
    return made.SerializeToString(deterministic=True)


def ask(path: str, *requests: Any) -> list[Any]:
    """Send requests to a Unix socket, one after the other, and return the responses."""
    responses: list[Any] = []
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(path)
        for request in requests:
            payload = request.SerializeToString()
            connection.sendall(len(payload).to_bytes(4, "big") + payload)
            length = int.from_bytes(exactly(connection, 4), "big")
            response = message("PluginResponse")
            response.ParseFromString(exactly(connection, length))
            assert response.request_id == request.request_id
            responses.append(response)
    return responses


def exactly(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = connection.recv(size - len(found))
        assert piece, "the connection has ended"
        found += piece
    return found
