"""open_page(): opens the page of a login in the user's browser."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from concertino.authorization.code_flow import check_page

__all__ = ["open_page"]


def open_page(url: str) -> bool:
    """Open a web page in the user's browser, and return at once.

    Returns whether a browser was started. If not, the caller must show the URL to the user.
    Raises AuthorizationError unless it is an https URL, or an http URL of this machine.
    """
    check_page(url)
    program = _find_program()
    if program is None:
        return False
    try:
        # Not through a shell, because a server has named the URL. The browser outlives this
        # process, and its output does not belong into this terminal.
        subprocess.Popen(
            [program, url],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return False
    return True


def _find_program() -> str | None:
    """Return the path of the program that opens URLs on this system; None if there is none."""
    if sys.platform == "darwin":
        return shutil.which("open")
    # In the Windows Subsystem for Linux, wslview opens the browser of Windows.
    if (wslview := shutil.which("wslview")) is not None:
        return wslview
    # Without a display, xdg-open would start a text browser in this terminal.
    has_display = "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    return shutil.which("xdg-open") if has_display else None
