"""An event loop for a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on a loop of its own, within 30 s.

    A test that has an argument `loop_factory` says of which kind.
    """

    @wraps(test)
    def run_it(*args: Any, **kwargs: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(30):
                await test(*args, **kwargs)

        with asyncio.Runner(loop_factory=kwargs.get("loop_factory")) as runner:
            runner.run(bounded())

    return run_it
