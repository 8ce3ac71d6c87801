"""Guards: Backends that wrap another Backend to limit, filter, redact or measure its calls.

    run(Guard(server, rate_limit="10/60", deny="drop_*"))

Guard applies several rules at once. RateLimit, InFlightLimit, TimeLimit, SizeLimit, Filter and
Redact apply one rule each. Metrics and Telemetry report calls. The public names below are imported
on first use.

Read guard.py first, which shows the steps of a call, and then operation_policy.py, which does them.
"""

from __future__ import annotations

from concertino.loading import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concertino.guards.guard import Guard as Guard
    from concertino.guards.metrics import Metrics as Metrics
    from concertino.guards.rates import Rate as Rate
    from concertino.guards.single_guards import (
        Filter as Filter,
        InFlightLimit as InFlightLimit,
        RateLimit as RateLimit,
        Redact as Redact,
        SizeLimit as SizeLimit,
        TimeLimit as TimeLimit,
    )
    from concertino.guards.telemetry import Telemetry as Telemetry

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "concertino.guards.guard": ("Guard",),
        "concertino.guards.metrics": ("Metrics",),
        "concertino.guards.rates": ("Rate",),
        "concertino.guards.single_guards": (
            "Filter",
            "InFlightLimit",
            "RateLimit",
            "Redact",
            "SizeLimit",
            "TimeLimit",
        ),
        "concertino.guards.telemetry": ("Telemetry",),
    },
)
