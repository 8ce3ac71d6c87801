"""CallDialogues: creates, seals and restores the dialogues of one session.

A Dialogue (protocol/dialogue.py) contains the questions of one call to its client, and the answers.
Since MCP 2026-07-28 the client stores the dialogue between two rounds of a call, in a sealed token
(`requestState`): encode_client_requests() makes the response with the client requests and the
token, and resume() restores the dialogue when the client repeats the call. The session imports this
module when a call first asks its client something.
Spec: 2026-07-28 basic/patterns/mrtr.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Raw
from msgspec.json import decode, encode

from concertino.errors import INTERNAL_ERROR, RpcError
from concertino.protocol.call import Call, InputRequired
from concertino.protocol.request_profile import Profiles, RequestProfile, SessionRequest, pop_member

# dialogue.py is imported on first use, because most servers never ask their client anything.
if TYPE_CHECKING:
    from concertino.protocol.dialogue import Dialogue
    from concertino.protocol.seal import OpenedState, Seal

__all__ = ["CallDialogues"]


class CallDialogues:
    """Creates, seals and restores the dialogues of one session's calls.

    A dialogue is the requests that a call's handler makes to the client, and the client's answers.
    The client stores it between two rounds of a call, in the token `requestState`.

    profiles: the profiles of the session. They contain the server's name, to which tokens are
        bound.
    get_seal: returns the Seal that makes and opens tokens; called for each token. None in a session
        whose calls never ask their client.
    identity: Principal.identity of the caller; b"" if it is not known. A token is accepted only
        from the caller to whom it was sent.
    """

    def __init__(
        self,
        profiles: Profiles,
        get_seal: Callable[[], Seal] | None,
        identity: bytes,
    ) -> None:
        self._profiles = profiles
        self._get_seal = get_seal
        self._identity = identity

    def open(self, incoming: SessionRequest) -> Dialogue:
        """Return the dialogue of a call: its requests to the client, and the answers.

        Creates the dialogue if the call has none.
        Raises RpcError if calls of the method `incoming.method` may not ask the client.
        """
        from concertino.protocol.dialogue import INPUT_METHODS, Dialogue

        if incoming.dialogue is None:
            incoming.dialogue = Dialogue()
        if incoming.method not in INPUT_METHODS:
            text = f"Internal error: {incoming.method} may not ask the client anything"
            raise RpcError(INTERNAL_ERROR, text)
        return incoming.dialogue

    def resume(
        self, incoming: SessionRequest, profile: RequestProfile
    ) -> tuple[Call, OpenedState | None]:
        """Return the Call for a request that has `inputResponses` or `requestState` in its params.

        In revisions before MCP 2026-07-28, which do not define these two params, they are ignored.
        profile: the profile of the request.
        Returns the Call, and the opened `requestState`, or None if the request has none. The caller
        must pass the opened state to mark_used(), unless the server rejects the call as busy.
        Raises RpcError if one of the two params is malformed, or if the state is too old, was used
        before, or was made for another call.
        """
        from concertino.protocol.dialogue import INPUT_METHODS, resume_dialogue

        params = incoming.params
        method = incoming.method
        members = {
            name: params.pop(name) for name in ("requestState", "inputResponses") if name in params
        }
        if not profile.encoder.revision.modern or method not in INPUT_METHODS:
            return Call(method, params, profile.meta), None

        token: str | None = pop_member(members, "requestState", str)
        answers: dict[str, Raw] = pop_member(members, "inputResponses", dict[str, Raw]) or {}
        dialogue, opened = resume_dialogue(
            self._seal, token, answers, lambda: self._digest_call(method, params)
        )
        incoming.dialogue = dialogue
        return Call(method, params, profile.meta, dialogue.answers, dialogue.state), opened

    def mark_used(self, opened: OpenedState) -> None:
        """Record that a `requestState` was used, so that it is rejected from now on.

        opened: the opened state, from resume(), of a call that was not rejected.
        Raises RpcError if another process with the same key has used the token meanwhile, or if the
        record that these processes share cannot be read.
        """
        from concertino.protocol.dialogue import use_state

        use_state(self._seal(), opened)

    def set_client_requests(self, incoming: SessionRequest, result: InputRequired) -> Dialogue:
        """Set the unanswered client requests of a call's dialogue, and return the dialogue.

        A client request is a request to the client, such as an elicitation.
        result: the return value of the backend.
        Raises RpcError if the client lacks the capability for a request. Raises ValueError if a
        request is malformed or `result` is empty.
        """
        from concertino.protocol.client_request_forms import (
            read_forwarded,
            to_wire_request,
            translate_request,
        )
        from concertino.types.client_requests import InputRequest

        dialogue = self.open(incoming)
        revision, client = incoming.profile.encoder.revision, incoming.profile.client
        if not result.questions and not result.state:
            raise ValueError("InputRequired: expected questions, or a state, or both")
        dialogue.unanswered, dialogue.forwarded = {}, {}
        for key, question in result.questions.items():
            if isinstance(question, Raw) and revision.modern:
                # The request comes from another server, and the client gets it unchanged.
                dialogue.unanswered[key] = read_forwarded(question, client)
                dialogue.forwarded[key] = question
                continue
            if isinstance(question, Raw):
                question = decode(question, type=InputRequest)
            dialogue.unanswered[key] = translate_request(
                to_wire_request(question),
                revision,
                client,
                partial(dialogue.elicitation_id, key),
            )
        return dialogue

    def encode_client_requests(
        self,
        call: Call,
        dialogue: Dialogue,
        state: bytes,
    ) -> Raw:
        """Return the `input_required` result of a call, as JSON.

        It contains the requests to the client that are not answered yet, and the `requestState`, a
        sealed token with all earlier answers, which the client sends back.
        call: the call to be answered.
        dialogue: the requests that its handler makes to the client, and the answers so far.
        state: bytes that the backend needs to continue; they become part of the `requestState`.
        Raises RpcError if the `requestState` is too large, or the client was asked too often.
        """
        call_digest = self._digest_call(call.method, call.params)
        seal = self._seal()
        try:
            token = dialogue.seal_state(seal, call_digest, state)
        except ValueError as exc:
            raise RpcError(INTERNAL_ERROR, f"Internal error: {exc}") from None

        result: dict[str, Any] = {"resultType": "input_required", "requestState": token}
        if dialogue.unanswered:
            result["inputRequests"] = {**dialogue.unanswered, **dialogue.forwarded}
        return Raw(encode(result))

    def _seal(self) -> Seal:
        """Return the Seal, or raise RuntimeError if the session has none."""
        if self._get_seal is None:
            raise RuntimeError(
                "this session was made without a seal; this is a fault of concertino"
            )
        return self._get_seal()

    def _digest_call(self, method: str, params: Mapping[str, Raw]) -> bytes:
        """Return the digest of a call, its caller and this server, to which a token is bound."""
        from concertino.protocol.dialogue import digest_call

        # The server's name is included because another server may have the same key, and a tool
        # with the same name.
        server = self._profiles.features.info.name.encode()
        return digest_call(method, params, principal=self._identity, server=server)
