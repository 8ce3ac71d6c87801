"""AiAccounts: counts for each caller of a model the tokens and the time, and limits the tokens."""

from __future__ import annotations

from msgspec import Struct

from concertino.errors import ToolError

__all__ = ["AiAccount", "AiAccounts"]

# Callers beyond this number share one account, so that names that are made up cost no memory.
MAX_CALLERS = 1000
OTHERS = "others"


class AiAccount(Struct):
    """What one caller has used since the start of the plugin. seconds: of waiting for answers."""

    calls: int = 0
    failures: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0


class AiAccounts:
    """The accounts by caller.

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
