"""A client of the NATS messaging system, for requests and responses between many machines.

    cluster = NatsCluster(parse_servers("nats://a,b,c"), NatsOptions(name="tools.notes"))
    await cluster.open()
    cluster.connection.publish("subject", b"payload")

Hubs and plugins on several machines (orchestra/nats_cluster.py) and HTTP front ends that share
sessions use it. It implements the part of NATS that they need, instead of the official client
nats-py. The reasons are in docs/decisions/0070.
"""
