"""Options of `concertino serve` and `bridge` that put guards around the backend.

The modules of guards are imported only if an option asks for one.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concertino.backend.interface import Backend

__all__ = ["WrapBackend", "add_guard_options", "make_guards"]

WrapBackend = Callable[["Backend"], "Backend"]

# Option -> keyword argument of Guard.
OPTIONS = {
    "rate_limit": "rate_limit",
    "max_in_flight": "max_in_flight",
    "timeout": "timeout_s",
    "max_result_bytes": "max_result_bytes",
    "allow": "allow",
    "deny": "deny",
    "redact": "redact",
}


def add_guard_options(parser: ArgumentParser) -> None:
    """Add the options for guards, in a group of their own."""
    guards = parser.add_argument_group("guards")
    guards.add_argument(
        "--rate-limit",
        metavar="[GLOB=]CALLS/SECONDS",
        action="append",
        default=[],
        help="most calls of each tool within so many seconds; repeatable",
    )
    guards.add_argument("--max-in-flight", metavar="N", type=int, help="most calls at a time")
    guards.add_argument("--timeout", metavar="SECONDS", type=float, help="longest time for a call")
    guards.add_argument(
        "--max-result-bytes",
        metavar="N",
        type=int,
        help="largest result; a larger one is cut, with a link to the whole",
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
        "--redact", action="store_true", help="remove secrets from results and errors"
    )
    guards.add_argument(
        "--metrics-file", metavar="PATH", help="write counts and times to a file for Prometheus"
    )
    guards.add_argument(
        "--otel", action="store_true", help="report spans and metrics to OpenTelemetry"
    )


def make_guards(args: Namespace) -> WrapBackend | None:
    """Return a function that puts the requested guards around a backend; None without any.

    Raises ValueError for a wrong value, ConcertinoError that names an extra that is not installed.
    """
    options: dict[str, Any] = {
        argument: value
        for option, argument in OPTIONS.items()
        if (value := getattr(args, option)) is not None and value is not False and value != []
    }
    layers: list[WrapBackend] = []
    if options:
        from functools import partial

        from concertino.guards.guard import Guard

        layers.append(partial(Guard, **options))
        # Report a wrong value now, before the target is imported.
        Guard(_UNUSED_BACKEND, **options)
    if args.metrics_file:
        from concertino.guards.metrics import metrics_of

        layers.append(metrics_of(args.metrics_file))
    if args.otel:
        from concertino.guards.telemetry import telemetry

        # `bridge` has no sockets, and so no options for them.
        options_given = vars(args)
        unix = "unix" if options_given.get("unix") else "pipe"
        layers.append(telemetry(transport="tcp" if options_given.get("tcp") else unix))

    def wrap(backend: Backend) -> Backend:
        for layer in layers:
            backend = layer(backend)
        return backend

    return wrap if layers else None


# For a Guard that only checks its options and is never called.
_UNUSED_BACKEND: Any = None
