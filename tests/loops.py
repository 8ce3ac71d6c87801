"""An event loop for a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

Test = Callable[..., Coroutine[Any, Any, None]]


def on_a_loop(test: Test) -> Callable[..., None]:
    """Run a test on a loop of its own, within 30 s.

    A test that has an argument `loop_factory` says of which kind.
    """
    return on_a_loop_within(30)(test)


def on_a_loop_within(limit_s: float) -> Callable[[Test], Callable[..., None]]:
    """Run a test on a loop of its own, within this time: for tests that compute for seconds."""

    def decorate(test: Test) -> Callable[..., None]:
        @wraps(test)
        def run_it(*args: Any, **kwargs: Any) -> None:
            async def bounded() -> None:
                async with asyncio.timeout(limit_s):
                    await test(*args, **kwargs)

            with asyncio.Runner(loop_factory=kwargs.get("loop_factory")) as runner:
                runner.run(bounded())

        return run_it

    return decorate
