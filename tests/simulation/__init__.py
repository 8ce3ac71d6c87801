"""Deterministic simulation of the real peer, session, host, context and pipe: one thread, a virtual
clock, a seeded world.

    dice.py            every choice that the world makes, from a seed; or none at all
    loop.py            an asyncio loop whose clock jumps; its selector asks the kernel
    kernel.py          descriptors under the real pipe: capacity, short writes, EAGAIN, faults
    script.py          what a client sends, good and bad, in both eras, and how it leaves
    client.py          the client's process: sends, reads, stalls, closes and dies
    workshop.py        a backend whose handlers do what their call's plan says
    model.py           what the specification allows as answers: every frame in and out passes it
    world.py           one run: all of the above together, and what must hold after every turn
    interleavings.py   every order of the events around one request and two
    seeds.py           runs many seeds, or one and shows it
    proxy_world.py     a proxy between clients and processes of its server, which die at any step
    processes.py       those processes: they read, work, ask and end
    nats_world.py      plugins that call each other over NATS, and what happens to them
    nats_network.py    the network between those processes and the servers: late, cut, broken
    nats_server_model.py  the NATS servers, and what they tell each other
    faults.py          small fixed dialogues in which the n-th system call, allocation or turn fails

What is simulated is the world around concertino; nothing of concertino itself is replaced but the
name `os` (and `select`) in transports/pipe.py. Threads are not simulated here: `def` handlers and
files that cannot be polled have tests of their own.
"""
