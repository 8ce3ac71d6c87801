"""LazyCredentials: Credentials for a server that perhaps needs no authorization.

Most servers need none, and OAuthCredentials and the rest of this package take long to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from concertino.http_client.credentials import Refusal
from concertino.http_client.server_url import ServerUrl
from concertino.user_files import user_folder

if TYPE_CHECKING:
    from concertino.authorization.oauth_credentials import OAuthCredentials
    from concertino.authorization.settings import OAuth

__all__ = ["LazyCredentials"]


class LazyCredentials:
    """Provides the header Authorization for one server, with OAuth if the server requires it.

    Implements Credentials (http_client/credentials.py), which describes the methods. Passes the
    calls on to an OAuthCredentials, which the constructor makes if `settings` is given or the user
    has ever stored a login. Otherwise prepare() or on_refusal() makes it; until then header()
    returns "".

    server: the URL of the MCP server.
    settings: how to log in; None to use only logins that `concertino login` has stored.
    """

    def __init__(self, server: ServerUrl, settings: OAuth | None) -> None:
        self._server = server
        self._settings = settings
        self._loaded: OAuthCredentials | None = None
        if settings is not None or _has_logins():
            self._load()

    def _load(self) -> OAuthCredentials:
        """Return the OAuthCredentials, which are made at the first call."""
        if self._loaded is None:
            from concertino.authorization.oauth_credentials import OAuthCredentials

            self._loaded = OAuthCredentials(self._server, self._settings)
        return self._loaded

    def header(self) -> str | None:
        return "" if self._loaded is None else self._loaded.header()

    async def prepare(self) -> str:
        return await self._load().prepare()

    async def on_refusal(self, refusal: Refusal) -> str | None:
        return await self._load().on_refusal(refusal)


def _has_logins() -> bool:
    """Return whether this user has ever stored a login for any server."""
    import os

    try:
        folder = user_folder("XDG_STATE_HOME", ".local/state", os.environ) / "concertino" / "logins"
    except RuntimeError:
        return False
    return folder.is_dir()
