"""kinds_in_threads(): finds out of which kinds the calls are that run in threads.

The kind of a call is its method and the name of its tool or prompt (jsonrpc/incoming_requests.py).
OutputFlow uses this function to limit the memory for results of slow `def` handlers. It reads the
thread pools only then, so calls need not record anything.
"""

from __future__ import annotations

import asyncio

from concertino.jsonrpc.incoming_requests import Kind
from concertino.protocol.request_profile import SessionRequest
from concertino.runtime.tasks import subject_of
from concertino.runtime.threads import tasks_in_threads

__all__ = ["kinds_in_threads"]


def kinds_in_threads(loop: asyncio.AbstractEventLoop) -> set[Kind]:
    """Return the kinds of those calls of an event loop that run in a thread now.

    The kind of a call is its method and the name of its tool or prompt.
    """
    subjects = map(subject_of, tasks_in_threads(loop))
    return {
        subject.kind
        for subject in subjects
        if isinstance(subject, SessionRequest) and subject.kind is not None
    }
