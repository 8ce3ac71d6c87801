"""The client of the official Rust SDK, rmcp, over HTTP against a real server of ours."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from http_service import serving
from interop import node, programs

SERVER = Path(__file__).parents[1] / "http" / "server_for_http.py"
VERSIONS = {"modern": "2026-07-28", "legacy": "2025-11-25"}
# The specification has changed the code of a resource that is not there.
MISSING = {"modern": "-32602", "legacy": "-32002"}


@pytest.mark.slow
@pytest.mark.parametrize("era", VERSIONS)
def test_it_lists_calls_answers_and_gets_progress_and_errors(era: str) -> None:
    client = programs.rust_client()

    with serving(SERVER) as service:
        ran = node.run([client, service.url, era], os.environ)

    assert ran.code == 0, ran.stderr
    seen = json.loads(ran.stdout)
    assert {"add", "count", "large", "ask"} <= set(seen.pop("tools"))
    assert MISSING[era] in seen.pop("missing")
    assert seen == {
        "version": VERSIONS[era],
        **programs.CLIENT_REPORT,
    }
