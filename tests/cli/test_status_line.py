"""The line that a command draws while it waits."""

import pytest

from concertino.cli.status_line import StatusLine


@pytest.mark.parametrize(
    ("term", "shown"),
    [
        ("xterm", "\r\x1b[Khalf\r\x1b[Ka note\n\r\x1b[Khalf\r\x1b[K"),
        ("dumb", "a note\n"),
    ],
)
def test_a_dumb_terminal_gets_lines_but_no_escape_codes(
    term: str, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", term)
    status = StatusLine(enabled=True)
    status.draw("half")
    status.print_above("a note")
    status.clear()
    assert capsys.readouterr().err == shown
