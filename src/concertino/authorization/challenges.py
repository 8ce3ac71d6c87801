"""parse_challenges(), bearer_challenge(): read the header WWW-Authenticate of a response.

    Bearer realm="mcp", scope="read", Basic realm="old"

A comma can separate two challenges or two parameters, or be part of a quoted string. So the header
cannot be split at commas.
Source: RFC 9110, section 11.6.1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

__all__ = ["Challenge", "bearer_challenge", "parse_challenges"]

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
# A parameter NAME=VALUE, in which the value is a token or a quoted string. Against the grammar,
# many servers send values with characters such as `/` without quotes, so these are accepted too.
_PARAMETER = re.compile(rf'({_TOKEN})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]*))')
_SCHEME = re.compile(_TOKEN)
_SEPARATORS = re.compile(r"[\s,]*")
# How many challenges of a header, and parameters of a challenge, are read. A malicious server could
# send any number.
MAX_CHALLENGES = 16
MAX_PARAMETERS = 64


class Challenge(Struct, frozen=True):
    """One challenge of a header WWW-Authenticate: a scheme and its parameters.

    scheme: the scheme in lower case, such as `bearer`.
    parameters: parameter name in lower case -> value. If a name occurs twice, its first value is
        used.
    """

    scheme: str
    parameters: Mapping[str, str]


def parse_challenges(text: str) -> list[Challenge]:
    """Return the challenges in a header WWW-Authenticate, in order. Malformed parts are skipped.

    text: the value of the header; "" for a response without it.
    """
    challenges: list[Challenge] = []
    parameters: dict[str, str] = {}
    at = 0
    while at < len(text):
        separators = _SEPARATORS.match(text, at)
        assert separators is not None, "the pattern matches the empty text"
        at = separators.end()
        parameter = _PARAMETER.match(text, at)
        # Before the first scheme there can be no parameter. The data of a scheme such as `Basic
        # abc=` is read as a parameter, which does no harm: callers read Bearer challenges.
        if parameter is not None and challenges:
            quoted = parameter[2]
            value = parameter[3] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
            if len(parameters) < MAX_PARAMETERS:
                parameters.setdefault(parameter[1].lower(), value)
            at = parameter.end()
        elif (scheme := _SCHEME.match(text, at)) is not None:
            if len(challenges) == MAX_CHALLENGES:
                break
            parameters = {}
            challenges.append(Challenge(scheme[0].lower(), parameters))
            at = scheme.end()
        else:
            at += 1
    return challenges


def bearer_challenge(text: str) -> Mapping[str, str]:
    """Return the parameters of the first Bearer challenge in a header: name in lower case -> value.

    Returns {} if there is no Bearer challenge, or if the challenge has no parameters.
    text: the value of the header WWW-Authenticate; "" for a response without it.
    """
    for challenge in parse_challenges(text):
        if challenge.scheme == "bearer":
            return challenge.parameters
    return {}
