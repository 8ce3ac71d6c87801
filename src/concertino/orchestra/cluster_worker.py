"""ClusterWorker: runs a plugin as a worker in a NATS cluster: `python x.py --cluster ADDRESS`.

Without a cluster, a hub starts the process of a plugin, sends it the plugin's settings, and
forwards calls to it. In a cluster, a user starts the process with its settings. NATS distributes
the calls of the plugin among all of its processes (workers), which may run on several machines.
plugin_main.py uses a ClusterWorker for the flag --cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from concertino.errors import ConcertinoError
from concertino.nats.cluster import NatsCluster
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.nats_cluster import open_cluster
from concertino.orchestra.nats_link import NatsLink
from concertino.orchestra.nats_listener import NatsListener
from concertino.orchestra.plugin_messages import BootRequest, PluginRequest, PluginResponse
from concertino.orchestra.plugins_file import HUB
from concertino.orchestra.rpc_interface import RemotePeer, RequestHandler
from concertino.orchestra.runnable_plugin import RunnablePlugin

__all__ = ["ClusterWorker", "read_settings"]

THIS_PROCESS = RemotePeer("this process")


def read_settings(words: Sequence[str]) -> Mapping[str, str]:
    """Return the settings in `--config NAME=VALUE` flags.

    words: the values of the flags, such as "bucket=notes".
    Returns name -> value. If a name is repeated, its last value counts.
    Raises ValueError for a text without a name or without "=".
    """
    settings: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ValueError(f"--config: expected NAME=VALUE, got {word!r}")
        settings[name] = value
    return settings


class ClusterWorker:
    """Runs this process as a worker of a plugin: one of the processes that answer its calls.

    plugin: the plugin; its start() has been called.
    answer: handles each request of a hub or of another plugin, and returns the response.
    """

    def __init__(self, plugin: RunnablePlugin, answer: RequestHandler) -> None:
        self._plugin = plugin
        self._answer = answer
        self._cluster: NatsCluster | None = None
        self._listener: NatsListener | None = None

    async def open(
        self, address: str, certificates: Certificates, settings: Mapping[str, str]
    ) -> str:
        """Run the plugin's on_boot functions, and join the cluster.

        address: the NATS servers of the cluster, such as `tls://a,b,c` or `nats://HOST:PORT`.
        certificates: the certificates of the plugin; used only for an address with `tls://`.
        settings: the configuration for the on_boot functions.
        Returns the address of the plugin in the cluster, for messages.
        Raises ConcertinoError if an on_boot function fails, and the exceptions of open_cluster(),
        such as Disconnected if no server can be reached. Call close() after an error, too.
        """
        name = self._plugin.name
        request = PluginRequest(boot=BootRequest(config=settings))
        response = await self._plugin.answer(request, THIS_PROCESS)
        # answer() returns a stream only for a stream_start.
        if isinstance(response, PluginResponse) and not response.boot.ready:
            raise ConcertinoError(f"{name} cannot start: {response.boot.error}")

        self._cluster = await open_cluster(address, name, certificates)
        # Set the hub before calls arrive, so that the first call can already use other plugins.
        self._plugin.hub = NatsLink(self._cluster, name, HUB)
        manifest = self._plugin.manifest().SerializeToString()
        self._listener = NatsListener(self._cluster, name, self._answer, manifest=manifest)
        await self._listener.wait_accepted()
        return self._listener.address

    async def close(self, drain_s: float) -> None:
        """Accept no more calls, wait up to drain_s seconds for pending calls, and disconnect."""
        if self._listener is not None:
            await self._listener.close(drain_s)
        if self._plugin.hub is not None:
            await self._plugin.hub.close()
        if self._cluster is not None:
            await self._cluster.close()
