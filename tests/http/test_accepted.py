"""Accept and Content-Type by RFC 9110, sections 8.3 and 12.5.1."""

from __future__ import annotations

import pytest

from concertino.http.accepted import is_json, read_accept


@pytest.mark.parametrize(
    ("value", "json", "stream"),
    [
        (None, True, True),
        (b"application/json, text/event-stream", True, True),
        (b"text/event-stream", False, True),
        (b"application/json", True, False),
        (b"*/*", True, True),
        (b"application/*", True, False),
        (b"text/*;q=0.5, application/json;q=0", False, True),
        (b"*/*, text/event-stream;q=0.0", True, False),
        (b"TEXT/EVENT-STREAM ; Q=1", False, True),
        (b"text/html", False, False),
        (b"", False, False),
    ],
)
def test_accept(value: bytes | None, json: bool, stream: bool) -> None:
    assert read_accept(value) == (json, stream)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"application/json", True),
        (b"Application/JSON; charset=utf-8", True),
        (b"text/plain", False),
        (b"application/json-seq", False),
        (None, False),
    ],
)
def test_content_type(value: bytes | None, expected: bool) -> None:
    assert is_json(value) is expected
