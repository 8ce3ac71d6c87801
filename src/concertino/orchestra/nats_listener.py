"""RPC connections over NATS: the callee's side, which answers requests.

A plugin uses a NatsListener to answer hubs. A hub uses one NatsListener to answer plugins, and one
for each plugin that it offers, to answer the calls of other hubs (cluster_offers.py). With a
NatsListener, a process becomes a worker of a plugin: NATS delivers each request to one of the
plugin's workers (nats_messages.py).

While the connection to the cluster is lost, the process gets no requests. It drops its responses,
because the callers have already received errors.
"""

from __future__ import annotations

import asyncio
from functools import partial

from concertino.errors import Disconnected
from concertino.nats.cluster import NatsCluster
from concertino.nats.connection import NatsConnection
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.nats_cluster import open_cluster
from concertino.orchestra.nats_worker import NatsWorker
from concertino.orchestra.rpc_interface import RelayHandler, RequestHandler

__all__ = ["NatsListener", "listen_nats_links"]


async def listen_nats_links(
    address: str,
    answer: RequestHandler,
    relay: RelayHandler | None,
    certificates: Certificates | None,
    name: str,
) -> NatsListener:
    """Connect to a cluster, and become a worker of a plugin there: answer requests to the plugin.

    address: the NATS servers, such as `tls://a,b,c` or `nats://HOST:PORT`.
    answer: handles each request that `relay` does not forward.
    relay: called first with each request, to forward it without decoding it. None if every request
        goes to `answer`.
    certificates: required for an address with `tls://`; None otherwise.
    name: the plugin's id. A suffix `-client`, as in the name of the certificate with which a plugin
        connects, is removed.
    Raises Disconnected if no server lets this process answer requests, and the exceptions of
    open_cluster().
    """
    name = name.removesuffix("-client")
    cluster = await open_cluster(address, name, certificates)
    listener = NatsListener(cluster, name, answer, relay, owns_cluster=True)
    listener.address = address
    try:
        await listener.wait_accepted()
    except BaseException:
        await listener.close()
        raise
    return listener


class NatsListener:
    """Answers the requests to a plugin or hub that NATS delivers to this process.

        listener = NatsListener(cluster, "tools.notes", answer)
        await listener.wait_accepted()

    It implements RpcListener (rpc_interface.py). Requests may arrive as soon as it is created.

    cluster: the connection to the NATS servers. It reconnects when it is lost.
    name: the plugin's id; `orchestrator` for a hub.
    answer: handles each request that `relay` does not forward.
    relay: called first with each request, to forward it without decoding it. None if every request
        goes to `answer`.
    manifest: the serialized manifest of the plugin, which is sent to the hubs; None if hubs should
        not find this process.
    owns_cluster: whether close() also closes the cluster.

    Attribute:
    address: the address of this side, for messages.
    """

    def __init__(
        self,
        cluster: NatsCluster,
        name: str,
        answer: RequestHandler,
        relay: RelayHandler | None = None,
        manifest: bytes | None = None,
        *,
        owns_cluster: bool = False,
    ) -> None:
        self.address = f"nats:{name}"
        self._cluster = cluster
        self._owns_cluster = owns_cluster
        self._manifest = manifest
        self._start_worker = partial(NatsWorker, cluster, name, answer, relay)
        # Connection -> its worker. There are two while one connection replaces the other.
        self._workers: dict[NatsConnection, NatsWorker] = {}
        cluster.on_connect.append(self._begin)
        cluster.on_retire.append(self._retire)
        if cluster.is_up:
            self._begin(cluster.connection)

    async def wait_accepted(self) -> None:
        """Wait until the server has accepted the subscriptions, so that requests arrive.

        Raises Disconnected if the server does not allow this process to answer requests.
        """
        connection = self._cluster.connection
        # If the server refuses the subscription, its error arrives before flush() returns.
        await connection.flush()
        worker = self._workers.get(connection)
        if worker is not None and worker.refusal:
            raise Disconnected(f"{connection.server}: {worker.refusal}")

    def announce(self, manifest: bytes) -> None:
        """Send this manifest to the hubs now, and whenever they request announcements."""
        self._manifest = manifest
        for worker in self._workers.values():
            worker.change_manifest(manifest)

    def leave(self) -> None:
        """Stop accepting requests. Requests in progress go on until close()."""
        for worker in self._workers.values():
            worker.leave()

    def _begin(self, connection: NatsConnection) -> None:
        """Start a worker on a new connection."""
        self._workers[connection] = self._start_worker(self._manifest, connection)
        connection.ended.add_done_callback(self._end_workers)

    def _end_workers(self, _: object) -> None:
        """End the workers of connections that have ended."""
        for connection in [item for item in self._workers if item.ended.done()]:
            self._workers.pop(connection).end()

    def _retire(self, connection: NatsConnection) -> None:
        """Accept no more requests on a connection, because another connection has replaced it."""
        # There is no worker if this listener was created after the connection was replaced.
        worker = self._workers.get(connection)
        if worker is not None:
            worker.leave()

    async def close(self, drain_s: float = 0.0) -> None:
        """Stop accepting requests, wait up to drain_s seconds for responses, and cancel the rest.

        A second call does nothing.
        """
        # The first call removes _begin.
        if self._begin not in self._cluster.on_connect:
            return
        self._cluster.on_connect.remove(self._begin)
        self._cluster.on_retire.remove(self._retire)
        self.leave()
        try:
            if drain_s and self._workers:
                await self._drain(drain_s)
        finally:
            for connection, worker in self._workers.items():
                connection.ended.remove_done_callback(self._end_workers)
                worker.end()
            self._workers.clear()
        if self._owns_cluster:
            await self._cluster.close()

    async def _drain(self, drain_s: float) -> None:
        """Wait up to drain_s seconds until every accepted request has its response."""
        drains = [asyncio.ensure_future(worker.drain()) for worker in self._workers.values()]
        try:
            await asyncio.wait(drains, timeout=drain_s)
        finally:
            for task in drains:
                task.cancel()
