"""MCP servers of any kind as Backends, and the files that list them."""
