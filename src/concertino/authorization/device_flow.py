"""Logs in at another device: a person types a code at a page, and this process waits for it.

Source: RFC 8628.
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
    describe_error,
)
from concertino.errors import AuthorizationError

__all__ = ["DevicePrompt", "request_by_device"]

# Gets the address of a page and the code to type there.
DevicePrompt = Callable[[str, str], object]
INTERVAL_S, SLOWER_S = 5.0, 5.0
MAX_WAIT_S = 1800.0


class _DeviceResponse(Struct, frozen=True):
    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str = ""
    expires_in: float = MAX_WAIT_S
    interval: float = INTERVAL_S


_decoder = Decoder(_DeviceResponse)


async def request_by_device(
    endpoint: TokenEndpoint,
    metadata: IssuerMetadata,
    fields: Mapping[str, str],
    prompt: DevicePrompt,
) -> TokenResponse:
    """Return the tokens after the user has permitted access on another device (RFC 8628).

    fields: the fields `scope` and `resource` of the request.
    prompt: shows the user the page to open and the code to type there.
    Raises AuthorizationError, and OSError if the server cannot be reached.
    """
    url = metadata.device_authorization_endpoint
    if not url:
        raise AuthorizationError(
            f"{metadata.issuer}: this server offers no login by another device"
        )
    response = await endpoint.post(url, fields)
    if response.status != 200:
        raise describe_error(response)
    device = response.decode(_decoder)
    prompt(check_page(device.verification_uri), _visible(device.user_code))

    interval = max(device.interval, 1.0)
    until = time.monotonic() + min(device.expires_in, MAX_WAIT_S)
    poll = {
        "grant_type": DEVICE_GRANT,
        "device_code": device.device_code,
        "resource": fields["resource"],
    }
    while time.monotonic() < until:
        await asyncio.sleep(interval)
        try:
            return await endpoint.request(poll)
        except TokenError as exc:
            if exc.code == "slow_down":
                interval += SLOWER_S
            elif exc.code != "authorization_pending":
                raise
        except ConnectionError:
            # RFC 8628 section 3.5: wait longer after a failure of the connection.
            interval *= 2
    raise AuthorizationError("nobody has typed the code in time")


def _visible(code: str) -> str:
    """Return a server's code without characters that would control the terminal."""
    return "".join(char for char in code[:64] if char.isprintable())
