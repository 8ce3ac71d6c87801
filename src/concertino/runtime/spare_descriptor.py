"""spare_descriptor(): keeps a file descriptor in reserve, so that a failure can be reported."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress

__all__ = ["spare_descriptor"]


@contextmanager
def spare_descriptor() -> Generator[None, None, None]:
    """Hold a descriptor while the code of a server starts, and free it afterwards.

    That code may use up all descriptors of the process. The modules that report its failure are
    imported only after a failure, and an import needs a free descriptor.
    """
    try:
        spare = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        spare = -1
    try:
        yield
    finally:
        # The descriptor is -1 if none was free. It may also be closed already: code that makes the
        # process a daemon closes all descriptors.
        with suppress(OSError):
            os.close(spare)
