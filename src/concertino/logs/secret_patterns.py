r"""Finds tokens of known shapes, and fields and assignments with secret names, in a text.

- A token is recognized by its prefix (`ghp_`, `sk-`, `AKIA`, `eyJ` of a JSON Web Token, `Bearer`),
  and a password in a URL by its place: `postgres://user:password@host`.
- A field is recognized by its name: `"password": "x"`, and `{'password': 'x'}` or `password='x'`,
  as repr() writes dicts and objects.
- An assignment is also recognized by its name, but its value has no quotes: `password=x`, as in the
  connection string `host=db user=u password=x`, or `token: a1b2c3`.

All searches take linear time for every text, because repetitions are possessive or have a limit,
and matched text is not searched again. secret_replacement.py uses this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from concertino.logs.secret_checks import REDACTED

__all__ = ["Span", "find_assignments", "find_fields", "find_tokens"]

# The positions in a text where something starts and ends.
Span = tuple[int, int]

# Characters of tokens in base64url.
_URL_CHARS = "[A-Za-z0-9_-]"
_CREDENTIALS = "[A-Za-z0-9._~+/=-]"

# A word of prose and the punctuation after it.
_WORD = r"[A-Za-z][a-z]{0,18}+[.=]{0,3}+(?![A-Za-z0-9._~+/=-])"

# Each alternative begins with a character or a class, so that `re` quickly rules out most places.
# If an alternative has a group, the group contains the token without the words before it.
_TOKEN = (
    r"(?<![A-Za-z0-9])(?:"
    + "|".join(
        (
            # GitHub, npm, Hugging Face.
            r"(?:gh[pousr]_|github_pat_)[A-Za-z0-9_]{16,}+",
            r"(?:npm|hf)_[A-Za-z0-9]{16,}+",
            # GitLab, PyPI.
            rf"glpat-{_URL_CHARS}{{16,}}+",
            rf"pypi-{_URL_CHARS}{{16,}}+",
            # OpenAI, Anthropic and others. A digit is required, because words may begin with sk-.
            rf"sk-(?=[A-Za-z_-]{{0,64}}[0-9]){_URL_CHARS}{{16,}}+",
            # Stripe.
            r"[rs]k_(?:live|test)_[A-Za-z0-9]{16,}+",
            # AWS, Google.
            r"A[KS]IA[A-Z0-9]{12,}+",
            rf"AIza{_URL_CHARS}{{30,}}+",
            # Slack.
            r"x(?:ox[abeoprs]|app)-[A-Za-z0-9-]{10,}+",
            # JSON Web Tokens begin with eyJ, base64url of `{"`. A match must begin where a run of
            # base64url begins, so that no run is read twice.
            rf"eyJ(?<![_-]eyJ){_URL_CHARS}{{6,}}+\.{_URL_CHARS}{{6,}}+(?:\.{_URL_CHARS}*+){{1,3}}+",
            # HTTP headers. A short word of letters is not a token, as in `bearer authentication`.
            # (?ai:...) ignores the case of ASCII letters only.
            rf"[Bb](?ai:earer)[ \t]{{1,8}}+(?!{_WORD})({_CREDENTIALS}{{8,}}+)",
            r"[Aa](?ai:uthorization)['\"]?[:=][ \t]{0,8}+['\"]?(?i:basic|token)[ \t]{1,8}+"
            rf"({_CREDENTIALS}{{8,}}+)",
            # Private keys in PEM, truncated or not.
            r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?s:(?:[^-]++|-(?!----END))*+)"
            r"(?:-----END [A-Z ]{0,40}-----)?",
        )
    )
    # The password in a URL.
    + r""")|://(?<=[A-Za-z0-9]://)[^\s/:@'"\\]{0,64}+:([^\s/@'"\\]{1,256}+)@"""
)

# The beginning of a field, up to its value: `'password': '` or `password='`.
_FIELD = (
    r"""(?:(["'])([A-Za-z][A-Za-z _.-]{4,40})\1[ \t]{0,8}:[ \t\n]{0,8}"""
    r"""|(?<![A-Za-z0-9_])([A-Za-z][A-Za-z_]{4,40})=)[bBuU]?(["'])"""
)
# Not a constant, and not the prefix of a quoted value.
_NO_CONSTANT = r"(?!(?:None|null|[Tt]rue|[Ff]alse)\b|[bBfFrRuU]{1,2}['\"])"
# The names in assignments. `progress_token` is a member of MCP's requests and no secret, and
# neither is a directory, as in `PWD=/home/ann`.
_NAME = (
    r"(?<![A-Za-z])(?i:pass(?:word|wd|phrase)|(?:client)?secret"
    r"|(?<!progress_)(?:access|refresh|auth|api|bearer|session)?token"
    r"|(?:api|access|secret|private)[_-]?key|pwd(?!=/))"
)
# A reference to a variable, as in an mcp.json, without its end: `${NAME`, `${NAME:-`, which a
# default value follows, and in VS Code `${env:NAME` and `${input:NAME`.
_REFERENCE = r"\$\{(?:env:|input:)?\w+(?::-)?"
# An assignment, up to its value:
# - `=` without a space: any value, but no constant such as None, and no `b` before a quote.
# - `:` or `=` with a space, as in prose: the value must have a digit or a character that is rare in
#   words, and four characters: `password: too short` and `token: str` are no secrets.
_ASSIGNMENT = (
    rf"{_NAME}(?:=(?=[^\s=;&,'\"]){_NO_CONSTANT}"
    rf"|(?:[ \t]{{0,4}}:[ \t]{{1,4}}|[ \t]{{1,4}}=[ \t]{{0,4}}|=[ \t]{{1,4}})"
    r"(?=[^\s;&,'\"]{0,64}[0-9!@#$%^*])(?=[^\s;&,'\"]{4}))"
    r"([^\s;&'\"]++)"
)
# Quote -> the rest of a string after that quote, up to the closing quote or the end of the text.
_REST = {quote: rf"(?s)(?:[^{quote}\\]++|\\.)*+" for quote in "\"'"}


def find_tokens(text: str) -> list[Span]:
    """Return where all tokens of known shapes begin and end in a text."""
    # Group 0 is the whole match. If a group of the pattern has matched, that group is the token.
    return [match.span(match.lastindex or 0) for match in re.finditer(_TOKEN, text)]


def find_assignments(text: str) -> list[Span]:
    """Return where the values of all assignments with secret names begin and end in a text."""
    spans: list[Span] = []
    for match in re.finditer(_ASSIGNMENT, text):
        start = match.start(1)
        # The end of a call or a list, such as `Login(password=x)`, is not part of the value.
        value = match[1].rstrip(")]},.") or match[1]
        if reference := re.match(_REFERENCE, value):
            # The name of a variable is not a secret, but the text after the name may be one.
            start += reference.end()
            value = value[reference.end() :]
            if not value:
                continue
        # If the text is redacted already, the span is that of [REDACTED], which the caller skips.
        # `value` has lost the closing bracket of this word.
        if text.startswith(REDACTED, start):
            value = REDACTED
        spans.append((start, start + len(value)))
    return spans


def find_fields(text: str, is_field: Callable[[str], bool]) -> list[Span]:
    """Return where the values of quoted fields with secret names begin and end in a text.

    A quoted field is one such as `'password': 'x'` or `password=b'x'`.
    is_field: returns whether a name is secret.
    """
    field = re.compile(_FIELD)
    rests = {quote: re.compile(pattern) for quote, pattern in _REST.items()}
    spans: list[Span] = []
    end = 0
    while (match := field.search(text, end)) is not None:
        # If the field is not secret, continue inside its value, which may contain a secret field.
        end = match.end()
        # The name is group 2 before a colon, and group 3 before `=`. Group 4 is the opening quote.
        if is_field(match[2] or match[3]):
            rest = rests[match[4]].match(text, end)
            assert rest is not None
            spans.append(rest.span())
            end = rest.end()
    return spans
