"""A client of the NATS messaging system, for requests and responses between many machines.

    cluster = NatsCluster(parse_servers("nats://a,b,c"), NatsOptions(name="tools.notes"))
    await cluster.open()
    cluster.connection.publish("subject", b"payload")

It implements the part of NATS that remote calls need, instead of the official client nats-py. The
reasons are in docs/decisions/0070.
"""
