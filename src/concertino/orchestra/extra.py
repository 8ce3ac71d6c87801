"""The optional dependencies of this package: the extra `orchestra`."""

from __future__ import annotations

__all__ = ["missing_extra"]


def missing_extra() -> str:
    """Return the text of the ImportError that a module here raises when a package is missing."""
    from concertino.installation import install_extra

    return "hubs and plugins need protobuf, cryptography, aioquic and PyYAML: " + install_extra(
        "orchestra"
    )
