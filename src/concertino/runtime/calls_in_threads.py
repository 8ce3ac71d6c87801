"""kinds_in_threads(): finds out which calls run in threads.

The answer is read from the thread pools when it is needed, so calls need not record anything.
OutputFlow uses it to limit the memory for results of slow `def` handlers.
"""

from __future__ import annotations

import asyncio

from concertino.jsonrpc.requests import Kind
from concertino.protocol.request_profile import SessionRequest
from concertino.runtime.tasks import subject_of
from concertino.runtime.threads import tasks_in_threads

__all__ = ["kinds_in_threads"]


def kinds_in_threads(loop: asyncio.AbstractEventLoop) -> set[Kind]:
    """Return the kinds of the calls on an event loop whose code runs in threads now."""
    subjects = map(subject_of, tasks_in_threads(loop))
    return {
        subject.kind
        for subject in subjects
        if isinstance(subject, SessionRequest) and subject.kind is not None
    }
