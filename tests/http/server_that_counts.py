"""A server that tells what it holds: for tests that nothing is left of clients that are gone."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections import Counter
from pathlib import Path

from concertino import Context, Server

server = Server("counting", version="1")
COUNTED = frozenset(
    ("Exchange", "HttpConnection", "StatelessConnection", "SessionConnection", "ServerConnection",
     "SessionRequest", "CallContext")
)  # fmt: skip


@server.tool
async def echo(text: str) -> str:
    return text


@server.tool
async def pid() -> int:
    return os.getpid()


@server.tool
async def wait(context: Context, progress: bool) -> str:
    """Wait for ever; with progress, after the response has begun."""
    if progress:
        await context.progress(1)
    await asyncio.Event().wait()
    return ""


@server.tool
async def counts() -> dict[str, int]:
    """Return how many of everything this process has."""
    gc.collect()
    found = Counter(type(item).__name__ for item in gc.get_objects())
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {
        **{name: found[name] for name in sorted(COUNTED)},
        "tasks": len(asyncio.all_tasks()),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "children": len(children),
        "rss_kb": pages * os.sysconf("SC_PAGE_SIZE") // 1024,
    }
