"""Telemetry: reports a span and a duration for each call to OpenTelemetry.

Needs the extra `otel`. The reports go to the OpenTelemetry providers of the process, which
`opentelemetry-instrument` or the application sets up. Without providers, nothing is reported. If a
request has a `traceparent` in `_meta`, the span continues the caller's trace. If the call is
forwarded, the next program gets this span in `_meta`.
Arguments and results are never reported. Secrets are removed from names and error texts.
Spec: opentelemetry.io, semantic conventions, GenAI, "MCP"; W3C Trace Context; 2026-07-28
basic/index "_meta".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from msgspec import Raw, Struct
from msgspec.json import encode
from msgspec.structs import replace

from concertino.backend.call_hooks import CheckArguments, argument_check_of
from concertino.backend.interface import Backend, Call, Context
from concertino.backend.methods import KINDS, LIST_METHODS
from concertino.backend.wrappers import BackendWrapper
from concertino.errors import ConcertinoError, RpcError
from concertino.guards.call_outcome import (
    BOUNDARIES_S,
    CallFailure,
    Names,
    failure_of,
    failure_of_result,
    name_of,
)
from concertino.logs.formats import current_context
from concertino.logs.redact import redactor

try:
    from opentelemetry import metrics, trace
    from opentelemetry.propagate import extract, inject
except ImportError:
    # The class exists without the extra, so that help() and inspect can show concertino.guards.
    metrics = trace = extract = inject = cast("Any", None)

__all__ = ["Telemetry", "telemetry"]

# Method -> the attribute for the name of the tool, prompt or resource.
ATTRIBUTES = {
    "tools/call": "gen_ai.tool.name",
    "prompts/get": "gen_ai.prompt.name",
    "resources/read": "mcp.resource.uri",
}


class Telemetry(BackendWrapper):
    """A Backend that reports calls of another Backend to OpenTelemetry.

        run(Telemetry(server))

    Each call becomes a span, and its duration is added to the histogram
    `mcp.server.operation.duration`.

    inner: the other Backend.
    tracer_provider, meter_provider: the OpenTelemetry providers that get the spans and durations;
        None for the global providers of the process.
    transport: the attribute `network.transport` of spans and durations: `pipe` for stdin and
        stdout, `tcp` or `unix` for sockets.
    Raises ConcertinoError if the extra `otel` is missing.
    """

    def __init__(
        self,
        inner: Backend,
        *,
        tracer_provider: Any = None,
        meter_provider: Any = None,
        transport: str = "pipe",
    ) -> None:
        _check_extra()
        super().__init__(inner)
        self._tracer = trace.get_tracer("concertino", tracer_provider=tracer_provider)
        self._duration = metrics.get_meter(
            "concertino", meter_provider=meter_provider
        ).create_histogram(
            "mcp.server.operation.duration",
            unit="s",
            description="How long an MCP request took, from its arrival to its answer.",
            explicit_bucket_boundaries_advisory=list(BOUNDARIES_S),
        )
        self._transport = transport
        self._names = Names()
        # A proxy passes on all methods, also those that a client invents, so methods need a limit.
        self._methods = Names(known=(*KINDS, *LIST_METHODS))

    def argument_check(self, method: str, name: str) -> CheckArguments | None:
        """Return the inner backend's function that checks the arguments of one tool or prompt.

        For invalid arguments, the function raises ArgumentsRefused if the response to the call is a
        result, and RpcError if the response is an error.
        method, name: for example "tools/call" and the name of the tool.
        Returns None if only the inner backend's handle() can check them.
        """
        return argument_check_of(self.inner, method, name)

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        redact = redactor().text
        name = name_of(call)
        shared = self._shared_attributes(call, context)
        # The span gets more attributes. The metric does not get them, because each combination of
        # values uses memory until the process ends.
        attributes = dict(shared)
        if name is not None:
            attributes[ATTRIBUTES[call.method]] = redact(name)
        # Only a runtime's Context has a request id.
        if (id := getattr(context, "request_id", None)) is not None:
            attributes["jsonrpc.request.id"] = redact(str(id))

        title = call.method
        # There must be few names of spans, so they do not contain URIs.
        if name and call.method != "resources/read":
            title = f"{call.method} {redact(name)}"
        carrier = {key: value for key, value in context.meta.items() if isinstance(value, str)}
        began = time.perf_counter()
        with self._tracer.start_as_current_span(
            title,
            extract(carrier),
            trace.SpanKind.SERVER,
            attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            failure: CallFailure | None = None
            error_message = ""

            # Let the log lines of this call show the trace id of the span.
            log_context = current_context.get()
            span_context = span.get_span_context()
            if log_context is not None and span_context.is_valid:
                trace_id = trace.format_trace_id(span_context.trace_id)
                current_context.set(replace(log_context, trace=trace_id))

            # A backend that forwards the call, such as a proxy or a hub, passes on `_meta`. So the
            # spans of the next program become children of this one.
            trace_headers: dict[str, str] = {}
            inject(trace_headers)
            trace_meta = {key: Raw(encode(value)) for key, value in trace_headers.items()}
            traced_call = replace(call, meta={**call.meta, **trace_meta})

            try:
                result = await self.inner.handle(traced_call, context)
                failure = failure_of_result(call, result)
                return result
            except BaseException as exc:
                failure = failure_of(exc)
                # Report only texts that the client gets. The client gets no text of other
                # exceptions.
                error_message = exc.message if isinstance(exc, RpcError) else ""
                raise
            finally:
                current_context.set(log_context)
                if failure is not None:
                    span.set_attributes(_failure_attributes(failure))
                    # None stands for no description.
                    span.set_status(trace.StatusCode.ERROR, redact(error_message) or None)
                self._record_duration(time.perf_counter() - began, call, failure, shared)

    def _record_duration(
        self,
        duration_s: float,
        call: Call,
        failure: CallFailure | None,
        attributes: dict[str, Any],
    ) -> None:
        """Add the duration of a call to the histogram.

        attributes: the attributes that the metric shares with the span. This method changes them.
        """
        # The span has the method and the name that the client has sent. The metric has only a
        # limited number of them.
        attributes["mcp.method.name"] = self._methods.count_as(call.method, failure)
        name = name_of(call)
        if name is not None and call.method != "resources/read":
            counted = self._names.count_as(redactor().text(name), failure)
            attributes[ATTRIBUTES[call.method]] = counted
        if failure is not None:
            attributes |= _failure_attributes(failure)
        self._duration.record(duration_s, attributes)

    def _shared_attributes(self, call: Call, context: Context) -> dict[str, Any]:
        """Return the attributes of both the metric and the span."""
        attributes: dict[str, Any] = {
            "mcp.method.name": call.method,
            "mcp.protocol.version": context.client.protocol_version,
            "network.transport": self._transport,
        }
        if call.method == "tools/call":
            attributes["gen_ai.operation.name"] = "execute_tool"
        return attributes


def _failure_attributes(failure: CallFailure) -> dict[str, str]:
    """Return the attributes of a call that has failed."""
    attributes = {"error.type": failure.kind}
    if failure.code is not None:
        attributes["rpc.response.status_code"] = str(failure.code)
    return attributes


def telemetry(**settings: Any) -> Callable[[Backend], Telemetry]:
    """Return a function that wraps a backend in Telemetry, as partial(Telemetry, ...) does.

    settings: the keyword arguments of Telemetry.
    Raises ConcertinoError if the extra `otel` is missing.
    """
    _check_extra()
    return partial(Telemetry, **settings)


def _check_extra() -> None:
    if trace is None:
        from concertino.installation import missing_extra

        raise ConcertinoError(missing_extra("reporting spans and metrics", "otel"))
