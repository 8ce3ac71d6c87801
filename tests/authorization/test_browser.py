"""browser.py: which pages are opened, and how."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from concertino.authorization.browser import open_page
from concertino.errors import AuthorizationError


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipe to which the program that opens pages writes its arguments."""
    pipe = tmp_path / "opened"
    os.mkfifo(pipe)
    program = tmp_path / "xdg-open"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$#" "$@" >{pipe}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("DISPLAY", ":0")
    return pipe


# The browser outlives the process that has started it.
@pytest.mark.requirement("CA-I", side="authorization")
@pytest.mark.filterwarnings("ignore:subprocess:ResourceWarning")
@pytest.mark.parametrize(
    "url",
    [
        "https://as.example/authorize?a=1&b=$(touch%20x);reboot",
        "https://as.example/authorize?a=`id`|x",
        "http://127.0.0.1:8000/authorize",
    ],
)
def test_a_page_is_one_argument_and_no_shell_reads_it(opened: Path, url: str) -> None:
    assert open_page(url)
    assert opened.read_text() == f"1\n{url}\n"


@pytest.mark.requirement("CA-I", side="authorization")
@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)", "data:text/html,x", "file:///etc/passwd", "http://as.example/x",
        "--help", "calculator:", "https://", "",
    ],
)  # fmt: skip
def test_other_pages_are_not_opened(opened: Path, url: str) -> None:
    with pytest.raises(AuthorizationError):
        open_page(url)


def test_without_a_display_nothing_is_started(
    opened: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPLAY")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert not open_page("https://as.example/authorize")
