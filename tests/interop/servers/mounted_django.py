"""A server of ours beside an application of Django, as docs/how-to/http.md shows it."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.urls import path
from server_for_http import server

settings.configure(ALLOWED_HOSTS=["127.0.0.1"], ROOT_URLCONF=__name__, SECRET_KEY="a key for tests")

from django.core.asgi import get_asgi_application  # noqa: E402


def hello(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello", content_type="text/plain")


urlpatterns = [path("hello", hello)]
mcp = server.asgi("/mcp")
django = get_asgi_application()


async def app(scope: Any, receive: Any, send: Any) -> None:
    is_ours = scope["type"] == "http" and scope["path"].startswith("/mcp")
    await (mcp if is_ours else django)(scope, receive, send)
