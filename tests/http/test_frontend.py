"""The life of a process that serves over HTTP, where concertino serve does not show it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from http_service import WAIT_S

# The second listener has lost its socket, as one whose descriptor somebody else has closed.
BROKEN_LISTENER = """
from concertino import Server
from concertino.http.frontend import HttpFrontend
from concertino.http.options import HttpOptions
from concertino.runtime.process import run
from concertino.transports.listeners import listen_tcp
from concertino.transports.stdio import bounded_stderr

listeners = [listen_tcp("127.0.0.1", 0), listen_tcp("127.0.0.1", 0)]
listeners[1].socket.close()
run(Server("broken"), HttpFrontend(listeners, bounded_stderr(), HttpOptions()))
"""


def test_a_listener_that_cannot_be_used_ends_the_process(tmp_path: Path) -> None:
    program = tmp_path / "broken.py"
    program.write_text(BROKEN_LISTENER)

    ended = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=WAIT_S, check=False
    )

    assert ended.returncode == 1
    assert "The server failed: OSError: [Errno 9] Bad file descriptor" in ended.stderr
