"""The language of MCP: frames, messages, revisions, sessions. No I/O, no clock, no threads, no asyncio."""
