"""The MCP protocol: sessions, revisions, results on the wire. No I/O, no clock, no threads."""
