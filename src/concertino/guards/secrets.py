"""Removes secrets from error responses; logs/redact.py describes what a secret is."""

from __future__ import annotations

from concertino.errors import RpcError
from concertino.logs.redact import redactor

__all__ = ["redact_error"]


def redact_error(error: RpcError) -> RpcError:
    """Return an error without secrets in its message and data; `error` itself if it has none."""
    secrets = redactor()
    message, data = secrets.value(error.message), secrets.value(error.data)
    if message is error.message and data is error.data:
        return error
    return RpcError(error.code, message, data)
