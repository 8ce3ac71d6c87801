"""What is measured against what: every version in one place.

Transitive dependencies are whatever these resolve to on the day; what was really installed is
printed, and all of it stands in the JSON file.
"""

from __future__ import annotations

__all__ = ["GO_MODULES", "NODE_PACKAGES", "PYTHON_PACKAGES"]

# One virtual environment each, all on the interpreter of the run (--python).
PYTHON_PACKAGES: dict[str, tuple[str, ...]] = {
    "floor": ("msgspec==0.22.0",),
    # And the checkout this file belongs to, not editable. uvicorn, uvloop: for http_server.py.
    "concertino": ("msgspec==0.22.0", "httptools==0.9.0", "uvloop==0.23.0", "uvicorn==0.54.0"),
    # For http.py: the floors, and our server with its extra and an ASGI server to mount it in.
    "http_floor": ("msgspec==0.22.0", "httptools==0.9.0", "uvloop==0.23.0", "uvicorn==0.54.0"),
    "mcp": ("mcp==2.3.0",),
    # For http_gateways.py, as are supergateway and mcp-remote below.
    "mcp_proxy": ("mcp-proxy==0.13.0",),
    "fastmcp": (
        "fastmcp==4.1.2",
    ),  # 4.1.4 and 4.1.6 ask for a certifi newer than the index we used had
}

NODE_PACKAGES: dict[str, str] = {
    "@modelcontextprotocol/sdk": "1.32.2",
    "@modelcontextprotocol/client": "2.4.0",  # for clients.py
    "@modelcontextprotocol/server": "2.4.0",
    "@hono/node-server": "2.1.3",  # for http_server.py: what @modelcontextprotocol/node uses
    "zod": "4.6.7",
    "supergateway": "4.0.0",
    "mcp-remote": "0.15.1",
}

GO_MODULES: dict[str, str] = {
    "github.com/modelcontextprotocol/go-sdk": "v1.8.0",
}
