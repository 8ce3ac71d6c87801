"""`concertino --version`."""

from __future__ import annotations

import platform
from importlib.util import find_spec

from concertino import __version__
from concertino.protocol.revisions import REVISIONS

__all__ = ["version"]

# Extra -> a module that it installs.
EXTRAS = {
    "validate": "jsonschema_rs",
    "library": "tantivy",
    "watch": "watchfiles",
    "tokens": "bpe_openai",
    "otel": "opentelemetry",
    "orchestra": "aioquic",
}


def version() -> str:
    """Return the versions of package, Python and protocol, and the extras that are installed."""
    extras = (
        f"{name} ({'installed' if find_spec(module) else 'not installed'})"
        for name, module in EXTRAS.items()
    )
    return "\n".join(
        (
            f"concertino {__version__}",
            f"{platform.python_implementation()} {platform.python_version()}",
            f"MCP {', '.join(revision.name for revision in REVISIONS)}",
            f"extras: {', '.join(extras)}",
        )
    )
