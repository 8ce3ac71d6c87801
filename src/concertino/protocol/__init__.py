"""The MCP protocol: sessions, revisions, results on the wire. No I/O, no clock, no threads.

Session (session.py) is the server's side of one connection and uses nearly all other modules of
this package. Read two modules before it: call.py has the values that it exchanges with a backend,
and revisions.py says in tables how the five revisions differ.
"""
