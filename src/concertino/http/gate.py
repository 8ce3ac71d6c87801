"""Gate: admits the requests with a valid token, and refuses all others.

It reads the token from the header Authorization, asks the TokenVerifiers, and caches their results
(verified_tokens.py). Tokens in the query or in the body are not accepted.
Source: RFC 6750; 2026-07-28 basic/authorization "Token Handling".
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable
from hashlib import sha256
from inspect import iscoroutine

from concertino.http.authorization import (
    Authorization,
    InvalidToken,
    VerifierUnavailable,
)
from concertino.http.challenges import Challenges
from concertino.http.request_head import HttpError, RequestHead, unavailable
from concertino.http.verified_tokens import VerifiedTokens
from concertino.protocol.principal import Principal

__all__ = ["Gate"]

log = logging.getLogger("concertino.http")

# The longest token, in bytes. Longer ones are refused without being verified.
MAX_TOKEN_BYTES = 8 * 1024
# How many tokens may wait at the same time for verifiers that ask another server.
MAX_PENDING = 256
# How long a verifier may wait for another server, in seconds.
VERIFY_S = 15.0
# RFC 6750, section 2.1: b64token.
TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]+=*")


class Gate:
    """Admits the requests with a valid token, and refuses all others.

    A token is valid if a verifier of the Authorization accepts it and it has all required scopes.

    authorization: the verifiers of tokens, and the scopes that every token must have.
    challenges: makes the errors that refuse requests, with the header WWW-Authenticate.
    """

    def __init__(self, authorization: Authorization, challenges: Challenges) -> None:
        self._verifiers = authorization.make_verifiers()
        self._scopes = authorization.scopes
        self.challenges = challenges
        loop = asyncio.get_running_loop()
        self._tokens = VerifiedTokens(authorization.cache_s, loop.time, time.time)
        # SHA-256 of a token -> its running verification. Requests with the same token wait for the
        # same verification.
        self._pending: dict[bytes, asyncio.Task[Principal]] = {}

    def admit(self, head: RequestHead) -> Principal | asyncio.Future[Principal]:
        """Return the principal (user) to whom the bearer token of a request belongs.

        Returns a future of the principal if a verifier must first ask another server, such as the
        authorization server.
        Raises HttpError, from this method or from the future, to refuse the request.
        """
        token = self._read_token(head)
        digest = sha256(token).digest()
        try:
            principal = self._tokens.find(digest)
            if principal is not None:
                return self._check(principal)
            if (pending := self._pending.get(digest)) is not None:
                # Shielded, because other requests wait for the same task.
                return asyncio.shield(pending)
            # Check the token after the look-up in the cache, because the check takes 1 us for a
            # long token, and a token in the cache has already passed it.
            if TOKEN.fullmatch(token) is None:
                raise self.challenges.malformed("Authorization: expected Bearer and a token")
            result = self._verify(token.decode("ascii"), digest, 0)
        except InvalidToken as exc:
            raise self.challenges.invalid_token(str(exc)) from None
        return result if isinstance(result, asyncio.Future) else self._check(result)

    def _read_token(self, head: RequestHead) -> bytes:
        """Return the token of a request. Raises HttpError 401 if it has none, 400 if malformed."""
        value = head.headers.get(b"authorization")
        if value is None:
            raise self.challenges.no_token()
        if b"authorization" in head.repeated:
            raise self.challenges.malformed("Authorization: it came more than once")
        scheme, _, token = value.partition(b" ")
        if scheme.lower() != b"bearer":
            raise self.challenges.no_token()
        token = token.strip(b" ")
        if len(token) > MAX_TOKEN_BYTES:
            raise self.challenges.malformed(
                f"Authorization: the token has more than {MAX_TOKEN_BYTES} bytes"
            )
        return token

    def _check(self, principal: Principal) -> Principal:
        """Return the principal. Raises HttpError 403 if its token lacks a scope."""
        if principal.lacks(self._scopes):
            raise self.challenges.insufficient_scope(self._scopes)
        return principal

    def _verify(
        self, token: str, digest: bytes, first: int
    ) -> Principal | asyncio.Future[Principal]:
        """Ask the verifiers, one after the other, until one accepts the token.

        Returns the principal of the token, or a future of it if a verifier asks another server.
        first: the index of the first verifier to ask.
        Raises InvalidToken with the reason of the last verifier, and HttpError if one has failed.
        """
        reason = ""
        for number in range(first, len(self._verifiers)):
            try:
                result = self._verifiers[number].verify(token)
            except InvalidToken as exc:
                reason = str(exc)
                continue
            except Exception as exc:
                raise _not_verified(exc) from None
            if isinstance(result, Principal):
                return self._accept(digest, result)
            return self._start_waiting(token, digest, number, result)
        self._tokens.refuse(digest, reason)
        raise InvalidToken(reason)

    def _accept(self, digest: bytes, principal: Principal) -> Principal:
        """Store the principal of a token in the cache, and return it."""
        self._tokens.accept(digest, principal)
        return principal

    def _start_waiting(
        self, token: str, digest: bytes, number: int, verification: Awaitable[Principal]
    ) -> asyncio.Future[Principal]:
        """Start a task that waits for the result of a verifier, and return a future of it.

        number: the index of the verifier.
        verification: the awaitable that the verifier has returned.
        Raises HttpError 503 if too many tasks wait.
        """
        # If an earlier verifier has asked a server and refused the token, _wait() has called this
        # method: the token is in _pending already, and the new task replaces the task of _wait(),
        # which waits for the new one.
        if len(self._pending) >= MAX_PENDING and digest not in self._pending:
            if iscoroutine(verification):
                # Nobody waits for it, and Python would warn about that.
                verification.close()
            raise unavailable("too many tokens are being verified")
        waiting = asyncio.ensure_future(self._wait(token, digest, number, verification))
        self._pending[digest] = waiting

        def on_done(task: asyncio.Task[Principal]) -> None:
            if self._pending.get(digest) is task:
                del self._pending[digest]
            if not task.cancelled():
                # Read the exception: otherwise asyncio would log it if no request waits any more.
                task.exception()

        waiting.add_done_callback(on_done)
        return asyncio.shield(waiting)

    async def _wait(
        self, token: str, digest: bytes, number: int, verification: Awaitable[Principal]
    ) -> Principal:
        """Wait for the result of a verifier, and return the principal of the token.

        If the verifier refuses the token, asks the next verifiers. Raises HttpError if all refuse
        the token, or if one has failed.
        """
        try:
            async with asyncio.timeout(VERIFY_S):
                return self._check(self._accept(digest, await verification))
        except HttpError:
            raise
        except InvalidToken as exc:
            reason = str(exc)
        except Exception as exc:
            raise _not_verified(exc) from None
        # This verifier has refused the token. Was it the last one?
        if number + 1 == len(self._verifiers):
            self._tokens.refuse(digest, reason)
            raise self.challenges.invalid_token(reason)
        try:
            other = self._verify(token, digest, number + 1)
        except InvalidToken as exc:
            raise self.challenges.invalid_token(str(exc)) from None
        return self._check(other if isinstance(other, Principal) else await other)


def _not_verified(exc: Exception) -> HttpError:
    """Return the refusal of a request whose token could not be verified, and log why."""
    if isinstance(exc, VerifierUnavailable | TimeoutError | OSError):
        log.warning("tokens cannot be verified: %s", exc or type(exc).__name__)
    else:
        log.error("a verifier of tokens has failed", exc_info=exc)
    return unavailable("the token cannot be verified now")
