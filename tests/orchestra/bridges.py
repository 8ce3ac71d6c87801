"""A hub of whom every answer is scripted, in a thread of the test, and bridges to it that are real
processes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from stdio.harness import Process, call, request

from concertino.orchestra.authority import create_authority, issue
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.link import listen_for_links
from concertino.orchestra.plugin_pb2 import (
    HealthResult,
    ListToolsResponse,
    PluginRequest,
    PluginResponse,
    ToolDefinition,
    ToolResponse,
)
from concertino.orchestra.rpc_interface import RemotePeer, RpcListener, error_response
from concertino.orchestra.structs import pack

__all__ = [
    "CONNECTED",
    "Hub",
    "Process",
    "bridge",
    "call",
    "connect",
    "definition",
    "gave",
    "make_certificates",
    "make_failure",
    "request",
    "tools",
]

# What a bridge writes on stderr when it has connected to its hub.
CONNECTED = "transport.stdio: connected to orchestrator at "

T = TypeVar("T")
Script = Callable[[PluginRequest], PluginResponse | Awaitable[PluginResponse]]


def gave(result: Mapping[str, Any]) -> PluginResponse:
    """A tool's result."""
    packed = pack(result)
    return PluginResponse(
        tool_call=ToolResponse(success=True, result=packed.struct, result_json=packed.json)
    )


def make_failure(code: str, message: str = "") -> PluginResponse:
    """A tool's failure."""
    return error_response("", code, message)


def definition(
    name: str, description: str = "", schema: Mapping[str, Any] | None = None
) -> ToolDefinition:
    made = ToolDefinition(name=name, description=description)
    if schema is not None:
        made.input_schema = pack(schema).struct
    return made


def make_certificates(folder: Path) -> Certificates:
    """An authority, and certificates of a hub and of a bridge."""
    made = Certificates(folder / "certs")
    create_authority(made)
    for each in ("orchestrator", "transport.stdio-client"):
        issue(made, each)
    return made


class Hub:
    """answers: by the kind of a request, its response, or what makes it. asked: the requests so
    far, but for health pings.
    """

    def __init__(self, transport: str, folder: Path) -> None:
        self.transport = transport
        self.certificates = make_certificates(folder)
        self.address = f"unix:{folder}/hub" if transport == "unix" else "localhost:0"
        self.asked: list[PluginRequest] = []
        self.answers: dict[str, PluginResponse | Script] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._listening: RpcListener | None = None
        self._cancelled = threading.Semaphore(0)
        self._began = threading.Semaphore(0)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """On the hub's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def start(self) -> None:
        """Listen; at the same address as before."""
        self._listening = self.run(
            listen_for_links(
                self.address, self._answer, certificates=self.certificates, name="orchestrator"
            )
        )
        self.address = self._listening.address

    def stop(self) -> None:
        """End every connection at once."""
        if self._listening is not None:
            self.run(self._listening.close())
            self._listening = None

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    async def hang(self, request: PluginRequest) -> PluginResponse:
        """An answer that does not come."""
        self._began.release()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self._cancelled.release()
            raise
        raise AssertionError

    def until_asked(self) -> None:
        """Wait until one more request hangs."""
        assert self._began.acquire(timeout=30)

    def until_cancelled(self) -> None:
        """Wait until one more request that hangs is cancelled."""
        assert self._cancelled.acquire(timeout=30)

    def of(self, kind: str) -> list[Any]:
        """What was asked of this kind."""
        return [getattr(each, kind) for each in self.asked if each.HasField(kind)]

    async def _answer(self, request: PluginRequest, peer: RemotePeer) -> PluginResponse:
        kind = request.WhichOneof("request") or ""
        if kind == "health":
            return PluginResponse(health=HealthResult(status=HealthResult.HEALTHY))
        kept = PluginRequest()
        kept.CopyFrom(request)
        self.asked.append(kept)
        answer = self.answers.get(kind)
        if answer is None:
            return error_response("", "unknown_request", f"nothing is scripted for {kind}")
        if isinstance(answer, PluginResponse):
            copy = PluginResponse()
            copy.CopyFrom(answer)
            return copy
        made = answer(request)
        return made if isinstance(made, PluginResponse) else await made


@contextmanager
def bridge(hub: Hub, *options: str, **env: str) -> Iterator[Process]:
    """A bridge to the hub, as a client starts it."""
    command = ["-m", "concertino", "bridge", "--orchestrator-addr", hub.address]
    with Process(
        [*command, "--certs-dir", str(hub.certificates.folder), *options], env=env
    ) as process:
        yield process


def connect(process: Process) -> None:
    """Open the session, and wait until the bridge has connected to its hub.

    Without this wait, calls fail if connecting takes longer than the bridge's start waits for it.
    """
    process.initialize()
    process.until_stderr(CONNECTED)


def tools(*definitions: ToolDefinition) -> PluginResponse:
    return PluginResponse(list_tools=ListToolsResponse(tools=definitions))
