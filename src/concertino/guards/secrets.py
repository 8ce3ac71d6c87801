"""Removes secrets from error responses; logs/redact.py describes what a secret is."""

from __future__ import annotations

from concertino.errors import RpcError
from concertino.logs.redact import redactor

__all__ = ["without_secrets_error"]


def without_secrets_error(error: RpcError) -> RpcError:
    """Return an error without secrets. Returns the same object if there is nothing to remove."""
    known = redactor()
    message, data = known.value(error.message), known.value(error.data)
    if message is error.message and data is error.data:
        return error
    return RpcError(error.code, message, data)
