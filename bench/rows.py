"""The servers that are measured, one row of the table each. What is measured is in measure.py,
where it is installed in
workshop.py.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ROWS", "Row", "select_rows"]

ALL = (
    "cold",
    "memory",
    "sequential",
    "pipelined",
    "two_cores",
    "large_1m",
    "large_10m",
    "concurrent",
)
ECHO = ("cold", "memory", "sequential", "pipelined", "two_cores", "large_1m", "large_10m")
CALLS = ("sequential", "pipelined", "two_cores")
COLD = ("cold",)


@dataclass(frozen=True)
class Row:
    """One server in one era with one tool.

    command: {python}, {scripts} (a virtual environment's), {servers}, {node} and {bin} are filled
    in by the workshop.
    needs: the place in the workshop it lives in; the row is left out, with the reason, when that is
    missing.
    """

    name: str
    label: str
    needs: str
    command: tuple[str, ...]
    measures: tuple[str, ...] = ALL
    # 2025-11-25 after `initialize`; "modern" is 2026-07-28, with _meta on each request
    era: str = "legacy"
    tool: str = "echo"


def script(name: str) -> tuple[str, ...]:
    return ("{python}", "{servers}/" + name)


ROWS: tuple[Row, ...] = (
    Row("floor-c", "floor: C, echo without parsing", "c", ("{bin}/floor_echo",), ECHO),
    Row(
        "floor-start-bare",
        "floor: Python, nothing imported",
        "floor",
        script("floor_start_bare.py"),
        COLD,
    ),
    Row(
        "floor-start",
        "floor: asyncio + msgspec imported",
        "floor",
        script("floor_start_asyncio.py"),
        COLD,
    ),
    Row(
        "floor-blocking",
        "floor: Python, blocking loop, msgspec",
        "floor",
        script("floor_blocking.py"),
        ECHO,
    ),
    Row(
        "floor-asyncio", "floor: asyncio + msgspec, no session", "floor", script("floor_asyncio.py")
    ),
    Row("concertino", "**concertino**", "concertino", script("concertino_server.py")),
    Row(
        "concertino-modern",
        "**concertino**",
        "concertino",
        script("concertino_server.py"),
        era="modern",
    ),
    Row(
        "concertino-def",
        "**concertino**, `def`",
        "concertino",
        script("concertino_server.py"),
        CALLS,
        tool="echo_def",
    ),
    Row(
        "concertino-limits",
        "**concertino**, three limits",
        "concertino",
        (*script("concertino_guarded.py"), "limits"),
        CALLS,
    ),
    Row(
        "concertino-guards",
        "**concertino**, six guards",
        "concertino",
        (*script("concertino_guarded.py"), "all"),
        CALLS,
    ),
    Row(
        "concertino-serve",
        "`concertino serve`",
        "concertino",
        ("{scripts}/concertino", "serve", "{servers}/concertino_server.py"),
        COLD,
    ),
    Row("ts1", "TypeScript SDK v1", "node", ("{node}", "{servers}/typescript_v1.mjs")),
    Row("ts2", "TypeScript SDK v2", "node", ("{node}", "{servers}/typescript_v2.mjs")),
    Row(
        "ts2-modern",
        "TypeScript SDK v2",
        "node",
        ("{node}", "{servers}/typescript_v2.mjs"),
        era="modern",
    ),
    Row("go", "Go SDK", "go_sdk", ("{bin}/go_sdk",)),
    Row("mcp-low", "mcp, low level", "mcp", script("mcp_lowlevel.py")),
    Row("mcp-low-modern", "mcp, low level", "mcp", script("mcp_lowlevel.py"), era="modern"),
    Row("mcp-server", "mcp, MCPServer", "mcp", script("mcp_mcpserver.py")),
    Row("mcp-server-modern", "mcp, MCPServer", "mcp", script("mcp_mcpserver.py"), era="modern"),
    Row(
        "mcp-server-def",
        "mcp, MCPServer, `def`",
        "mcp",
        script("mcp_mcpserver.py"),
        CALLS,
        tool="echo_def",
    ),
    Row("fastmcp", "FastMCP", "fastmcp", script("fastmcp_server.py")),
    Row("fastmcp-modern", "FastMCP", "fastmcp", script("fastmcp_server.py"), era="modern"),
    Row(
        "fastmcp-def",
        "FastMCP, `def`",
        "fastmcp",
        script("fastmcp_server.py"),
        CALLS,
        tool="echo_def",
    ),
)


def select_rows(only: list[str]) -> tuple[Row, ...]:
    """The rows of these names; a name stands for its variants too (`mcp` for `mcp-low-modern`).
    Empty: all of them.

    Raises ValueError for a name that stands for nothing.
    """
    if not only:
        return ROWS
    for name in only:
        if not any(stands_for(name, row) for row in ROWS):
            raise ValueError(
                f"--only {name}: expected one of {', '.join(row.name for row in ROWS)}"
            )
    return tuple(row for row in ROWS if any(stands_for(name, row) for name in only))


def stands_for(name: str, row: Row) -> bool:
    return row.name == name or row.name.startswith(name + "-")
