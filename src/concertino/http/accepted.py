"""read_accept(), is_json(): read the headers Accept and Content-Type of a request.

The endpoints read them to choose the form of a response, or to refuse the request.
Source: RFC 9110, sections 8.3 and 12.5.1.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

__all__ = ["AcceptedForms", "is_json", "read_accept"]


class AcceptedForms(NamedTuple):
    """Which forms of a response a client accepts.

    json: one JSON text, `application/json`.
    stream: a stream of events, `text/event-stream`.
    """

    json: bool
    stream: bool


@lru_cache(maxsize=64)
def read_accept(value: bytes | None) -> AcceptedForms:
    """Return what an Accept header allows. Without the header, a client accepts everything."""
    if value is None:
        return AcceptedForms(json=True, stream=True)
    # Media range -> whether its weight is not 0.
    ranges: dict[str, bool] = {}
    for item in value.decode("latin-1").lower().split(","):
        media_range, *parameters = (part.strip() for part in item.split(";"))
        ranges[media_range] = not any(_is_zero_weight(parameter) for parameter in parameters)
    return AcceptedForms(
        json=_allows(ranges, "application/json"), stream=_allows(ranges, "text/event-stream")
    )


def _allows(ranges: dict[str, bool], media_type: str) -> bool:
    """Return whether an Accept header allows a media type.

    ranges: media range, such as `text/*` -> whether it is accepted. The most specific range that
        matches decides.
    Returns False if no range matches.
    """
    kind = media_type.partition("/")[0]
    for media_range in (media_type, f"{kind}/*", "*/*"):
        if media_range in ranges:
            return ranges[media_range]
    return False


def _is_zero_weight(parameter: str) -> bool:
    """Return whether a parameter of a media range is a weight of 0 (`q=0`): not acceptable."""
    name, _, weight = parameter.partition("=")
    # A weight of 0 may have decimals, as in `q=0.000`. rstrip() makes "" of "0"; a malformed `q=`
    # counts as 0, too.
    return name.strip() == "q" and weight.strip().rstrip("0").rstrip(".") in ("", "0")


def is_json(content_type: bytes | None) -> bool:
    """Return whether a Content-Type header says that the body is JSON; False without a header."""
    if content_type == b"application/json":
        return True
    media_type = (content_type or b"").partition(b";")[0]
    return media_type.strip().lower() == b"application/json"
