"""Options of `concertino serve` that put guards around what is served. Read at each start; guards are loaded when one is wanted."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concertino.backend.interface import Backend

__all__ = ["Guard", "add_options", "guard_of"]

Guard = Callable[["Backend"], "Backend"]
# Option -> argument of Guard
OPTIONS = {
    "rate_limit": "rate_limit",
    "max_in_flight": "max_in_flight",
    "timeout": "timeout_s",
    "max_result_bytes": "max_result_bytes",
    "allow": "allow",
    "deny": "deny",
    "redact": "redact",
}


def add_options(serve: ArgumentParser) -> None:
    """The options, in a group of their own."""
    guards = serve.add_argument_group("guards")
    guards.add_argument(
        "--rate-limit",
        metavar="[GLOB=]CALLS/SECONDS",
        action="append",
        default=[],
        help="calls of each tool within so many seconds; repeatable",
    )
    guards.add_argument("--max-in-flight", metavar="N", type=int, help="calls at once")
    guards.add_argument("--timeout", metavar="SECONDS", type=float, help="longest time for a call")
    guards.add_argument(
        "--max-result-bytes", metavar="N", type=int, help="of a result; more is cut, and linked"
    )
    for name, text in (
        ("allow", "show and serve only these tools"),
        ("deny", "hide and refuse these tools"),
    ):
        guards.add_argument(
            f"--{name}",
            metavar="GLOB",
            action="append",
            default=[],
            help=f"{text}, or prompt:GLOB, resource:GLOB; repeatable",
        )
    guards.add_argument(
        "--redact", action="store_true", help="take secrets out of what is answered"
    )
    guards.add_argument(
        "--metrics-file", metavar="PATH", help="keep a file with counts and times for Prometheus"
    )
    guards.add_argument(
        "--otel", action="store_true", help="report spans and metrics to OpenTelemetry"
    )


def guard_of(given: Namespace) -> Guard | None:
    """What puts the guards around a backend that were asked for; None if there are none.

    Raises ValueError for a value that does not fit, ConcertinoError naming an extra that is not installed.
    """
    wanted: dict[str, Any] = {
        argument: value
        for option, argument in OPTIONS.items()
        if (value := getattr(given, option)) is not None and value is not False and value != []
    }
    layers: list[Guard] = []
    if wanted:
        from functools import partial

        from concertino.guards.guard import Guard

        layers.append(partial(Guard, **wanted))
        Guard(_NOBODY, **wanted)  # a value that does not fit is said before anything is imported
    if given.metrics_file:
        from concertino.guards.metrics import metrics_of

        layers.append(metrics_of(given.metrics_file))
    if given.otel:
        from concertino.guards.telemetry import telemetry

        layers.append(telemetry(transport="tcp" if given.tcp else "unix" if given.unix else "pipe"))

    def around(backend: Backend) -> Backend:
        for layer in layers:
            backend = layer(backend)
        return backend

    return around if layers else None


_NOBODY: Any = None  # a backend that is never asked
