"""The command-line flags that the program of every plugin accepts.

A hub passes some of these flags when it starts a plugin. This module imports no other module of the
package, so that `concertino plugin` can load it quickly.
"""

from __future__ import annotations

from argparse import ArgumentParser

__all__ = ["add_flags"]


def add_flags(parser: ArgumentParser) -> None:
    """Add --listen-addr, --orchestrator-addr, --cluster, --config, --certs-dir and --manifest.

    parser: the parser of the program of a plugin.
    Source: the Orchestra plugin protocol, "SDK".
    """
    parser.add_argument(
        "--listen-addr",
        metavar="ADDR",
        default="localhost:0",
        help="unix:PATH, or HOST:PORT for QUIC",
    )
    parser.add_argument("--orchestrator-addr", metavar="ADDR", help="the hub, to register there")
    parser.add_argument(
        "--cluster",
        metavar="ADDR",
        help="a NATS cluster to offer the plugin in, instead of to one hub: tls://HOST,HOST,...",
    )
    parser.add_argument(
        "--config",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="with --cluster: a setting for the plugin's on_boot functions; repeatable",
    )
    parser.add_argument(
        "--certs-dir", metavar="DIR", help="certificates (default ~/.orchestra/certs)"
    )
    parser.add_argument(
        "--manifest",
        action="store_true",
        help="print the plugin's manifest as one line of JSON, and exit",
    )
