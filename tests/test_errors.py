"""errors.py: the codes that we send."""

from __future__ import annotations

import pytest

from concertino import errors

# JSON-RPC 2.0 section 5.1, and 2026-07-28 basic/index "Error Codes": HeaderMismatch is HTTP's
# alone.
JSON_RPC = {-32700, -32600, -32601, -32602, -32603}
MCP = {"HEADER_MISMATCH": -32020, "MISSING_CAPABILITY": -32021, "UNSUPPORTED_VERSION": -32022}
# The specification before 2026-07-28, server/resources: of a resource that is not there.
BEFORE = {"RESOURCE_NOT_FOUND": -32002, "URL_ELICITATION_REQUIRED": -32042}  # 2025-11-25


@pytest.mark.requirement("EC-1", "EC-2", "EC-5")
def test_every_code_of_ours_is_json_rpc_s_or_mcp_s_or_outside_the_reserved_range() -> None:
    codes = {
        name: value
        for name, value in vars(errors).items()
        if name.isupper() and isinstance(value, int)
    }
    assert set(codes.values()) >= JSON_RPC
    assert MCP.items() <= codes.items()
    others = codes.items() - MCP.items() - BEFORE.items()
    assert not [name for name, code in others if code not in JSON_RPC and -32768 <= code <= -32000]


def test_invalid_params_say_what_does_not_fit() -> None:
    error = errors.invalid_params("name: expected str")
    assert (error.code, error.message) == (-32602, "Invalid params")
    assert error.data == {"details": "name: expected str"}


def test_an_unknown_name_is_quoted_up_to_128_characters() -> None:
    error = errors.unknown_name("prompt", "a" * 129, "ref.name")
    assert (error.code, error.message) == (-32602, "Unknown prompt: " + "a" * 128 + "...")
    assert error.data == {"details": f"ref.name: there is no prompt '{'a' * 128}...'"}
