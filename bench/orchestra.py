"""One hop of the plugin protocol: a request over a link and its response, client and server in two
processes.

    python bench/orchestra.py                        over a Unix socket and over QUIC
    python bench/orchestra.py --transport quic --seconds 5
    python bench/orchestra.py --pinned               both processes on one core, as in bench/run.py

The request is a tool call with a 100-byte text in its Struct, answered by a function that hands the
Struct back; both ends encode and decode the protobuf messages, as a hub and a plugin do. Reported:
CPU time of both processes for a call, one after the other and 64 in flight, which other programs on
the machine do not change; p50, p99 and the slowest of calls one after the other; calls a second
with 64 in flight; seconds for 10 MB in a request, and in a response; and how long this process's
event loop stood still meanwhile, which is what a ping beside it would wait, as it sent and as it
received. Goals: 80 us and 15,000 calls/s over the socket; 800 us, 3,000 calls/s, 1.5 s and 50 ms
over QUIC. Needs the extra [orchestra], installed or with PYTHONPATH=src.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

from concertino.orchestra.authority import create_authority, issue
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.link import listen_for_links, open_link
from concertino.orchestra.plugin_pb2 import PluginRequest, PluginResponse, ToolRequest, ToolResponse
from concertino.orchestra.rpc_interface import RemotePeer, RpcConnection
from concertino.orchestra.structs import encode_struct

IN_FLIGHT = 64
LARGE = 10 * 10**6


async def answer(request: PluginRequest, peer: RemotePeer) -> PluginResponse:
    """Hands a small Struct back; of a large one, nothing: 10 MB are to go one way.

    The tool `large` answers with such a one.
    """
    arguments = b"" if len(request.tool_call.arguments) > 10**6 else request.tool_call.arguments
    result = large_struct() if request.tool_call.tool_name == "large" else arguments
    return PluginResponse(tool_call=ToolResponse(success=True, result=result))


@cache
def large_struct() -> bytes:
    return encode_struct({"text": "x" * LARGE})


async def serve(address: str, certificates: Certificates) -> None:
    listening = await listen_for_links(
        address, answer, certificates=certificates, name="tools.echo"
    )
    print(listening.address, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await listening.close()


def call(text: str) -> PluginRequest:
    return PluginRequest(
        tool_call=ToolRequest(tool_name="echo", arguments=encode_struct({"text": text}))
    )


async def sequential(link: RpcConnection, seconds: float) -> list[float]:
    """Microseconds of calls one after the other, sorted."""
    request = call("x" * 100)
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        await link.request(request)
        taken.append((time.perf_counter() - began) * 1e6)
    return sorted(taken)


async def at_once(link: RpcConnection, seconds: float) -> tuple[int, float]:
    """Calls with 64 in flight: how many, and how many a second."""
    count = 0
    end = time.perf_counter() + seconds

    async def one() -> None:
        nonlocal count
        request = call("x" * 100)
        while time.perf_counter() < end:
            await link.request(request)
            count += 1

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(IN_FLIGHT)))
    return count, count / (time.perf_counter() - began)


async def large(link: RpcConnection, request: PluginRequest) -> tuple[float, float]:
    """Seconds for 10 MB one way, and the longest that the loop stood still meanwhile, in
    milliseconds.
    """
    gaps: list[float] = []

    async def watch() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            gaps.append((time.perf_counter() - began) * 1e3 - 1)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    began = time.perf_counter()
    await link.request(request)
    taken = time.perf_counter() - began
    watching.cancel()
    return taken, max(gaps)


def cpu_us(process: int) -> float:
    """CPU time of this process and of another so far, in microseconds."""
    clock = (
        ~process << 3
    ) | 2  # clock_getcpuclockid(3), as Linux makes it: all threads of that process
    return (time.process_time() + time.clock_gettime(clock)) * 1e6


async def measure(transport: str, seconds: float, folder: Path) -> str:
    certificates = Certificates(folder / "certs")
    address = f"unix:{folder}/echo" if transport == "unix" else "127.0.0.1:0"
    command = [
        sys.executable,
        __file__,
        "--serve",
        address,
        "--certs-dir",
        str(certificates.folder),
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        link = await open_link(
            server.stdout.readline().strip(), certificates=certificates, name="bench-client"
        )
        await sequential(link, 0.3)
        began = cpu_us(server.pid)
        taken = await sequential(link, seconds)
        alone = (cpu_us(server.pid) - began) / len(taken)
        began = cpu_us(server.pid)
        count, rate = await at_once(link, seconds)
        together = (cpu_us(server.pid) - began) / count
        gc.freeze()  # a collection of all that was imported is another matter than sending
        there, sending = min([await large(link, call("x" * LARGE)) for _ in range(3)])
        back, receiving = min(
            [
                await large(link, PluginRequest(tool_call=ToolRequest(tool_name="large")))
                for _ in range(3)
            ]
        )
        await link.close()
        server.communicate("")
    p50, p99, slowest = taken[len(taken) // 2], taken[len(taken) * 99 // 100], taken[-1]
    figures = f"{alone:8.0f} {together:10.0f} {p50:8.0f} {p99:8.0f} {slowest:9.0f} {rate:9,.0f}"
    return f"{transport:9} {figures} {there:6.2f} {back:5.2f} {sending:8.1f} {receiving:5.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--transport", choices=("unix", "quic"), action="append")
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="of each measurement (default 2)"
    )
    parser.add_argument("--pinned", action="store_true", help="both processes on one core")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--certs-dir", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(serve(given.serve, Certificates(given.certs_dir)))
        return
    if given.pinned:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory(prefix="bench") as name:
        certificates = Certificates(Path(name) / "certs")
        create_authority(certificates)
        for item in ("tools.echo", "bench-client"):
            issue(certificates, item)
        print(
            "transport  CPU us  CPU us/64   p50 us   p99 us  slowest us  calls/s  10 MB, s, back "
            " still, ms, back"
        )
        for transport in given.transport or ("unix", "quic"):
            print(asyncio.run(measure(transport, given.seconds, Path(name))))


if __name__ == "__main__":
    main()
