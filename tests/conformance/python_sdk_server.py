"""The everything server of the official Python SDK, over stdio: python_sdk_server.py FOLDER."""

from __future__ import annotations

import sys

sys.path.insert(0, sys.argv[1])

from mcp_everything_server import server

server.mcp.run("stdio")
