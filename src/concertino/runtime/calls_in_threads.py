"""kinds_in_threads(): returns the kinds of the calls that run in threads.

The kind of a call is its method and the name of its tool or prompt (jsonrpc/incoming_requests.py).
OutputFlow uses this function to limit the memory for results of slow `def` handlers. The function
looks into the thread pools, so calls need not record anything.
"""

from __future__ import annotations

import asyncio

from concertino.jsonrpc.incoming_requests import Kind
from concertino.protocol.request_profile import SessionRequest
from concertino.runtime.tasks import subject_of
from concertino.runtime.threads import tasks_in_threads

__all__ = ["kinds_in_threads"]


def kinds_in_threads(loop: asyncio.AbstractEventLoop) -> set[Kind]:
    """Return the kinds of the calls of an event loop that run in threads now.

    The kind of a call is its method and the name of its tool or prompt. Other calls have no kind.
    """
    subjects = map(subject_of, tasks_in_threads(loop))
    return {
        subject.kind
        for subject in subjects
        if isinstance(subject, SessionRequest) and subject.kind is not None
    }
