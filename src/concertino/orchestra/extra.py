"""The optional dependencies of this package: the extra `orchestra`."""

from __future__ import annotations

__all__ = ["MISSING_EXTRA"]

# The text of the ImportError that each module here raises when one of the packages is missing.
MISSING_EXTRA = (
    "hubs and plugins need protobuf, cryptography, aioquic and PyYAML: "
    "pip install 'concertino[orchestra]'"
)
