"""AiAccounts: counts the tokens and time that each caller of a model uses, and limits tokens.

An AI provider (ai_provider.py) is a plugin, a program with tools that a hub starts. When another
plugin or an MCP client calls one of its tools, the tool sends a request to a model. This call of
the model is counted in the account of the plugin or client.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from time import monotonic

from msgspec import Struct

from concertino.errors import ToolError

__all__ = ["AiAccount", "AiAccounts"]

# Callers beyond this number share one account, so that invented names cannot fill the memory.
MAX_CALLERS = 1000
OTHERS = "others"


class AiAccount(Struct):
    """What one caller has used since the AI provider was started.

    calls: how many calls of a model the caller has made.
    failures: how many of these calls have failed or were cancelled.
    input_tokens, output_tokens: how many tokens the requests and the answers had. If an answer
        does not contain these numbers, they are estimated (chat_messages.py).
    seconds: how long all calls together took.
    """

    calls: int = 0
    failures: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0


class AiAccounts:
    """The accounts of all callers of one AI provider.

    max_tokens: how many tokens, input and output together, a caller may use in all its calls; None
        for any number.

    Attributes:
    max_tokens: the argument; may be changed at any time.
    by_caller: name of a caller -> account.
    """

    def __init__(self, max_tokens: int | None = None) -> None:
        self.max_tokens = max_tokens
        self.by_caller: dict[str, AiAccount] = {}
        # Caller -> how many tokens the answers to its calls in progress may have.
        self._reserved: Counter[str] = Counter()

    @contextmanager
    def count_call(
        self, caller: str, answer_tokens: int
    ) -> Generator[tuple[AiAccount, int], None, None]:
        """Count the call of a model that is made inside this `with` block.

        Yields (the account of the caller, how many tokens the answer may have: answer_tokens, or
        less if the caller has fewer tokens left). The block must add the tokens of the request and
        of the answer to the account, even if the call fails. The call itself, its time and its
        failure are counted without the block.
        caller: the name of the plugin or client that has called the tool.
        answer_tokens: how many tokens the caller requests for the answer; at least 1.
        Raises ToolError, before the block, if the tokens of the caller are used up.
        """
        if caller not in self.by_caller and len(self.by_caller) >= MAX_CALLERS:
            caller = OTHERS
        account = self.by_caller.setdefault(caller, AiAccount())
        used = account.input_tokens + account.output_tokens
        # Tokens of calls in progress count as used, so that calls at the same time cannot use more
        # tokens than the caller has.
        reserved = self._reserved[caller]
        if self.max_tokens is not None:
            left = self.max_tokens - used - reserved
            if left <= 0:
                more = f", and its calls in progress may use {reserved} more" if reserved else ""
                raise ToolError(
                    "TOKENS_USED_UP",
                    f"{caller} has used {used} of {self.max_tokens} tokens{more}; raise "
                    "max_tokens_per_caller in the plugin's config, or start the plugin again",
                )
            answer_tokens = min(answer_tokens, left)
        account.calls += 1
        self._reserved[caller] += answer_tokens
        began = monotonic()
        try:
            yield account, answer_tokens
        except BaseException:
            account.failures += 1
            raise
        finally:
            account.seconds += monotonic() - began
            self._reserved[caller] -= answer_tokens
