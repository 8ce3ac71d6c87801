"""Proxy forwards calls to any MCP server. Servers does so for all servers in a server file.

Both are Backends: objects that answer the calls of MCP clients. A *server file* is a file such as
mcp.json, in which a host (an MCP client application) lists its servers. The modules, in an order
for reading:

- One server: proxy.py forwards calls; upstream.py is one connection to the server, and
  upstream_pool.py has all of them. forwarded_call.py, server_questions.py and parked_calls.py pass
  the server's requests, such as elicitations, to the client. event_streams.py passes on the
  notifications of events/stream. manifests.py remembers the lists of the server's last run.
- A server file: server_file.py reads it, with server_members.py, server_options.py and
  input_entries.py; expansion.py and secret_sources.py replace `${...}`. definitions.py and
  approvals.py record which servers the user has approved. file_parts.py, file_server.py and
  servers.py make one Backend of the approved servers.
- Commands: reloading.py and warm_program.py (a process that is started in advance) belong to
  `concertino dev`, running_proxies.py to `concertino ps`, and abandoned_servers.py to
  `concertino reap`.
"""

from __future__ import annotations

from concertino.loading import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concertino.proxy.proxy import Proxy as Proxy

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "concertino.proxy.proxy": ("Proxy",),
    },
)
