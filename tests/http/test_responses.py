"""http/responses.py: what needs no server to be seen."""

from __future__ import annotations

import subprocess
import sys
from email.utils import formatdate

import pytest

from concertino.http.responses import format_date

# Modules of the standard library that take 0.2 to 0.9 MB of memory each.
HEAVY = ("email.utils", "hashlib", "ipaddress", "pathlib", "random", "urllib.parse")
START = """
import sys

from concertino import Server
from concertino.http import HttpOptions, HttpServer
from concertino.http.frontend import HttpFrontend
from concertino.transports import listen_tcp

listen_tcp("127.0.0.1", 0).close()
print(sys.modules.keys() & set(sys.argv[1:]))
"""


@pytest.mark.parametrize("time", [0, 784111777, 951782399.9, 951782400, 4102444799])
def test_a_date_has_the_form_that_http_requires(time: float) -> None:
    assert format_date(time) == formatdate(time, usegmt=True)


def test_a_server_on_loopback_needs_little_of_the_standard_library() -> None:
    # -S and -I: the modules of this test's environment do not count.
    found = subprocess.run(
        [sys.executable, "-c", START, *HEAVY], capture_output=True, text=True, check=True
    )
    assert found.stdout == "set()\n", found.stderr
