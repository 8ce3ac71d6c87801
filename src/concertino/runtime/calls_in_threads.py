"""Finds out which calls run in threads. Reads it from the thread pools; calls record nothing."""

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
