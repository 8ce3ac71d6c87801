from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from concertino import (
    Client,
    Guard,
    Library,
    Limits,
    Plugin,
    Rate,
    Server,
    ServerParameters,
    SyncClient,
    compose,
    run,
    serve,
)
from concertino.client import Restart, Timeouts
from concertino.errors import RegistrationError
from concertino.near_names import HintingStructMeta, hint_keywords, suggestion
from concertino.transports.process import ShutdownTimeouts


class Shop:
    @hint_keywords
    def __init__(self, name: str, *, size: int = 1) -> None:
        """Open a shop."""
        self.name = name * size


class Corner(Shop):
    pass


class Place(msgspec.Struct, frozen=True, metaclass=HintingStructMeta):
    street: str
    number: int = 1


@pytest.mark.parametrize(
    ("name", "text"),
    [("ad", "; did you mean 'add'?"), ("subtrct", "; did you mean 'subtract'?"), ("zzz", "")],
)
def test_the_closest_of_the_known_names_is_suggested(name: str, text: str) -> None:
    assert suggestion(name, iter(["add", "subtract"])) == text


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Server("x", verison="1"), "Server: {} 'verison'; did you mean 'version'?"),
        (lambda: Client([], timeout=3), "Client: {} 'timeout'; did you mean 'timeouts'?"),
        (lambda: SyncClient([], timeout=3), "Client: {} 'timeout'; did you mean 'timeouts'?"),
        (lambda: Plugin("x", auther="me"), "Plugin: {} 'auther'; did you mean 'author'?"),
        (lambda: Library("x", prompt="y"), "Library: {} 'prompt'; did you mean 'prompts'?"),
        (
            lambda: Guard(Server("x"), timeout=3),
            "Guard: {} 'timeout'; did you mean 'timeout_s'?",
        ),
        (
            lambda: ServerParameters(comand="x"),
            "ServerParameters: {} 'comand'; did you mean 'command'?",
        ),
        (lambda: Limits(drain=3), "Limits: {} 'drain'; did you mean 'drain_s'?"),
        (
            lambda: Timeouts(conect_s=3),
            "Timeouts: {} 'conect_s'; did you mean 'connect_s'?",
        ),
        (lambda: Restart(tris=3), "Restart: {} 'tris'; did you mean 'tries'?"),
        (lambda: run(Server("x"), limit=3), "run: {} 'limit'; did you mean 'limits'?"),
        (lambda: Server("x").run(limit=3), "Server.run: {} 'limit'; did you mean 'limits'?"),
        (
            lambda: Server("x").run(transport="stdio"),
            "Server.run: {} 'transport'; run() serves stdin and stdout, and "
            "run(http='127.0.0.1:8000') serves HTTP; for sockets: concertino serve FILE --tcp "
            "HOST:PORT",
        ),
        (
            lambda: serve(Server("x"), conection=1),
            "serve: {} 'conection'; did you mean 'connection'?",
        ),
        (lambda: Corner("a", siz=2), "Shop: {} 'siz'; did you mean 'size'?"),
        (lambda: Corner("a", zzz=2), "Shop: {} 'zzz'; the options are name, size"),
        (lambda: Place(stret="a"), "Place: {} 'stret'; did you mean 'street'?"),
        (lambda: Place("a", b=1, a=2), "Place: {} 'a'; the options are street, number"),
    ],
)
def test_an_unknown_keyword_names_the_one_that_was_meant(
    make: Callable[[], Any], text: str
) -> None:
    with pytest.raises(TypeError) as failure:
        make()
    assert str(failure.value) == text.format("got an unexpected keyword argument")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: compose(math=Server("math"), srict=True),
            "compose: srict: expected a Server or another Backend, got bool; did you mean "
            "'strict'?",
        ),
        (
            lambda: compose(math=Server("math"), name="both"),
            "compose: name: expected a Server or another Backend, got str; the name of the whole "
            "is the first argument, as in compose('both', ...)",
        ),
    ],
)
def test_an_option_of_compose_that_looks_like_a_part(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(RegistrationError) as failure:
        make()
    assert str(failure.value) == text


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Shop(), "missing 1 required positional argument: 'name'"),
        (lambda: Shop("a", size="b"), "can't multiply sequence"),
        (lambda: Place(), "Missing required argument 'street'"),
        (lambda: Place("a", 1, 2), "Extra positional arguments provided"),
    ],
)
def test_any_other_type_error_stays_as_it_is(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        make()


def test_help_and_decoding_see_no_difference() -> None:
    assert str(inspect.signature(Shop)) == "(name: 'str', *, size: 'int' = 1) -> 'None'"
    assert list(inspect.signature(Place).parameters) == ["street", "number"]
    assert Shop.__init__.__doc__ == "Open a shop."
    assert Shop("a", size=2).name == "aa"
    assert msgspec.json.decode(b'{"street":"a"}', type=Place) == Place("a")


def test_a_struct_stays_a_struct() -> None:
    for struct in (Limits, ServerParameters, ShutdownTimeouts, Rate):
        assert isinstance(struct, type(msgspec.Struct))
        assert msgspec.structs.fields(struct)
