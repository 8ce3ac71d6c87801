"""request_by_device(): logs in through another device, such as a phone (RFC 8628).

The authorization server gives this process a short code. The user opens a page on any device, types
the code there and permits access. Meanwhile this process asks the token endpoint again and again
until it gets the tokens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from msgspec import Struct
from msgspec.json import Decoder

from concertino.authorization.code_flow import check_page
from concertino.authorization.metadata import IssuerMetadata
from concertino.authorization.registration import DEVICE_GRANT
from concertino.authorization.token_endpoint import (
    TokenEndpoint,
    TokenError,
    TokenResponse,
    make_error,
)
from concertino.errors import AuthorizationError

__all__ = ["DevicePrompt", "request_by_device"]

# Called with the URL of the page to open and the code to type there. It shows them to the user.
DevicePrompt = Callable[[str, str], object]
# The pause between two requests to the token endpoint if the server names none, in seconds (RFC
# 8628, section 3.2).
INTERVAL_S = 5.0
# By how much the pause grows when the server answers `slow_down`, in seconds (RFC 8628, section
# 3.5).
SLOWER_S = 5.0
# The longest wait for the user, in seconds.
MAX_WAIT_S = 1800.0


class _DeviceResponse(Struct, frozen=True):
    """The response of a device authorization endpoint (RFC 8628, section 3.2).

    device_code: the code that this process sends to the token endpoint.
    user_code: the code for the user.
    verification_uri: the URL of the page on which the user types the code.
    expires_in: how long the codes are valid, in seconds.
    interval: the pause between two requests to the token endpoint, in seconds.
    """

    device_code: str
    user_code: str
    verification_uri: str
    expires_in: float = MAX_WAIT_S
    interval: float = INTERVAL_S


_decoder = Decoder(_DeviceResponse)


async def request_by_device(
    endpoint: TokenEndpoint,
    metadata: IssuerMetadata,
    fields: Mapping[str, str],
    prompt: DevicePrompt,
) -> TokenResponse:
    """Wait until the user has permitted access on another device, and return the tokens.

    endpoint: the token endpoint of the authorization server.
    metadata: the metadata of the authorization server.
    fields: the fields of the request: `resource`, and `scope` if scopes are requested.
    prompt: called once, with the URL of the page and the code for the user; shows them to the user.
    Raises AuthorizationError if the server refuses or the user does not respond in time. Raises
    OSError if the server does not answer the first request, or the last one before the codes
    expire.
    """
    url = metadata.device_authorization_endpoint
    if not url:
        raise AuthorizationError(
            f"{metadata.issuer}: this server offers no login by another device"
        )
    response = await endpoint.post(url, fields)
    if response.status != 200:
        raise make_error(response)
    device = response.decode(_decoder)
    page = check_page(device.verification_uri, "verification_uri")
    prompt(page, _remove_controls(device.user_code))

    # At least a second, so that a server that names 0 is not asked without a pause.
    interval = max(device.interval, 1.0)
    until = time.monotonic() + min(device.expires_in, MAX_WAIT_S)
    poll = {
        "grant_type": DEVICE_GRANT,
        "device_code": device.device_code,
        "resource": fields["resource"],
    }
    # Why the server has not answered the last request; None if it has.
    failure: OSError | None = None
    while (left_s := until - time.monotonic()) > 0:
        await asyncio.sleep(min(interval, left_s))
        failure = None
        try:
            return await endpoint.request(poll)
        except TokenError as exc:
            if exc.code == "slow_down":
                interval += SLOWER_S
            elif exc.code != "authorization_pending":
                raise
        except OSError as exc:
            # Grow the pause, as RFC 8628 section 3.5 demands after a failure of the connection. The
            # wait ends when the codes expire.
            failure = exc
            interval *= 2
    raise failure or AuthorizationError("nobody has typed the code in time")


def _remove_controls(code: str) -> str:
    """Return a code of a server without characters that could control the terminal."""
    return "".join(char for char in code[:64] if char.isprintable())
