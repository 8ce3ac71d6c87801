"""metadata.py: where the metadata of a server and of an issuer are looked for, and in which order.

The URLs are those of the specification, basic/authorization/authorization-server-discovery.
"""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from loops import on_a_loop

from concertino.authorization.fetcher import FetchedResponse, Fetcher
from concertino.authorization.metadata import discover_issuer, discover_resource, own_resource
from concertino.errors import AuthorizationError
from concertino.http_client.server_url import parse_url

SERVER = parse_url("https://a.example/public/mcp")
RESOURCE = "https://a.example/.well-known/oauth-protected-resource"
ISSUER = "https://as.example"


class Site:
    """A Fetcher that answers some URLs with a status or a document, and all others with 404."""

    def __init__(self, pages: dict[str, int | dict[str, Any]]) -> None:
        self.pages = pages
        self.asked: list[str] = []

    async def get(self, url: str) -> FetchedResponse:
        self.asked.append(url)
        page = self.pages.get(url, 404)
        if isinstance(page, int):
            return FetchedResponse(url, page, {}, b"")
        return FetchedResponse(url, 200, {}, json.dumps(page).encode())


def as_fetcher(site: Site) -> Fetcher:
    return cast(Fetcher, site)


def document(resource: str) -> dict[str, Any]:
    return {"resource": resource, "authorization_servers": [ISSUER]}


@pytest.mark.requirement("DS-3", "DS-4", side="authorization")
@pytest.mark.parametrize(
    ("place", "resource"),
    [
        (f"{RESOURCE}/public/mcp", "https://a.example/public/mcp"),
        (f"{RESOURCE}/public/mcp", "https://A.example/public/mcp/"),
        (RESOURCE, "https://a.example/public"),
        (RESOURCE, "https://a.example"),
    ],
)
@on_a_loop
async def test_a_resource_is_looked_for_at_its_path_and_then_at_the_root(
    place: str, resource: str
) -> None:
    site = Site({place: document(resource)})

    found = await discover_resource(as_fetcher(site), SERVER, "")

    assert found is not None
    assert found.resource == resource
    assert site.asked == [f"{RESOURCE}/public/mcp", RESOURCE][: 1 if place != RESOURCE else 2]


@pytest.mark.requirement("DS-2", side="authorization")
@on_a_loop
async def test_only_the_url_of_the_challenge_is_fetched() -> None:
    named = "https://a.example/elsewhere"
    site = Site({named: document("https://a.example/public/mcp"), RESOURCE: 500})
    await discover_resource(as_fetcher(site), SERVER, named)
    assert site.asked == [named]

    site = Site({RESOURCE: document("https://a.example/public/mcp")})
    with pytest.raises(AuthorizationError, match="404"):
        await discover_resource(as_fetcher(site), SERVER, named)
    assert site.asked == [named]


@pytest.mark.requirement("DS-4", side="authorization")
@pytest.mark.parametrize(
    "resource",
    [
        "https://a.example/public/mc",
        "https://a.example/public/mcp/more",
        "https://b.example/public/mcp",
        "https://a.example:8443/public/mcp",
        "http://a.example/public/mcp",
        "a.example",
    ],
)
@on_a_loop
async def test_a_resource_that_does_not_cover_the_server_ends_the_login(resource: str) -> None:
    site = Site({f"{RESOURCE}/public/mcp": document(resource)})
    with pytest.raises(AuthorizationError, match="for another server"):
        await discover_resource(as_fetcher(site), SERVER, "")


@pytest.mark.requirement("DS-9", side="authorization")
@on_a_loop
async def test_a_server_without_metadata_is_its_own_authorization_server() -> None:
    assert await discover_resource(as_fetcher(Site({})), SERVER, "") is None

    found = own_resource(SERVER)
    assert found.resource == "https://a.example/public/mcp"
    assert found.authorization_servers == ("https://a.example",)


OAUTH, OPENID = "/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"


@pytest.mark.requirement("DS-6", side="authorization")
@pytest.mark.parametrize(
    ("path", "places"),
    [
        ("", [f"{ISSUER}{OAUTH}", f"{ISSUER}{OPENID}"]),
        (
            "/tenant1",
            [f"{ISSUER}{OAUTH}/tenant1", f"{ISSUER}{OPENID}/tenant1", f"{ISSUER}/tenant1{OPENID}"],
        ),
    ],
)
@on_a_loop
async def test_an_issuer_is_looked_for_at_each_place_in_order(path: str, places: list[str]) -> None:
    for at, place in enumerate(places):
        site = Site({place: {"issuer": ISSUER + path}})
        assert (await discover_issuer(as_fetcher(site), ISSUER + path)).issuer == ISSUER + path
        assert site.asked == places[: at + 1]

    site = Site({})
    with pytest.raises(AuthorizationError, match="no metadata"):
        await discover_issuer(as_fetcher(site), ISSUER + path)
    assert site.asked == places


@pytest.mark.requirement("DS-7", side="authorization")
@pytest.mark.parametrize("name", [f"{ISSUER}/", "https://AS.example", f"{ISSUER}/tenant1", ""])
@on_a_loop
async def test_an_issuer_is_compared_letter_by_letter(name: str) -> None:
    site = Site({f"{ISSUER}{OAUTH}": {"issuer": name}, f"{ISSUER}{OPENID}": {"issuer": ISSUER}})
    with pytest.raises(AuthorizationError, match="must not be used"):
        await discover_issuer(as_fetcher(site), ISSUER)


@on_a_loop
async def test_a_server_error_ends_the_search() -> None:
    site = Site({f"{ISSUER}{OAUTH}": 503, f"{ISSUER}{OPENID}": {"issuer": ISSUER}})
    with pytest.raises(AuthorizationError, match="503"):
        await discover_issuer(as_fetcher(site), ISSUER)

    site = Site({f"{RESOURCE}/public/mcp": 500, RESOURCE: document("https://a.example")})
    with pytest.raises(AuthorizationError, match="500"):
        await discover_resource(as_fetcher(site), SERVER, "")


@pytest.mark.parametrize("status", [401, 403, 429])
@on_a_loop
async def test_metadata_that_is_refused_may_exist(status: int) -> None:
    """The search goes on, but its end does not mean that a server has no metadata."""
    refused = {f"{ISSUER}{OAUTH}": status, f"{RESOURCE}/public/mcp": status}
    with pytest.raises(AuthorizationError, match=f"HTTP {status}"):
        await discover_issuer(as_fetcher(Site({**refused})), ISSUER)
    with pytest.raises(AuthorizationError, match=f"HTTP {status}"):
        await discover_resource(as_fetcher(Site({**refused})), SERVER, "")

    site = Site(
        {
            **refused,
            f"{ISSUER}{OPENID}": {"issuer": ISSUER},
            RESOURCE: document("https://a.example"),
        }
    )
    assert (await discover_issuer(as_fetcher(site), ISSUER)).issuer == ISSUER
    assert await discover_resource(as_fetcher(site), SERVER, "") is not None
