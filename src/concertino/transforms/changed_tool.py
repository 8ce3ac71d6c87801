"""ChangedTool: translates the definition, calls and errors of one renamed or changed tool.

The definition and the calls are translated without decoding all fields, so that fields unknown to
this package are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from msgspec import UNSET, Raw
from msgspec.json import Decoder, decode, encode

from concertino.backend.call_hooks import ParamHeaders
from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import RpcError, invalid_params
from concertino.transforms.tool_changes import ToolChange
from concertino.transforms.tool_pages import RawTool
from concertino.transforms.tool_text import TAGS

__all__ = ["ChangedTool"]

_decode_members = Decoder(dict[str, Raw]).decode
# Keywords of a schema, other than `properties` and `required`, that may contain names of arguments.
RULES = frozenset(
    """allOf anyOf oneOf not if then else dependentRequired dependentSchemas dependencies examples
    patternProperties""".split()  # noqa: SIM905
)
# Keywords of a schema whose values are texts for people.
TEXTS = ("description", "title", "$comment")
# Keywords of a schema whose values are data. Names of arguments in them are not replaced.
VALUES = ("enum", "const", "default", "required")
# What a reference to a definition in the same schema begins with.
DEFINITIONS = "#/$defs/"
# The text that replaces the name and the value of a hidden argument.
HIDDEN = "[hidden]"
# Values of hidden arguments with fewer characters are not removed from messages, because they occur
# in too many texts by chance.
LEAST_SECRET = 3
# What precedes and follows the name of an argument in error messages of servers, such as "'id' is
# required" and "field id: ...". A name without such context may be any word of the text.
BEFORE = r"(?:['\"`.$/\[]|^[^\S\n]*|\b(?:field|argument|parameter|property|key|input)s?:?\s+)"
AFTER = r"(?=['\"`.\]/:,]|\s*$|\s+(?:is|must|should|was|field|argument|parameter|property)\b)"


class ChangedTool:
    """One tool with its changes. Translates its definition, its calls and its errors.

    name: the server's name of the tool.
    change: the changes.
    hidden: the arguments that clients do not see: the server's name -> the value for the server.

    Attributes:
    client_name: the name of the tool that clients see.
    """

    # In this class, `own` is the server's name of an argument, `shown` the name that clients see.

    def __init__(
        self,
        name: str,
        change: ToolChange,
        hidden: Mapping[str, Any],
    ) -> None:
        self.name = name
        self.client_name = change.name or name
        self._change = change
        self._hidden = {own: Raw(encode(value)) for own, value in hidden.items()}
        self._defaults = {
            own: Raw(encode(argument.default))
            for own, argument in change.arguments.items()
            if argument.default is not UNSET
        }
        # The server's name of each renamed argument -> the name that clients see.
        self._renamed = {
            own: argument.name
            for own, argument in change.arguments.items()
            if argument.name is not None and argument.name != own
        }
        self._own_names = {shown: own for own, shown in self._renamed.items()}
        # The names that clients may not send: the names of hidden arguments, and the old names of
        # renamed arguments, unless another argument has the name now.
        self._refused = {*self._hidden, *self._renamed} - self._own_names.keys()
        self._replace_names = self._make_replacement(hidden)

    # The definition

    def show(self, tool: RawTool) -> RawTool:
        """Return the definition of the tool as clients see it.

        Texts that the change does not replace may contain the old name of a renamed argument. Only
        if an argument is hidden, they are translated by reword().
        tool: the server's definition.
        """
        change = self._change
        shown = dict(tool)
        shown["name"] = Raw(encode(self.client_name))
        for member, text in (("title", change.title), ("description", change.description)):
            if text is not None:
                shown[member] = Raw(encode(text))
            elif self._hidden and member in tool:
                shown[member] = self._reword_raw(tool[member])
        if change.tags:
            shown["_meta"] = Raw(encode({**_meta_of(tool), TAGS: change.tags}))
        if change.arguments and "inputSchema" in tool:
            shown["inputSchema"] = self._show_schema(tool["inputSchema"])
        return shown

    def _show_schema(self, schema: Raw) -> Raw:
        """Return the input schema with the arguments that clients see, in the server's order."""
        try:
            members = _decode_schema(schema)
            properties = _decode_members(members.get("properties", b"{}"))
            required = decode(members.get("required", b"[]"), type=list[str])
        except DECODE_ERRORS:
            return schema
        shown: dict[str, Raw] = {}
        for own, argument in properties.items():
            if self._is_shown(own):
                shown[self._renamed.get(own, own)] = self._show_argument(own, argument)
        members["properties"] = Raw(encode(shown))
        if "required" in members:
            # An argument with a default need not be sent.
            names = [
                self._renamed.get(own, own)
                for own in required
                if self._is_shown(own) and own not in self._defaults
            ]
            members["required"] = Raw(encode(names))
        for member in RULES & members.keys():
            # Encode the rule again, because the server may have written names with escapes. A rule
            # with such a name as a value is left out, too.
            rule = encode(decode(members[member]))
            if any(encode(own) in rule for own in (*self._hidden, *self._renamed)):
                # Leave out a rule about arguments that clients do not see. The server still
                # enforces it.
                del members[member]
        if self._hidden:
            rest = {key: members[key] for key in members.keys() - {"properties", "required"}}
            members |= _decode_members(self._reword_raw(Raw(encode(rest))))
        return Raw(encode(members))

    def _is_shown(self, own: str) -> bool:
        """Return whether clients see an argument.

        They do not see it if it is hidden, or if another argument was renamed to its name.
        own: the server's name of the argument.
        """
        # If two arguments have swapped their names, each name is in both dicts, and clients see
        # both arguments.
        return own not in self._hidden and (own in self._renamed or own not in self._own_names)

    def show_headers(self, headers: ParamHeaders) -> ParamHeaders:
        """Return the arguments that clients repeat in HTTP headers, by the names that clients see.

        Hidden arguments are left out.
        headers: path of each argument with `x-mcp-header`, as a tuple of the server's names -> what
            follows `Mcp-Param-` in the name of its header.
        """
        return {
            (self._renamed.get(own, own), *rest): header
            for (own, *rest), header in headers.items()
            if self._is_shown(own)
        }

    def _show_argument(self, own: str, schema: Raw) -> Raw:
        """Return the schema of an argument as clients see it.

        own: the server's name of the argument.
        """
        change = self._change.arguments.get(own)
        if change is None or (change.description is None and change.default is UNSET):
            return self._reword_raw(schema) if self._hidden else schema
        try:
            members = _decode_members(schema)
        except DECODE_ERRORS:
            # The schema is true or false.
            members = {}
        if change.description is not None:
            members["description"] = Raw(encode(change.description))
        if own in self._defaults:
            members["default"] = self._defaults[own]
        return Raw(encode(members))

    def _reword_raw(self, value: Raw) -> Raw:
        """Return part of a definition, as JSON, with its texts translated by reword()."""
        return Raw(encode(self._reword_texts(decode(value))))

    # Any: a JSON value.
    def _reword_texts(self, value: Any) -> Any:
        """Return part of a definition with its texts translated by reword(), not its values."""
        if isinstance(value, str):
            return self.reword(value)
        if isinstance(value, list):
            return [self._reword_texts(item) for item in cast("list[Any]", value)]
        if not isinstance(value, dict):
            return value
        members = dict(cast("dict[str, Any]", value))
        for key, item in members.items():
            # Other strings are values, such as the items of `enum`, and are not changed.
            if key in TEXTS or (isinstance(item, (dict, list)) and key not in VALUES):
                members[key] = self._reword_texts(item)
        return members

    def find_problems(self, tool: RawTool) -> list[str]:
        """Return what is wrong with the changes of arguments, as clauses for a log message.

        Returns [] if the schema has no `properties`: the names of its arguments are then unknown.
        tool: the server's definition.
        """
        try:
            schema = _decode_schema(tool["inputSchema"])
            known = _decode_members(schema["properties"])
            required = decode(schema.get("required", b"[]"), type=list[str])
        except (KeyError, *DECODE_ERRORS):
            return []
        return [
            f"there is no argument {own!r} to change"
            for own in self._change.arguments
            if own not in known
        ] + [
            f"no call can have the required argument {own!r}, because its name is that of another "
            "one now; rename it, or give it a value"
            for own in required
            if own not in self._hidden and not self._is_shown(own)
        ]

    # Calls

    def to_server_params(self, params: Mapping[str, Raw]) -> Mapping[str, Raw]:
        """Return the params of a client's call as the server must get them.

        The result has the server's names of the tool and its arguments. It also has the values of
        hidden arguments, and ArgumentChange.default for arguments that the client has not sent.
        params: the params of the client's call. `arguments` may be missing or null.
        Raises RpcError in these cases:
        - The call has a hidden argument, or an argument under its old name.
        - `arguments` is neither an object nor null.
        """
        own_params = {**params, "name": Raw(encode(self.name))}
        if not self._change.arguments:
            return own_params
        given = bytes(params.get("arguments", b"{}"))
        try:
            sent = {} if given == b"null" else _decode_members(given)
        except DECODE_ERRORS:
            # A server might treat such a value as an empty object, and run without the hidden
            # arguments.
            raise invalid_params("arguments: expected an object") from None
        arguments: dict[str, Raw] = {}
        for shown, value in sent.items():
            if shown in self._refused:
                raise invalid_params(f"Unexpected argument: {shown}")
            arguments[self._own_names.get(shown, shown)] = value
        own_params["arguments"] = Raw(encode({**self._defaults, **arguments, **self._hidden}))
        return own_params

    # Errors

    @property
    def changes_texts(self) -> bool:
        """Return whether reword() and reword_error() may change a message of the server."""
        return self.client_name != self.name or bool(self._renamed or self._hidden)

    def reword(self, text: str) -> str:
        """Return a message of the server as clients may see it.

        The server's names are replaced by the names that clients see, and the names and values of
        hidden arguments by `[hidden]`.
        """
        return self._replace_names(text)

    def reword_error(self, error: RpcError) -> RpcError:
        """Return an error of the server with its message and data translated as by reword()."""
        data = error.data
        if data is not None:
            data = self.reword_value(data)
        return RpcError(error.code, self.reword(error.message), data)

    # Any: a JSON value.
    def reword_value(self, value: Any) -> Any:
        """Return a JSON value with all strings translated as by reword(), also keys of objects."""
        if isinstance(value, str):
            return self.reword(value)
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            return {self.reword(key): self.reword_value(item) for key, item in members.items()}
        if isinstance(value, list):
            return [self.reword_value(item) for item in cast("list[Any]", value)]
        return value

    def _make_replacement(self, hidden: Mapping[str, Any]) -> Callable[[str], str]:
        """Return the function that translates texts.

        It replaces all names in one pass, so that two arguments may have swapped their names.
        """
        # The names and values of the hidden arguments.
        removed = set(hidden)
        for value in hidden.values():
            text = value if isinstance(value, str) else encode(value).decode()
            if len(text) >= LEAST_SECRET and text not in ("true", "false", "null"):
                # The text itself, and the text as JSON writes it between quotes.
                escaped = encode(text).decode()[1:-1]
                removed |= {text, escaped}
        parts: list[str] = []
        if removed:
            longest_first = sorted(removed, key=len, reverse=True)
            parts.append(r"(?<!\w)(?:" + "|".join(map(re.escape, longest_first)) + r")(?!\w)")
        names = dict(self._renamed)
        if self._renamed:
            choices = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
            parts.append(f"(?P<before>{BEFORE})(?P<argument>{choices}){AFTER}")
        if self.client_name != self.name:
            parts.append(rf"(?<![\w-])(?P<tool>{re.escape(self.name)})(?![\w-])")
        if not parts:
            return lambda text: text
        pattern = re.compile("|".join(parts), re.MULTILINE)

        def replace(match: re.Match[str]) -> str:
            groups = match.groupdict()
            if (argument := groups.get("argument")) is not None:
                return f"{groups['before']}{names[argument]}"
            return HIDDEN if groups.get("tool") is None else self.client_name

        return lambda text: pattern.sub(replace, text)


def _decode_schema(schema: Raw) -> dict[str, Raw]:
    """Return the members of an input schema, with its arguments in `properties`.

    The schema of a class that refers to itself may be `{"$ref": "#/$defs/NAME", "$defs": ...}`.
    Then the result has the members of this definition, and no `$ref`. It also has the definition in
    `$defs` if another schema refers to it.
    Raises the exceptions in DECODE_ERRORS if the schema is not an object.
    """
    members = _decode_members(schema)
    try:
        pointer = decode(members["$ref"], type=str)
        definitions = _decode_members(members["$defs"])
        definition = _decode_members(definitions.pop(pointer.removeprefix(DEFINITIONS)))
    except (KeyError, *DECODE_ERRORS):
        # There is no reference to a definition. Hide the arguments nevertheless.
        return members
    if not pointer.startswith(DEFINITIONS):
        return members
    del members["$ref"]
    members = {**definition, **members}
    # Encode it again, because the server may have written the same pointer with escapes.
    others = encode(decode(encode({**members, "$defs": definitions})))
    if encode(pointer) not in others:
        members["$defs"] = Raw(encode(definitions))
    return members


def _meta_of(tool: RawTool) -> Mapping[str, Raw]:
    try:
        return _decode_members(tool.get("_meta", b"{}"))
    except DECODE_ERRORS:
        # `_meta` is not an object, for example null. Treat it as empty.
        return {}
