"""backend/user_errors.py: exceptions of a user's code without our frames, and with advice."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType

import pytest

from concertino import RpcError, Server
from concertino.backend.user_errors import (
    advice,
    exc_info_for_users,
    without_our_frames,
)
from concertino.loading import LazyDescription


def functions_of(trace: TracebackType | None) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(trace)]


def raised_through_the_package() -> BaseException:
    """An exception whose traceback leads from here through the package and back into fail()."""

    def fail(name: str) -> str:
        raise KeyError(name)

    method = LazyDescription(fail, lambda function: None)  # type: ignore[arg-type]
    try:
        method("add")
    except KeyError as exc:
        return exc
    raise AssertionError


def test_a_traceback_keeps_the_users_frames_in_their_order() -> None:
    trace = raised_through_the_package().__traceback__
    names = functions_of(trace)
    assert names == ["raised_through_the_package", "__call__", "fail"]
    assert functions_of(without_our_frames(trace)) == ["raised_through_the_package", "fail"]
    # The traceback itself is unchanged.
    assert functions_of(trace) == names


def test_a_traceback_of_our_frames_alone_stays() -> None:
    with pytest.raises(KeyError) as failure:
        Server("s").remove_tool("add")
    assert failure.value.__traceback__ is not None
    ours = failure.value.__traceback__.tb_next
    assert functions_of(without_our_frames(ours)) == functions_of(ours) != []
    assert without_our_frames(None) is None


@pytest.mark.parametrize(
    "exc",
    [
        ValueError("asyncio.run() cannot be called from a running event loop"),
        RuntimeError("another"),
        ImportError("cannot import name 'a'"),
        ImportError("attempted relative import with no known parent package"),
        ModuleNotFoundError("No module named 'concertino.x'", name="concertino.x"),
        ModuleNotFoundError("without a name"),
        RpcError(1, "refused"),
    ],
)
def test_there_is_no_advice_about(exc: Exception) -> None:
    assert advice(exc) == ""
    assert exc_info_for_users(exc) == (type(exc), exc, None)
    assert not hasattr(exc, "__notes__")


def test_the_text_of_a_users_class_is_not_made() -> None:
    class Broken(RuntimeError):
        def __str__(self) -> str:
            raise ValueError("no text")

    assert advice(Broken()) == ""


def test_a_file_of_another_package_is_named_with_its_folder(tmp_path: Path) -> None:
    (tmp_path / "pkg" / "inner").mkdir(parents=True)
    for folder in ("pkg", "pkg/inner"):
        (tmp_path / folder / "__init__.py").touch()
    file = tmp_path / "pkg" / "inner" / "server.py"
    file.write_text("from . import names\n")
    with pytest.raises(ImportError) as failure:
        exec(compile(file.read_text(), file, "exec"), {"__package__": ""})
    assert advice(failure.value) == (
        f"serve it as a part of its package: cd {tmp_path}; "
        "concertino serve pkg.inner.server:server"
    )
