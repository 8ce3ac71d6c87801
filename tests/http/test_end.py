"""SIGTERM ends a server over HTTP, however many streams its clients have open."""

from __future__ import annotations

import signal
from http.client import HTTPResponse
from pathlib import Path

from http_service import WAIT_S, Session, modern, modern_headers, read_event, request, serving

SERVER = Path(__file__).parent / "server_for_http.py"
STREAMS = 50


def test_a_hundred_open_streams_end_with_the_server() -> None:
    # No call runs, so nothing may wait for the drain time, which is longer than the test waits.
    with serving(SERVER, CONCERTINO_DRAIN_S="60") as service:
        listening: list[HTTPResponse] = []
        for number in range(STREAMS):
            message = modern(
                "subscriptions/listen", id=number, notifications={"toolsListChanged": True}
            )
            stream = request(service.connect(), "POST", message, modern_headers(message))
            # The acknowledgement.
            read_event(stream)
            listening.append(stream)
        of_sessions = [Session(service).get() for _ in range(STREAMS)]

        service.process.send_signal(signal.SIGTERM)

        assert service.process.wait(WAIT_S) == 0
        assert all(b'"result"' in stream.read() for stream in listening)
        assert [stream.read() for stream in of_sessions] == [b""] * STREAMS
