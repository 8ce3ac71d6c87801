"""The client of the official Java SDK over HTTP against a real server of ours.

The SDK knows no revision after 2025-11-25.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from http_service import serving
from interop import node, programs

SERVER = Path(__file__).parents[1] / "http" / "server_for_http.py"


@pytest.mark.slow
def test_it_lists_calls_answers_and_gets_progress_and_errors() -> None:
    client = programs.java_client()

    with serving(SERVER) as service:
        ran = node.run([*client, service.url], os.environ)

    assert ran.code == 0, ran.stderr
    seen = json.loads(ran.stdout)
    assert {"add", "count", "large", "ask"} <= set(seen.pop("tools"))
    # The SDK's synchronous client runs the handler of each notification in a thread of its pool.
    seen["progress"].sort()
    assert seen == {
        "version": "2025-11-25",
        **programs.CLIENT_REPORT,
        "missing": -32002,
    }
