"""client/request_builder.py: the `_meta` of forwarded calls is that of the present settings."""

from __future__ import annotations

import json
from typing import Any

from concertino.client.request_builder import RequestBuilder
from concertino.client.request_handlers import RequestHandlers
from concertino.protocol.call import Call, ClientFacts
from concertino.protocol.revisions import MODERN
from concertino.types import Implementation


def test_a_caller_gets_the_log_level_that_was_set_after_its_first_call() -> None:
    handlers = RequestHandlers(None, False, None, None, None)
    builder = RequestBuilder(Implementation("proxy", "1"), handlers)
    builder.use(MODERN)
    caller = ClientFacts("host", "2", MODERN.name, {})

    def meta() -> dict[str, Any]:
        return json.loads(builder.forwarded_params(Call("tools/list"), caller, None))["_meta"]

    level = "io.modelcontextprotocol/logLevel"
    assert level not in meta()
    builder.set_log_level("warning")
    assert meta()[level] == "warning"
