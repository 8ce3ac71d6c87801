"""The MCP protocol: sessions, revisions, results on the wire. No I/O, no clock, no threads.

Session (session.py) is the server's side of one conversation and uses nearly all other modules of
this package. revisions.py says in tables how the five revisions differ.
"""
