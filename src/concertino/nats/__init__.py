"""A client of the NATS messaging system, for requests and responses between many machines.

    cluster = NatsCluster(parse_servers("nats://a,b,c"), NatsOptions(name="tools.notes"))
    await cluster.open()
    cluster.connection.publish("subject", b"payload")

Hubs and plugins on several machines use this client (orchestra/nats_cluster.py). HTTP front ends
use it too: processes on several machines that serve the same MCP server and share its sessions. It
implements the part of NATS that they need. docs/decisions/0070 says why it is used instead of the
official client nats-py.
"""
