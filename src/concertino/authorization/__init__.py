"""Authorization of a client at MCP servers over HTTP that require it: OAuth.

An `OAuth` object in HttpParameters says how the client obtains access tokens. Without one, the
client uses the tokens that the command `concertino login URL` has stored.

Read these modules first, in this order. OAuthCredentials (oauth_credentials.py) gives each request
its token. It refreshes the login or, after a refused request, logs in again with a LoginFlow
(flow.py). LoginStore (logins.py) stores the logins. Each of the other modules does one step of a
login.
"""

from __future__ import annotations

from concertino.loading import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concertino.authorization.settings import OAuth as OAuth

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "concertino.authorization.settings": ("OAuth",),
    },
)
