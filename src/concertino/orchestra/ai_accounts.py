"""AiAccounts: counts the tokens and time that each caller of a model uses, and limits tokens.

An AI provider (ai_provider.py) opens the account of the caller before it asks its model.
"""

from __future__ import annotations

from msgspec import Struct

from concertino.errors import ToolError

__all__ = ["AiAccount", "AiAccounts"]

# Callers beyond this number share one account, so that invented names cannot fill the memory.
MAX_CALLERS = 1000
OTHERS = "others"


class AiAccount(Struct):
    """What one caller has used since the start of the plugin.

    seconds: how long the caller has waited for answers, all calls together.
    """

    calls: int = 0
    failures: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0


class AiAccounts:
    """The accounts of all callers.

    max_tokens: how many tokens, input and output together, a caller may use; None for any number.
    """

    def __init__(self, max_tokens: int | None = None) -> None:
        self.max_tokens = max_tokens
        self.by_caller: dict[str, AiAccount] = {}

    def open(self, caller: str) -> AiAccount:
        """Return the account of a caller. Raises ToolError if its tokens are used up."""
        if caller not in self.by_caller and len(self.by_caller) >= MAX_CALLERS:
            caller = OTHERS
        account = self.by_caller.setdefault(caller, AiAccount())
        used = account.input_tokens + account.output_tokens
        if self.max_tokens is not None and used >= self.max_tokens:
            raise ToolError(
                "TOKENS_USED_UP",
                f"{caller} has used {used} of {self.max_tokens} tokens; raise "
                "max_tokens_per_caller in the plugin's config, or start the plugin again",
            )
        return account
