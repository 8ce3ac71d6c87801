"""The metrics file, read by a parser of its own; and what OpenTelemetry's SDK gets."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from guards.asking import ask_server
from msgspec import Raw
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from concertino import RpcError, Server, ToolError
from concertino.backend import Call
from concertino.errors import METHOD_NOT_FOUND, ConcertinoError
from concertino.guards.call_outcome import SERIES
from concertino.guards.metrics import Metrics
from concertino.guards.refusals import refuse
from concertino.guards.telemetry import Telemetry
from concertino.logs import redact
from concertino.types import CallToolResult, TextContent

# Prometheus text exposition 0.0.4: name, labels, value.
LINE = re.compile(
    r'([a-zA-Z_:][a-zA-Z0-9_:]*)\{((?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*",?)*)\} (\S+)'
)
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


def parse_metrics(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# "):
            assert line.split()[1] in ("HELP", "TYPE")
            continue
        match = LINE.fullmatch(line)
        assert match, line
        key = match[1], frozenset(LABEL.findall(match[2]))
        assert key not in found
        found[key] = float(match[3])
    return found


def server() -> Server:
    made = Server("s")

    @made.tool
    async def echo(text: str) -> str:
        return text

    @made.tool
    async def fail() -> str:
        raise ToolError("no")

    @made.prompt
    async def greet() -> str:
        return "hello"

    made.add_resource("a:b", text="x")
    return made


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("tools/list", {}),
    ("tools/call", {"name": "echo", "arguments": {"text": "a"}}),
    ("tools/call", {"name": "echo", "arguments": {"text": "b"}}),
    ("tools/call", {"name": "fail"}),
    ("tools/call", {"name": "nobody"}),
    ("prompts/get", {"name": "greet"}),
    ("resources/read", {"uri": "a:b"}),
]
DURATION = "mcp_server_operation_duration_seconds"


def test_every_call_is_counted_and_timed_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.prom"
    now = iter(range(1000))
    ask_server(Metrics(server(), path, clock=lambda: next(now) * 0.25), *CALLS)
    found = parse_metrics(path.read_text())
    assert [each.name for each in tmp_path.iterdir()] == ["metrics.prom"]

    def count(**labels: str) -> float:
        return found[f"{DURATION}_count", frozenset(labels.items())]

    assert count(mcp_method_name="tools/list") == 1
    assert count(mcp_method_name="tools/call", gen_ai_tool_name="echo") == 2
    assert (
        count(mcp_method_name="tools/call", gen_ai_tool_name="fail", error_type="tool_error") == 1
    )
    assert count(mcp_method_name="tools/call", gen_ai_tool_name="_OTHER", error_type="-32602") == 1
    assert count(mcp_method_name="prompts/get", gen_ai_prompt_name="greet") == 1
    assert count(mcp_method_name="resources/read") == 1
    echo = {"mcp_method_name": "tools/call", "gen_ai_tool_name": "echo"}
    assert found[f"{DURATION}_sum", frozenset(echo.items())] == 0.5  # each took a tick of the clock
    buckets = {
        float(dict(labels)["le"]): value
        for (name, labels), value in found.items()
        if name == f"{DURATION}_bucket" and frozenset(echo.items()) <= labels
    }
    assert len(buckets) == 15
    assert {
        bound: value for bound, value in buckets.items() if value != (2 if bound >= 0.25 else 0)
    } == {}
    assert (
        found["concertino_active_operations", frozenset({("mcp_method_name", "tools/call")})] == 0
    )


def test_a_file_that_cannot_be_written_fails_the_start_and_says_which(tmp_path: Path) -> None:
    async def start() -> None:
        await Metrics(server(), tmp_path / "no" / "metrics.prom").start(None)  # type: ignore[arg-type]

    with pytest.raises(
        ConcertinoError, match=r"metrics file .*no/metrics\.prom cannot be written: No such file"
    ):
        asyncio.run(start())


def test_names_are_bounded_and_escaped(tmp_path: Path) -> None:
    class Anything:
        async def handle(self, call: Any, context: Any) -> Any:
            return None

    guard = Metrics(Anything(), tmp_path / "m")  # type: ignore[arg-type]
    for number in range(SERIES + 500):
        name = f'n"\\\n{number}'
        with pytest.raises(StopIteration):
            guard.handle(Call("tools/call", {"name": Raw(json.dumps(name).encode())}), None).send(
                None
            )  # type: ignore[arg-type]
    found = parse_metrics(guard.text())
    counts = {labels: value for (name, labels), value in found.items() if name.endswith("_count")}
    assert len(counts) == SERIES + 1
    assert (
        counts[frozenset({("mcp_method_name", "tools/call"), ("gen_ai_tool_name", "_OTHER")})]
        == 500
    )


def count_calls(guard: Metrics, method: str, name: str | None = None) -> None:
    params = {} if name is None else {"name": Raw(json.dumps(name).encode())}
    with pytest.raises((StopIteration, RpcError)):
        guard.handle(Call(method, params), None).send(None)  # type: ignore[arg-type]


def test_a_secret_of_digits_is_removed_from_names_but_not_from_numbers(tmp_path: Path) -> None:
    class Anything:
        async def handle(self, call: Any, context: Any) -> Any:
            return None

    ticks = iter((0.0, 0.1234567))
    guard = Metrics(Anything(), tmp_path / "m", clock=lambda: next(ticks))  # type: ignore[arg-type]
    redact.learn_secrets(["2345"])
    count_calls(guard, "tools/call", "unlock-2345")
    found = parse_metrics(guard.text())
    labels = frozenset(
        {("mcp_method_name", "tools/call"), ("gen_ai_tool_name", "unlock-[REDACTED]")}
    )
    assert found["mcp_server_operation_duration_seconds_sum", labels] == 0.1234567


def test_names_that_differ_in_a_secret_only_are_one_series(tmp_path: Path) -> None:
    class Anything:
        async def handle(self, call: Any, context: Any) -> Any:
            return None

    guard = Metrics(Anything(), tmp_path / "m")  # type: ignore[arg-type]
    for token in ("ghp_" + "a" * 20, "ghp_" + "b" * 20):
        count_calls(guard, "tools/call", token)
    found = parse_metrics(guard.text())
    labels = frozenset({("mcp_method_name", "tools/call"), ("gen_ai_tool_name", "[REDACTED]")})
    assert found["mcp_server_operation_duration_seconds_count", labels] == 2


def test_methods_that_clients_invent_become_no_series(tmp_path: Path) -> None:
    class Passes:
        async def handle(self, call: Any, context: Any) -> Any:
            if call.method == "vendor/known":
                return None
            raise RpcError(METHOD_NOT_FOUND, f"method not found: {call.method}")

    guard = Metrics(Passes(), tmp_path / "m")  # type: ignore[arg-type]
    for number in range(50):
        count_calls(guard, f"invented/{number}")
    count_calls(guard, "vendor/known")
    methods = {dict(labels)["mcp_method_name"] for _, labels in parse_metrics(guard.text())}
    assert methods == {"_OTHER", "vendor/known"}


# OpenTelemetry


def observe_calls(
    monkeypatch: pytest.MonkeyPatch, *calls: tuple[str, dict[str, Any]]
) -> tuple[list[Any], list[Any]]:
    """Spans, and points of the duration metric."""
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers, meters = TracerProvider(), MeterProvider([reader])
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    ask_server(Telemetry(server(), tracer_provider=tracers, meter_provider=meters), *calls)
    data = reader.get_metrics_data()
    assert data is not None
    [metric] = data.resource_metrics[0].scope_metrics[0].metrics
    assert (metric.name, metric.unit) == ("mcp.server.operation.duration", "s")
    return list(exporter.get_finished_spans()), list(metric.data.data_points)


def test_spans_and_durations_follow_the_conventions(monkeypatch: pytest.MonkeyPatch) -> None:
    spans, points = observe_calls(monkeypatch, *CALLS)
    assert [span.name for span in spans] == [
        "tools/list",
        "tools/call echo",
        "tools/call echo",
        "tools/call fail",
        "tools/call nobody",
        "prompts/get greet",
        "resources/read",
    ]
    assert {span.kind for span in spans} == {SpanKind.SERVER}
    common = {"mcp.protocol.version": "2025-11-25", "network.transport": "pipe"}
    tool = {**common, "mcp.method.name": "tools/call", "gen_ai.operation.name": "execute_tool"}
    _, echo, _, fail, nobody, prompt, resource = (dict(span.attributes) for span in spans)
    assert echo.pop("jsonrpc.request.id") is not None
    assert echo == {**tool, "gen_ai.tool.name": "echo"}
    assert fail["error.type"] == "tool_error"
    assert (nobody["error.type"], nobody["rpc.response.status_code"]) == ("-32602", "-32602")
    assert prompt["gen_ai.prompt.name"] == "greet"
    assert resource["mcp.resource.uri"] == "a:b"
    assert [span.status.status_code is StatusCode.ERROR for span in spans] == [
        False,
        False,
        False,
        True,
        True,
        False,
        False,
    ]
    by_name = {
        point.attributes.get("gen_ai.tool.name", point.attributes["mcp.method.name"]): point
        for point in points
    }
    assert by_name["echo"].count == 2
    assert dict(by_name["echo"].attributes) == {**tool, "gen_ai.tool.name": "echo"}
    assert by_name["echo"].explicit_bounds == (
        0.01,
        0.02,
        0.05,
        0.1,
        0.2,
        0.5,
        1,
        2,
        5,
        10,
        30,
        60,
        120,
        300,
    )
    assert by_name["_OTHER"].attributes["error.type"] == "-32602"
    assert by_name["fail"].attributes["error.type"] == "tool_error"


def test_the_callers_trace_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    # the example of W3C Trace Context
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    call = (
        "tools/call",
        {"name": "echo", "arguments": {"text": "a"}, "_meta": {"traceparent": parent, "x": 1}},
    )
    [span], _ = observe_calls(monkeypatch, call)
    assert f"{span.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"


def test_a_secret_is_in_no_span(monkeypatch: pytest.MonkeyPatch) -> None:
    canary = "sk-canary-7f3a91"
    redact.refresh({"CANARY_TOKEN": canary})
    try:
        spans, points = observe_calls(
            monkeypatch,
            ("tools/call", {"name": canary}),
            ("tools/call", {"name": "echo", "arguments": {"text": canary}}),
            ("resources/read", {"uri": f"a:{canary}"}),
        )
    finally:
        redact.refresh()
    assert canary not in repr([span.to_json() for span in spans])
    assert canary not in repr(points)


@pytest.mark.parametrize("code", ["RATE_LIMIT_EXCEEDED", "TOO_MANY_IN_FLIGHT"])
def test_names_that_a_guard_refused_take_no_room_from_those_that_there_are(
    code: str, tmp_path: Path
) -> None:
    class Refuses:
        async def handle(self, call: Any, context: Any) -> Any:
            if bytes(call.params["name"]).startswith(b'"real'):
                return CallToolResult([TextContent("done")])
            return refuse(call.method, code, "Too many calls", "Wait")

    canary = "real-sk-canary-7f3a91"
    reader = InMemoryMetricReader()
    counted = Metrics(Refuses(), tmp_path / "m")  # type: ignore[arg-type]
    guard = Telemetry(counted, meter_provider=MeterProvider([reader]))
    context = SimpleNamespace(
        client=SimpleNamespace(protocol_version="2025-11-25"), meta={}, request_id=canary
    )
    redact.refresh({"CANARY_TOKEN": canary})
    try:
        for name in (*(f"n{number}" for number in range(SERIES + 500)), canary, "real"):
            with pytest.raises(StopIteration):
                guard.handle(
                    Call("tools/call", {"name": Raw(json.dumps(name).encode())}), context
                ).send(None)  # type: ignore[arg-type]
    finally:
        redact.refresh()
    data = reader.get_metrics_data()
    assert data is not None
    points = data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points
    counts = {point.attributes["gen_ai.tool.name"]: point.count for point in points}
    assert counts == {"_OTHER": SERIES + 500, "[REDACTED]": 1, "real": 1}
    assert 'gen_ai_tool_name="real"' in counted.text()


@pytest.mark.parametrize("use", ["Telemetry(None)", "telemetry()"])
def test_without_the_extra_the_error_names_it(use: str) -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from concertino.errors import ConcertinoError\n"
        "from concertino.guards.telemetry import Telemetry, telemetry\n"
        f"try:\n    {use}\nexcept ConcertinoError as exc:\n    print(exc)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert re.fullmatch(
        r"reporting spans and metrics needs the extra 'otel' .*: .*pip install .*\[otel\]'\n",
        done.stdout,
    )


def test_what_is_refused_by_the_protocol_reaches_the_caller_through_both(tmp_path: Path) -> None:
    errors = ask_server(
        Metrics(Telemetry(server()), tmp_path / "m"), ("tools/call", {"name": "nobody"})
    )
    assert isinstance(errors[0], RpcError)
