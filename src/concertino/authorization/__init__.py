"""Access to servers over HTTP that ask for authorization: OAuth, and login().

A client that has no token gets one as `OAuth` says, which is passed in HttpParameters; by default
it uses what `concertino login URL` has obtained.
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
