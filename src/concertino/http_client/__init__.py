"""Connections to MCP servers over HTTP ("Streamable HTTP"). Extra: http."""
