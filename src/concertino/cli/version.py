"""describe_versions(): the text of `concertino --version`."""

from __future__ import annotations

import platform
from importlib.util import find_spec

from concertino import __version__
from concertino.protocol.revisions import REVISIONS

# Extra -> a module that no other extra installs, in the order of pyproject.toml.
EXTRAS = {
    "validate": "jsonschema_rs",
    "library": "tantivy",
    "watch": "watchfiles",
    "tokens": "bpe_openai",
    "otel": "opentelemetry",
    "shell": "prompt_toolkit",
    "http": "websockets",
    "uvloop": "uvloop",
    "auth": "joserfc",
    "nats": "nkeys",
    "orchestra": "aioquic",
    "openai": "openai",
}


def describe_versions() -> str:
    """Return four lines of text.

    They have the version of the package, that of Python, the revisions of MCP, and which extras are
    installed.
    """
    # find_spec() does not import the module.
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
