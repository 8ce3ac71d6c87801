"""The options for guards, such as --rate-limit, of the commands that serve a backend.

A guard is a Backend around another one, which limits or filters the calls. The guards are imported
only if an option requires one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from concertino.cli.options import add_repeatable

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from concertino.backend.interface import Backend
    from concertino.guards.call_counts import CallCounts

# Wraps a backend in guards.
GuardBackend = Callable[["Backend"], "Backend"]
# A backend that is never called, for the Guard that only checks its options.
_NO_BACKEND: Any = None
# Option -> parameter of concertino.guards.Guard.
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
    """Add the options for guards to a parser, as a group."""
    group = parser.add_argument_group("guards")
    add_repeatable(
        group,
        "--rate-limit",
        "[GLOB=]CALLS/SECONDS",
        "limit the calls of each tool in a period of so many seconds; repeatable",
    )
    group.add_argument(
        "--max-in-flight", metavar="N", type=int, help="largest number of calls at a time"
    )
    group.add_argument(
        "--timeout", metavar="SECONDS", type=float, help="longest duration of a call"
    )
    group.add_argument(
        "--max-result-bytes",
        metavar="N",
        type=int,
        help="largest size of a result; a larger one is cut and stored as a resource",
    )
    for name, effect in (
        ("allow", "show and serve only these tools"),
        ("deny", "hide and refuse these tools"),
    ):
        add_repeatable(
            group,
            f"--{name}",
            "GLOB",
            f"{effect}; prompt:GLOB and resource:GLOB for prompts and resources; repeatable",
        )
    group.add_argument(
        "--redact", action="store_true", help="replace secrets in results with [REDACTED]"
    )
    group.add_argument(
        "--metrics-file", metavar="PATH", help="write metrics to this file, for Prometheus"
    )
    group.add_argument(
        "--otel", action="store_true", help="send spans and metrics to OpenTelemetry"
    )


def make_guard(args: Namespace, counts: CallCounts | None = None) -> GuardBackend | None:
    """Return a function that wraps a backend in the guards that the options request.

    A guard is a Backend around another one, which limits or filters the calls. Returns None if the
    options request no guard.

    args: the parsed arguments.
    counts: where the guards count the calls, for /metrics; None if /metrics is not served.
    Raises ValueError for an invalid value, and ConcertinoError if an extra is not installed.
    """
    options: dict[str, Any] = vars(args)
    # An option that was not given is None, False or [].
    arguments = {
        parameter: value
        for option, parameter in OPTIONS.items()
        if (value := options[option]) is not None and value is not False and value != []
    }
    # The first layer wraps the backend, and each further layer the result of the layer before it.
    layers: list[GuardBackend] = []
    if arguments:
        from functools import partial

        from concertino.guards.guard import Guard

        layers.append(partial(Guard, **arguments))
        # Report an invalid value before the target is imported, which may take long.
        Guard(_NO_BACKEND, **arguments)
    if args.metrics_file or counts is not None:
        from concertino.guards.metrics import metrics_of

        layers.append(metrics_of(args.metrics_file, counts))
    if args.otel:
        from concertino.guards.telemetry import telemetry

        # The options --tcp and --unix do not exist in `concertino bridge` and `proxy`.
        transport = next((name for name in ("tcp", "unix") if options.get(name)), "pipe")
        layers.append(telemetry(transport=transport))

    def wrap(backend: Backend) -> Backend:
        if args.max_result_bytes is not None:
            _warn_of_small_results(args.max_result_bytes)
        for layer in layers:
            backend = layer(backend)
        return backend

    return wrap if layers else None


def _warn_of_small_results(max_bytes: int) -> None:
    """Warn if the limit is so small that a cut result contains none of its text."""
    from concertino.guards.sizes import ENVELOPE_BYTES
    from concertino.logs.handler import logger

    # The bytes for the link to the whole result, and for the JSON around the text. As an example,
    # suggest a limit that leaves three times as much for the text.
    taken = 2 * ENVELOPE_BYTES
    if max_bytes <= taken:
        logger("concertino").warning(
            "--max-result-bytes %d: a larger result is replaced by a link, and none of its text is "
            "shown; write %d to show %d bytes of it",
            max_bytes,
            4 * taken,
            3 * taken,
        )
