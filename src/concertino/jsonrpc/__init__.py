"""JSON-RPC 2.0: framing, messages and one end of a conversation. No I/O, no clock, no threads."""
