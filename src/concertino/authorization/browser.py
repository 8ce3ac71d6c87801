"""Opens the page of a login in the browser of a person: open_page()."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from concertino.authorization.code_flow import check_page

__all__ = ["open_page"]


def open_page(url: str) -> bool:
    """Open a web page in the user's browser. Returns whether a browser was started.

    No shell is involved: the URL is one argument of the program.
    Raises AuthorizationError for a URL that is not http or https.
    """
    check_page(url)
    program = _find_program()
    if program is None:
        return False
    try:
        # The browser's messages would mix with ours, and it outlives this process.
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
    if sys.platform == "darwin":
        return shutil.which("open")
    # Without a display, xdg-open would start a browser in the terminal.
    has_display = "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    return shutil.which("wslview") or (shutil.which("xdg-open") if has_display else None)
