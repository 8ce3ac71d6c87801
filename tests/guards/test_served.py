"""Guards and logs of a real process: the options of `concertino serve`, and a canary that must
appear in no sink.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from stdio.harness import Process, call, failure_of, request, text_of

from concertino import Client, Disconnected, ServerParameters

CANARY = "sk-canary-7f3a91c0"
MORE = "zebra-crossing-55"  # under the name of a field, in no variable
SERVER = '''
import asyncio
import logging
import os
import subprocess
import sys

from concertino import Context, RpcError, Server, ToolError

server = Server("leaky", version="1.2.3")
log = logging.getLogger("concertino.leaky")
SECRET = os.environ.get("CANARY_TOKEN", "")
MORE = "-".join(("zebra", "crossing", "55"))  # a traceback quotes its source


@server.tool
async def give(how: str) -> dict:
    """Give it as a result."""
    return {"it": SECRET, "password": MORE, "maxTokens": 100, "keyComponents": ["a", "b"],
            "progressToken": "t"}


@server.tool
async def say(text: str, context: Context) -> str:
    """Say it in every other way."""
    log.info("in words %s and in a field %r", SECRET, {"password": MORE})
    print("printed", SECRET)
    print("printed too", SECRET, file=sys.stderr)
    await context.log("error", {"text": SECRET, "password": MORE, "maxTokens": 3})
    await context.progress(1, 2, "half of " + SECRET)
    return "said " + text


@server.tool
async def fail(how: str) -> str:
    """Fail with it."""
    if how == "exception":
        raise ValueError("no: " + SECRET)
    if how == "cause":
        try:
            raise KeyError(SECRET)
        except KeyError as why:
            raise RuntimeError("worse") from why
    if how == "tool error":
        raise ToolError("CODE", "no: " + SECRET, password=MORE, keyComponents=[SECRET])
    raise RpcError(-32000, "no: " + SECRET, {"password": MORE, "text": SECRET})


@server.tool
async def child() -> str:
    """Let a child's stderr say it."""
    source = "import os, sys; sys.exit(os.environ['CANARY_TOKEN'])"
    done = subprocess.run([sys.executable, "-c", source], stderr=subprocess.PIPE)
    raise ValueError(done.stderr.decode())


@server.tool
async def long() -> str:
    """Give it in a text that is cut."""
    return (SECRET + " ") * 500


@server.tool
async def slow() -> str:
    """Take a long time."""
    await asyncio.Event().wait()
    return ""


@server.prompt
async def ask() -> str:
    """A prompt with it."""
    return "keep " + SECRET + " to yourself"


@server.resource("a:b")
async def read() -> dict:
    """A resource with it."""
    return {"text": SECRET, "password": MORE}
'''


@pytest.fixture
def leaky(tmp_path: Path) -> str:
    path = tmp_path / "leaky.py"
    path.write_text(SERVER)
    return str(path)


def serve(leaky: str, *options: str, forked: bool = True, **env: str) -> Process:
    return Process(["-m", "concertino", "serve", leaky, *options], env=env, forked=forked)


@pytest.mark.parametrize("modern", [False, True], ids=["legacy", "modern"])
@pytest.mark.parametrize("form", ["line", "json", "trace"])
def test_a_canary_appears_in_no_sink(leaky: str, form: str, modern: bool, tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.prom"
    options = (
        "--redact",
        "--trace",
        "--log-format",
        form,
        "--max-result-bytes",
        "2000",
        "--metrics-file",
        str(metrics),
    )
    with serve(leaky, *options, CANARY_TOKEN=CANARY, LOG_LEVEL="debug") as process:
        if not modern:
            process.initialize()
        gave = process.ask(call("give", "give", {"how": CANARY}, modern=modern))
        said = process.ask(call("say", "say", {"text": CANARY}, token="token-42", modern=modern))
        for how in ("exception", "cause", "tool error", "rpc"):
            process.ask(call(how, "fail", {"how": how}, modern=modern))
        process.ask(call("child", "child", modern=modern))
        cut = process.ask(call("long", "long", modern=modern))
        link = next(
            block["uri"] for block in cut["result"]["content"] if block["type"] == "resource_link"
        )
        whole = process.ask(request("whole", "resources/read", {"uri": link}, modern=modern))
        process.ask(request("ask", "prompts/get", {"name": "ask"}, modern=modern))
        process.ask(request("read", "resources/read", {"uri": "a:b"}, modern=modern))
        process.ask(call("unknown", CANARY, modern=modern))
        process.ask(request("gone", "resources/read", {"uri": f"a:{CANARY}"}, modern=modern))
        process.write(f'{{"broken": "{CANARY}"\n'.encode())
        assert process.finish() == 0
        sinks = {
            "stdout": b"\n".join(process.lines),
            "stderr": process.stderr,
            "metrics": metrics.read_bytes(),
        }
        for sink, content in sinks.items():
            assert CANARY.encode() not in content, sink
            assert MORE.encode() not in content, sink
        assert b"[REDACTED]" in sinks["stderr"]
        # What must stay whole did, on the wire and in the trace of it.
        assert json.loads(gave["result"]["content"][0]["text"]) == {
            "it": "[REDACTED]",
            "password": "[REDACTED]",
            "maxTokens": 100,
            "keyComponents": ["a", "b"],
            "progressToken": "t",
        }
        assert said["result"]["content"][0]["text"] == "said [REDACTED]"
        assert "[REDACTED]" in whole["result"]["contents"][0]["text"]
        progress = [
            each["params"]
            for each in process.messages
            if each.get("method") == "notifications/progress"
        ]
        assert [(each["progressToken"], each["message"]) for each in progress] == [
            ("token-42", "half of [REDACTED]")
        ]
        for name in ("token-42", "maxTokens", "keyComponents"):
            assert name.encode() in sinks["stderr"]


def test_without_redact_responses_are_the_authors_own_words_and_the_log_is_clean(
    leaky: str,
) -> None:
    with serve(leaky, "--trace", CANARY_TOKEN=CANARY) as process:
        process.initialize()
        assert CANARY in text_of(process.ask(call(1, "give", {"how": "x"})))
        assert process.finish() == 0
        assert CANARY.encode() not in process.stderr


async def open_failing_server(leaky: str) -> str:
    code = (
        "import os, sys; sys.stderr.write('last words: ' + os.environ['CANARY_TOKEN'] + '\\n'); "
        "sys.exit(3)"
    )
    try:
        async with Client(
            ServerParameters(sys.executable, ["-c", code], env={"CANARY_TOKEN": CANARY})
        ):
            return "it lives"
    except Disconnected as why:
        return f"{why} {why.stderr}"


def test_a_canary_in_a_childs_stderr_is_not_in_what_the_client_says_of_it(leaky: str) -> None:
    said = asyncio.run(open_failing_server(leaky))
    assert "last words: [REDACTED]" in said
    assert CANARY not in said


# Which call a line belongs to


def test_json_lines_have_the_ids_of_request_and_trace(leaky: str) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    params: dict[str, Any] = {
        "name": "say",
        "arguments": {"text": "x"},
        "_meta": {"traceparent": f"00-{trace}-b7ad6b7169203331-01"},
    }
    with serve(leaky, "--log-format", "json", "--trace", LOG_LEVEL="debug") as process:
        process.initialize()
        process.ask(request("with trace", "tools/call", params))
        process.ask(call(7, "fail", {"how": "exception"}))
        assert process.finish() == 0
        lines = [json.loads(line) for line in process.stderr.splitlines() if line.startswith(b"{")]
    words = next(line for line in lines if line["text"].startswith("in words"))
    assert (words["request"], words["trace"]) == ("with trace", trace)
    failed = next(line for line in lines if line["text"] == "tool fail failed")
    assert failed["request"] == 7
    assert "trace" not in failed
    assert "ValueError" in failed["exception"]
    shown = [
        line for line in lines if line["level"] == "TRACE" and line.get("request") == "with trace"
    ]
    assert [line["text"][:3] for line in shown] == ["<- ", "-> "]
    assert shown[0]["trace"] == trace
    assert json.loads(shown[0]["text"][3:])["params"]["name"] == "say"
    received = [line for line in lines if line["text"].startswith("Received request: ")]
    assert {"with trace", 7} <= {line.get("request") for line in received}
    assert all("request" not in line for line in lines if line["text"].startswith("Starting"))


@pytest.mark.parametrize(("form", "tag"), [("line", "[MCP]"), ("trace", "[TRACE]")])
def test_the_message_trace_has_the_tag_of_its_profile(leaky: str, form: str, tag: str) -> None:
    with serve(leaky, "--log-format", form, "--trace") as process:
        process.initialize()
        process.ask(call(1, "fail", {"how": "exception"}))
        assert process.finish() == 0
        shown = process.stderr.decode()
    assert f'{tag} <- {{"jsonrpc":"2.0","id":1,"method":"tools/call"' in shown
    assert f'{tag} -> {{"jsonrpc":"2.0","id":1,' in shown
    assert ("\nError: tool fail failed" in shown) == (form == "trace")


# The options


def test_every_option_guards_what_is_served(leaky: str) -> None:
    options = (
        "--rate-limit",
        "fail=2/3600",
        "--timeout",
        "0.05",
        "--max-in-flight",
        "1",
        "--deny",
        "child",
    )
    with serve(leaky, *options) as process:
        process.initialize()
        listed = process.ask(request(1, "tools/list"))
        assert [tool["name"] for tool in listed["result"]["tools"]] == [
            "give",
            "say",
            "fail",
            "long",
            "slow",
        ]
        assert process.ask(call(2, "child"))["error"]["message"] == "Unknown tool: child"
        answers = [process.ask(call(id, "fail", {"how": "tool error"})) for id in (3, 4, 5)]
        codes = [json.loads(failure_of(each))["code"] for each in answers]
        assert codes == ["CODE", "CODE", "RATE_LIMIT_EXCEEDED"]
        process.send(call(6, "slow"))
        refused = process.ask(call(7, "slow"))
        assert json.loads(failure_of(refused))["code"] == "TOO_MANY_IN_FLIGHT"
        assert json.loads(failure_of(process.answer(6)))["code"] == "TIMED_OUT"
        assert text_of(process.ask(call(8, "long"))) == " " * 500
        assert process.finish() == 0


def test_only_what_is_allowed_is_served_of_several(leaky: str, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(
        "from concertino import Server\nserver = Server('other')\n"
        "server.add_tool(lambda: 1, name='give')\n"
    )
    with Process(
        ["-m", "concertino", "serve", f"a={leaky}", f"b={other}", "--allow", "a_[gl]*"]
    ) as process:
        process.initialize()
        listed = process.ask(request(1, "tools/list"))
        assert [tool["name"] for tool in listed["result"]["tools"]] == ["a_give", "a_long"]
        assert "error" in process.ask(call(2, "b_give"))
        assert process.finish() == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("--rate-limit", "ten"),
            "expected CALLS/SECONDS or GLOB=CALLS/SECONDS, such as '10/60', got 'ten'",
        ),
        (("--timeout", "-1"), "timeout_s: expected a positive number of seconds, got -1.0"),
        (("--max-in-flight", "0"), "max_in_flight: expected a positive number, got 0"),
        (("--max-result-bytes", "x"), "expected a whole number, got 'x'"),
        (("--allow", ""), "expected a glob like"),
    ],
)
def test_an_option_that_does_not_fit_is_said_before_anything_is_imported(
    leaky: str, options: tuple[str, ...], said: str
) -> None:
    Path(leaky).write_text("raise SystemExit('imported')")
    with serve(leaky, *options) as process:
        assert process.finish() == 2
        assert said in process.stderr.decode()
        assert b"imported" not in process.stderr


def test_a_metrics_file_that_cannot_be_written_ends_the_start(leaky: str, tmp_path: Path) -> None:
    with serve(leaky, "--metrics-file", str(tmp_path / "no" / "m")) as process:
        assert process.wait() == 1
        process.pump(lambda: process.eof)
        assert b"Failed to start server: the metrics file" in process.stderr
        assert b"Traceback" not in process.stderr


def test_spans_are_reported_to_the_providers_of_the_process(leaky: str) -> None:
    source = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

provider = TracerProvider(shutdown_on_exit=False)
exporter = ConsoleSpanExporter(formatter=lambda span: span.name + "!\\n")
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
"""
    Path(leaky).write_text(source + SERVER)
    with serve(leaky, "--otel", "--log-format", "json") as process:
        process.initialize()
        process.ask(call(1, "fail", {"how": "exception"}))
        assert process.finish() == 0
        assert b"tools/call fail!" in process.stderr
        lines = [json.loads(line) for line in process.stderr.splitlines() if line.startswith(b"{")]
    failed = next(line for line in lines if line["text"] == "tool fail failed")
    assert (failed["request"], len(failed["trace"])) == (
        1,
        32,
    )  # the span's own: the caller has none


LOADED = """

@server.tool
def loaded() -> list:
    return [name for name in sys.modules
            if name.startswith("concertino.guards") or "opentelemetry" in name]
"""


def test_no_guard_is_loaded_when_none_is_wanted(leaky: str) -> None:
    Path(leaky).write_text(SERVER + LOADED)
    with serve(leaky, forked=False) as process:
        process.initialize()
        assert json.loads(text_of(process.ask(call(1, "loaded")))) == []
        assert process.finish() == 0


@pytest.mark.slow
def test_a_flood_of_10000_calls_is_answered_within_the_limits_with_flat_memory(leaky: str) -> None:
    options = (
        "--rate-limit",
        "long=100/3600",
        "--max-in-flight",
        "50",
        "--max-result-bytes",
        "500",
        "--redact",
    )

    def resident(process: Process) -> int:
        """Bytes."""
        fields = Path(f"/proc/{process.pid}/statm").read_text().split()
        return int(fields[1]) * 4096

    with serve(leaky, *options) as process:
        process.initialize()
        answered = 0
        after_first = 0
        accepted = 0
        for round in range(10):
            ids = range(round * 1000 + 1, round * 1000 + 1001)
            process.send(*(call(id, "long") for id in ids))
            for id in ids:
                result = process.answer(id)["result"]
                answered += 1
                accepted += not result.get("isError", False)
            if round == 0:
                after_first = resident(process)
        assert (answered, accepted) == (10_000, 100)
        assert resident(process) - after_first < 8 * 2**20
        assert process.finish() == 0
