"""The same server with guards around it, as `bench/guards.py` has them: `limits`, or
`all` of them.
"""

import sys

from concertino_server import server

from concertino import Guard, run

LIMITS = {"rate_limit": "1000000/1", "max_in_flight": 1000, "timeout_s": 30.0}
OTHERS = {"max_result_bytes": 100_000_000, "deny": "x*", "redact": True}

if __name__ == "__main__":
    run(Guard(server, **LIMITS, **(OTHERS if sys.argv[1:] == ["all"] else {})))
