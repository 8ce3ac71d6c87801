"""RenamedTools: the tools of a server under other names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Raw, Struct
from msgspec.json import encode
from msgspec.structs import replace

from concertino.backend.interface import Backend, Call, Context
from concertino.backend.listing import decode_page
from concertino.backend.methods import LIST_METHODS
from concertino.backend.wrappers import BackendWrapper
from concertino.errors import INVALID_PARAMS, RpcError, unknown_name

__all__ = ["RenamedTools"]

LISTING = LIST_METHODS["tools/list"]


class RenamedTools(BackendWrapper):
    """A Backend that shows tools of another one under other names.

    names: the server's own name -> the name that clients see. The own name is unknown then, and a
    tool that has a new name already is hidden by the renamed one.
    """

    def __init__(self, inner: Backend, names: Mapping[str, str]) -> None:
        super().__init__(inner)
        self._names = dict(names)
        self._own_names = {new: own for own, new in names.items()}
        # The last list of the server, and the one that clients see instead.
        self._list: tuple[Any, Any] | None = None

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        if call.method == "tools/list":
            result = await self.inner.handle(call, context)
            # The same object for the same list, which sessions keep in its encoded form.
            if self._list is None or self._list[0] is not result:
                self._list = result, self._rename(decode_page(result, LISTING))
            return self._list[1]
        if call.method != "tools/call" or (name := call.name) is None:
            return await self.inner.handle(call, context)
        own_name = self._own_names.get(name)
        if own_name is None:
            if name in self._names:
                raise unknown_name("tool", name)
            return await self.inner.handle(call, context)
        params = {**call.params, "name": Raw(encode(own_name))}
        try:
            return await self.inner.handle(
                Call(call.method, params, call.meta, call.answers, call.state), context
            )
        except RpcError as error:
            if error.code == INVALID_PARAMS and error.message == f"Unknown tool: {own_name}":
                raise unknown_name("tool", name) from None
            raise

    def _rename(self, page: Any) -> Any:
        tools: list[Any] = []
        for tool in page.tools:
            if (new := self._names.get(tool.name)) is not None:
                tools.append(replace(tool, name=new))
            elif tool.name not in self._own_names:
                tools.append(tool)
        return replace(page, tools=tools)
