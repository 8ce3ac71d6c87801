"""AI providers: plugins whose tools send requests to a model, with OpenAI's SDK (extra `openai`).

A hub, which starts plugins and forwards calls to their tools, starts the providers with these
commands:

    concertino plugin openai    OpenAI; the key is in OPENAI_API_KEY
    concertino plugin gemini    Gemini; the key is in GEMINI_API_KEY
    concertino plugin local     a server on this machine with OpenAI's interface, such as Ollama

Each provider has three tools:

    ai_prompt    asks a question; the parameters are those of Orchestra's implementation in Go
    ai_sample    takes a sampling request of MCP; PluginContext.sample() calls it
    ai_usage     returns the tokens and time that each caller has used

Keys come from the environment or from a secret, never from command-line arguments, because these
are logged and shown.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, ValidationError, convert, to_builtins

from concertino.backend.interface import Context
from concertino.errors import ConcertinoError, ToolError
from concertino.installation import missing_extra
from concertino.orchestra.ai_accounts import AiAccounts
from concertino.orchestra.chat_messages import (
    ChatAnswer,
    ChatStream,
    chat_parameters,
    sampling_result,
)
from concertino.orchestra.plugin import Plugin
from concertino.proxy.secret_sources import SECRET, parse_secret, read_secret
from concertino.types.client_requests import Sampling, SamplingMessage
from concertino.types.results import TextContent

__all__ = ["PROVIDERS", "ProviderKind", "make_provider"]

# The default limits of an answer, in tokens and in seconds.
MAX_TOKENS = 4096
ANSWER_S = 120.0
# How many times the SDK repeats a request after a failure such as HTTP status 429.
RETRIES = 2


class ProviderKind(Struct, frozen=True):
    """How to reach the API of one provider.

    key_variable: the environment variable with the API key; "" if none is needed.
    base_url: the URL of the API; None for the default of the SDK.
    model: the default model; "" if the configuration must name one.
    limit: the name of the request's parameter that limits the tokens of the answer.
    """

    key_variable: str
    base_url: str | None
    model: str
    limit: str = "max_tokens"


PROVIDERS: Mapping[str, ProviderKind] = {
    "openai": ProviderKind(
        key_variable="OPENAI_API_KEY",
        base_url=None,
        model="gpt-4o-mini",
        limit="max_completion_tokens",
    ),
    "gemini": ProviderKind(
        key_variable="GEMINI_API_KEY",
        base_url="https://generativelanguage.googleapis.com/v1beta/openai/",
        model="gemini-2.5-flash",
    ),
    "local": ProviderKind(key_variable="", base_url="http://127.0.0.1:11434/v1", model=""),
}
# The settings that the configuration of a provider may have.
CONFIG = ("model", "base_url", "max_tokens_per_caller", "timeout_s")

TextCallback = Callable[[str], Awaitable[None]]
"""Called with each piece of an answer's text as it arrives, to send it as progress."""


class _Model:
    """The model of a provider, which is called with OpenAI's SDK. Call open() before complete().

    provider: a key of PROVIDERS.

    Attributes:
    kind: how to reach the API of the provider.
    name: the name of the model.
    """

    def __init__(self, provider: str) -> None:
        self.kind = PROVIDERS[provider]
        self.name = self.kind.model
        self._client: Any = None
        self._openai: Any = None

    def open(self, config: Mapping[str, str], environment: Mapping[str, str]) -> None:
        """Create the client of the SDK.

        config: the settings in the plugin's configuration: setting -> value. The names in CONFIG
            are allowed, and none of them is required.
        environment: the environment variables, with the API key in `kind.key_variable`.
        Raises ConcertinoError if a setting is wrong, the key is missing, or the SDK is not
        installed.
        """
        for setting in config:
            if setting not in CONFIG:
                expected = ", ".join(CONFIG)
                raise ConcertinoError(f"config: expected {expected}, got {setting!r}")
        self.name = config.get("model", self.kind.model)
        if not self.name:
            raise ConcertinoError("config.model: expected the name of a model, got none")
        self._openai = openai = _import_sdk()
        self._client = openai.AsyncOpenAI(
            api_key=_read_key(self.kind.key_variable, environment),
            base_url=config.get("base_url", self.kind.base_url),
            timeout=_read_positive(config, "timeout_s", ANSWER_S),
            max_retries=RETRIES,
        )

    async def complete(
        self, chat: ChatStream, on_text: TextCallback, **parameters: Any
    ) -> ChatAnswer:
        """Send a chat completion to the model, and return the answer.

        chat: collects the chunks of the answer. It has the chunks so far if this method raises.
        on_text: called with each piece of the answer's text as it arrives.
        parameters: the parameters of the chat completion, such as `model` and `messages`.
        Raises ToolError with the reason if there is no answer.
        """
        # Set is_refused if no tokens were used, so that count_tokens() does not estimate them. Do
        # not set it after a time-out, because the provider may have worked on the request.
        if self._client is None:
            chat.is_refused = True
            raise ToolError("NOT_READY", "the provider was not started by a hub")
        openai = self._openai
        try:
            stream = await self._client.chat.completions.create(
                stream=True, stream_options={"include_usage": True}, **parameters
            )
        except openai.APITimeoutError:
            raise ToolError("TIMEOUT", "the model did not answer in time") from None
        except openai.APIConnectionError as exc:
            chat.is_refused = True
            reason = exc.__cause__ or exc
            raise ToolError("UNREACHABLE", f"the model cannot be reached: {reason}") from None
        except openai.APIError as exc:
            chat.is_refused = True
            raise _failure(openai, exc) from None

        try:
            async with stream:
                async for chunk in stream:
                    if text := chat.add(chunk):
                        await on_text(text)
        except openai.APITimeoutError:
            raise ToolError("TIMEOUT", "the answer of the model did not go on in time") from None
        except openai.APIConnectionError as exc:
            reason = exc.__cause__ or exc
            text = f"the answer of the model is incomplete: {reason}"
            raise ToolError("INCOMPLETE", text) from None
        except openai.APIError as exc:
            raise _failure(openai, exc) from None
        return chat.end()

    async def close(self) -> None:
        """Close the connections to the provider. Does nothing before open()."""
        if self._client is not None:
            await self._client.close()


def _failure(openai: Any, exc: Any) -> ToolError:
    """Return the error for an APIError of the SDK.

    openai: the module of the SDK.
    """
    if isinstance(exc, openai.RateLimitError):
        return ToolError("RATE_LIMITED", f"the provider limits requests: {exc}")
    status = exc.status_code if isinstance(exc, openai.APIStatusError) else "no status"
    return ToolError("API_ERROR", f"the provider answered {status}: {exc}")


def _import_sdk() -> Any:
    try:
        import openai
    except ImportError:
        raise ConcertinoError(missing_extra("an AI provider", "openai")) from None
    return openai


def _read_key(variable: str, environment: Mapping[str, str]) -> str:
    """Return the API key that an environment variable contains.

    A value that begins with `secret:` names a file or a command from which the key is read
    (secret_sources.py).
    variable: the name of the variable; "" for a provider without a key.
    Raises ConcertinoError if the variable is not set, or the secret cannot be read.
    """
    if not variable:
        # A server on this machine needs no key, but the SDK does not accept an empty one.
        return "none"
    text = environment.get(variable, "")
    if not text:
        raise ConcertinoError(
            f"{variable} is not set: name it under `env` in plugins.yaml, so that the hub passes "
            "it on"
        )
    if not text.startswith(SECRET):
        return text
    try:
        return read_secret(parse_secret(text.removeprefix(SECRET)), Path.cwd())
    except ValueError as exc:
        raise ConcertinoError(f"{variable}: {exc}") from None


def _read_positive(config: Mapping[str, str], name: str, default: float = 0.0) -> float:
    """Return a setting that must be a positive number. Raises ConcertinoError if it is not.

    default: the value of a setting that is missing.
    """
    text = config.get(name, str(default))
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ConcertinoError(f"config.{name}: expected a positive number, got {text!r}")
    return number


def make_provider(name: str, id: str) -> Plugin:
    """Return a plugin whose tools send requests to the models of a provider.

    name: a key of PROVIDERS, such as "openai".
    id: the id of the plugin.
    """
    plugin = Plugin(id, description=f"Asks models: {name}.", provides_ai=[name])
    model, accounts = _Model(name), AiAccounts()

    async def sample(request: Sampling, model_name: str, context: Context) -> ChatAnswer:
        """Let a model answer a request, and count its tokens in the account of the caller."""
        caller = str(context.meta.get("orchestra/caller") or "unknown")
        pieces = 0

        async def send_progress(text: str) -> None:
            nonlocal pieces
            pieces += 1
            await context.progress(pieces, None, text)

        if request.max_tokens < 1:
            # A negative number would make room for more tokens in the account.
            message = f"max_tokens: expected a positive number, got {request.max_tokens}"
            raise ToolError("INVALID_REQUEST", message)
        parameters = chat_parameters(request)
        chat = ChatStream(parameters)
        # max_tokens: at most what the caller has left. The tokens are added to the account below.
        with accounts.count_call(caller, request.max_tokens) as (account, max_tokens):
            limit = {model.kind.limit: max_tokens}
            try:
                return await model.complete(
                    chat, send_progress, model=model_name or model.name, **parameters, **limit
                )
            finally:
                input_tokens, output_tokens = chat.count_tokens()
                account.input_tokens += input_tokens
                account.output_tokens += output_tokens

    @plugin.tool
    async def ai_prompt(  # pyright: ignore[reportUnusedFunction]
        prompt: str,
        context: Context,
        model: str = "",
        system_prompt: str = "",
        max_tokens: int = MAX_TOKENS,
    ) -> str:
        """Ask a model a question."""
        messages = [SamplingMessage("user", TextContent(prompt))]
        request = Sampling(messages, max_tokens, system_prompt=system_prompt or None)
        answer = await sample(request, model, context)
        return answer.text or answer.refusal

    @plugin.tool
    async def ai_sample(  # pyright: ignore[reportUnusedFunction]
        request: dict[str, Any], context: Context
    ) -> dict[str, Any]:
        """Let a model continue a conversation: a sampling request of MCP, and its result."""
        try:
            sampling = convert(request, Sampling)
        except ValidationError as exc:
            raise ToolError("INVALID_REQUEST", f"request: {exc}") from None
        return to_builtins(sampling_result(await sample(sampling, "", context)))

    @plugin.tool
    def ai_usage() -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """Return the tokens and seconds that each caller has used since the start."""
        return to_builtins(accounts.by_caller)

    @plugin.on_boot
    async def open_model(config: dict[str, str]) -> None:  # pyright: ignore[reportUnusedFunction]
        # Without this setting, callers have no limit.
        if "max_tokens_per_caller" in config:
            accounts.max_tokens = int(_read_positive(config, "max_tokens_per_caller"))
        # This runs in a thread, because importing the SDK takes about a second, and the program
        # that reads a secret may ask the user.
        await asyncio.to_thread(model.open, config, os.environ)

    plugin.on_shutdown(model.close)
    return plugin
