"""signature.py.

Expected values by hand; inspect.signature as a second opinion on order and names.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, Optional

import pytest

from concertino.errors import RegistrationError
from concertino.schema.signature import MISSING, function_of, read_signature

if TYPE_CHECKING:
    from nowhere import Absent


class Context:
    pass


class Box(dict[str, int]):
    pass


def names(handler: Callable[..., object], *inject: type) -> list[str]:
    return [parameter.name for parameter in read_signature(handler, inject).parameters]


def test_parameters_in_order_with_resolved_annotations() -> None:
    def handler(
        a: int, /, b, c: Box | None = None, *, d: Annotated[str, "D"] = "x"
    ) -> list[Box]: ...

    signature = read_signature(handler)
    assert signature.name == "handler"
    assert [
        (p.name, p.annotation, p.default, p.keyword_only, p.injected) for p in signature.parameters
    ] == [
        ("a", int, MISSING, False, False),
        ("b", Any, MISSING, False, False),
        ("c", Box | None, None, False, False),
        ("d", Annotated[str, "D"], "x", True, False),
    ]
    assert signature.returns == list[Box]
    assert [p.name for p in signature.parameters] == list(inspect.signature(handler).parameters)


def test_nothing_annotated_is_any() -> None:
    assert read_signature(lambda x: x).parameters[0].annotation is Any
    assert read_signature(lambda x: x).returns is Any
    assert read_signature(lambda x: x).name == "<lambda>"


def test_awaitables_are_unwrapped() -> None:
    def one() -> Awaitable[int]: ...
    def two() -> Coroutine[Any, Any, Awaitable[str]]: ...
    async def three() -> bytes: ...

    assert [read_signature(f).returns for f in (one, two, three)] == [int, str, bytes]


def test_methods_objects_and_partials() -> None:
    class Adder:
        def __init__(self, start: int = 0) -> None: ...
        def method(self, a: int) -> int: ...
        @classmethod
        def cls_method(cls, b: int) -> int: ...
        @staticmethod
        def static(c: int) -> int: ...
        def __call__(self, d: int) -> int: ...

    def three(a: int, b: str, c: bool = True) -> int: ...

    @functools.wraps(three)
    def wrapper(*args: object, **kwargs: object) -> object: ...

    adder = Adder()
    for handler, expected in (
        (adder.method, {"a": int}),
        (Adder.cls_method, {"b": int}),
        (adder.cls_method, {"b": int}),
        (Adder.static, {"c": int}),
        (adder, {"d": int}),
        (Adder, {"start": int}),
        (functools.partial(three, 1), {"b": str, "c": bool}),
        (functools.partial(functools.partial(three), 1, c=False), {"b": str, "c": bool}),
        (functools.partial(adder.method), {"a": int}),
        (wrapper, {"a": int, "b": str, "c": bool}),
    ):
        assert {p.name: p.annotation for p in read_signature(handler).parameters} == expected
    assert function_of(functools.partial(adder)) is Adder.__call__
    partial = read_signature(functools.partial(three, b="x")).parameters
    assert [(p.name, p.default, p.keyword_only) for p in partial] == [
        ("a", MISSING, False),
        ("b", "x", True),
        ("c", True, True),
    ]


def test_builtins_with_a_signature_are_read() -> None:
    assert names(len) == ["obj"]


def test_injected_parameters_are_found_however_they_are_written() -> None:
    def handler(
        a: Context,
        b: Context | None,
        c: Optional[Context] = None,  # noqa: UP045
        *,
        d: Annotated[Context, "x"],
        e: int | None,
        f: list[Context],
        g: Context | int,
    ) -> None: ...

    assert [p.name for p in read_signature(handler, (Context,)).parameters if p.injected] == [
        "a",
        "b",
        "c",
        "d",
    ]
    assert not any(p.injected for p in read_signature(handler).parameters)


def test_a_generic_class_is_injected_by_its_origin() -> None:
    def handler(a: dict[str, int], b: list[int]) -> None: ...

    assert [p.name for p in read_signature(handler, (dict,)).parameters if p.injected] == ["a"]


def test_an_injected_class_need_not_be_importable() -> None:
    class Absent: ...

    def handler(a: Absent | None, b: int) -> None: ...

    handler.__annotations__["a"] = "Gone | None"
    gone = type("Gone", (), {})
    assert [p.injected for p in read_signature(handler, (gone,)).parameters] == [True, False]


def test_names_that_a_function_closes_over_are_resolved() -> None:
    class Local: ...

    def handler(a: Local) -> None:
        Local()

    assert read_signature(handler).parameters[0].annotation is Local


def test_a_name_that_is_not_assigned_yet_is_not_resolved() -> None:
    def handler(a: Later) -> None:
        Later()

    with pytest.raises(
        RegistrationError, match=r"handler\(\): the annotation 'Later' of 'a' cannot be resolved"
    ):
        read_signature(handler)
    Later = int


def test_what_cannot_be_resolved_is_named() -> None:
    def handler(a: int, b: Absent) -> None: ...
    def broken(a: int) -> "1 +": ...  # noqa: F722

    with pytest.raises(RegistrationError) as caught:
        read_signature(handler)
    assert str(caught.value) == (
        "handler(): the annotation 'Absent' of 'b' cannot be resolved (name 'Absent' is not "
        "defined); "
        "import or define the name at module level, outside `if TYPE_CHECKING`"
    )
    with pytest.raises(RegistrationError, match="of 'return' cannot be resolved"):
        read_signature(broken)


def test_an_unresolvable_annotation_that_resolves_alone_is_our_own_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Not known to happen: the first error is passed on as it is.
    def handler(a: int) -> None: ...

    real = read_signature.__globals__["get_type_hints"]

    def hints(thing: Any, *args: Any, **kwargs: Any) -> Any:
        if thing is handler:
            raise RuntimeError("odd")
        return real(thing, *args, **kwargs)

    monkeypatch.setitem(read_signature.__globals__, "get_type_hints", hints)
    with pytest.raises(RuntimeError, match="odd"):
        read_signature(handler)


def test_starred_parameters_are_refused() -> None:
    def one(*args: int) -> None: ...
    def two(a: int, **options: int) -> None: ...

    with pytest.raises(RegistrationError, match=r"one\(\): \*args has no names"):
        read_signature(one)
    with pytest.raises(RegistrationError, match=r"two\(\): \*\*options has no names"):
        read_signature(two)


def test_a_callable_without_signature_is_refused() -> None:
    class Unreadable:
        __signature__ = "nonsense"

        def __call__(self) -> None: ...

    with pytest.raises(RegistrationError, match="its signature cannot be read; wrap it in a `def`"):
        read_signature(Unreadable())
