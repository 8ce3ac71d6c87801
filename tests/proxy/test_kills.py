"""Some rounds of soak/proxy_kills.py: nothing is left of what was killed, and no answer is lost."""

from __future__ import annotations

import sys
from math import inf

import pytest
from soak import proxy_kills


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc of Linux")
def test_kills_of_hosts_proxies_servers_and_wrappers_leave_nothing_and_lose_nothing() -> None:
    # Each victim behind each wrapper. The time limit is for busy machines; the soak has 2 s.
    assert proxy_kills.run(20, 2, within_s=20, seed=18, for_s=inf) == (20, 0)
