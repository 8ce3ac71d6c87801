"""spare_descriptor(): keeps a file descriptor in reserve, so that a failure can be reported."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress

__all__ = ["spare_descriptor"]


@contextmanager
def spare_descriptor() -> Generator[None, None, None]:
    """Hold a descriptor while other code runs, and free it afterwards.

    That code may use up all descriptors of the process. Its failure is reported by modules that are
    imported only then, and an import needs a descriptor.
    """
    try:
        spare = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        spare = -1
    try:
        yield
    finally:
        # The code may have closed it.
        with suppress(OSError):
            os.close(spare)
