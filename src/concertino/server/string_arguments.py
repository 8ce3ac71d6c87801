"""StringArguments: converts strings from a client to the arguments of a handler.

Arguments of prompts and variables of resource templates are strings on the wire. A parameter that
accepts a str gets the string. Numbers, booleans and choices are converted. Lists, dicts and classes
are decoded from JSON. A server that has only tools never imports this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Raw
from msgspec.json import decode, encode

from concertino.backend.interface import Context
from concertino.decode_errors import DECODE_ERRORS
from concertino.schema.arguments import ArgumentDecoder, argument_decoder
from concertino.server.functions import Bound, Handler, check_handler

__all__ = ["StringArguments"]

# JSON Schema types whose values have an unambiguous spelling as a string.
NUMBERS = frozenset(("integer", "number", "boolean"))


class StringArguments:
    """Converts strings to the arguments of a handler.

    handler: the function.
    descriptions: the descriptions of its parameters in the docstring: name -> text.
    Raises RegistrationError for parameters whose types cannot be converted from a string.

    Attributes:
    schemas: parameter -> its JSON Schema, in the order of the parameters.
    required: the names of the parameters without a default.
    takes_context: whether the handler has a parameter for the Context.
    """

    def __init__(self, handler: Handler, descriptions: Mapping[str, str]) -> None:
        decoder: ArgumentDecoder = argument_decoder(
            handler, coerce=True, inject=(Context,), descriptions=descriptions
        )
        self._bind = decoder.bind
        self.takes_context = bool(decoder.injected)
        self._definitions: dict[str, Any] = decoder.schema.get("$defs", {})
        self.schemas: dict[str, dict[str, Any]] = decoder.schema.get("properties", {})
        # Logs likely mistakes. Without annotations all parameters are strings, which is right here.
        check_handler(handler, descriptions, self.schemas)
        self.required = frozenset[str](decoder.schema.get("required", ()))
        # How the string for each parameter is converted:
        # - "text": not at all,
        # - "number": by the decoder, which accepts numbers and booleans as strings,
        # - "json": by decoding it as JSON.
        self._conversions = {
            name: self._find_conversion(schema) for name, schema in self.schemas.items()
        }
        # For choices that are no strings, such as the 1 of Literal[1, "a"]: the parameter -> the
        # strings for its choices, such as {"1": 1}. bind() looks here first.
        self._spellings = {name: self._find_spellings(s) for name, s in self.schemas.items()}

    def bind(self, values: Mapping[str, Any], context: Context) -> Bound:
        """Return the positional and keyword arguments for one call of the handler.

        values: name of a parameter -> its value from the client. The value is a str. For a variable
            such as {x*} of a URI template, it is a list or dict of str.
        context: the context of the call, for a handler that has a parameter for it.
        Raises InvalidArguments for invalid values. Its text names all of them.
        """
        arguments: dict[str, Any] = {}
        for name, value in values.items():
            conversion = self._conversions.get(name, "text")
            # Clients send an empty string for a field that the user has left empty.
            if value == "" and conversion != "text" and name not in self.required:
                continue
            if isinstance(value, str):
                value = self._spellings.get(name, {}).get(value, value)
            # The value is no longer a str if it is the spelling of a choice.
            if conversion == "json" and isinstance(value, str):
                value = _parse_json(value)
            arguments[name] = value
        return self._bind(encode(arguments), context)

    def takes_only_text(self, name: str) -> bool:
        """Return whether the parameter with this name accepts neither a list nor a dict."""
        types = self._types(self.schemas[name])
        return self._conversions[name] != "json" and types.isdisjoint(("any", "array", "object"))

    def choices(self, name: str) -> list[str]:
        """Return all strings that a parameter accepts if its type is a Literal, an Enum or bool.

        name: the name of the parameter.
        Returns [] for other types.
        """
        members = self._members(self.schemas[name])
        texts = (item if isinstance(item, str) else encode(item).decode() for item in members)
        return list(dict.fromkeys(texts))

    def _members(self, schema: dict[str, Any]) -> list[Any]:
        """Return the JSON values that a schema enumerates, except null; [] if there are none."""
        schema = self._resolve(schema)
        if schema.get("type") == "boolean":
            return [True, False]
        values = list(schema.get("enum", ()))
        if "const" in schema:
            values.append(schema["const"])
        members = [value for value in values if value is not None]
        for branch in schema.get("anyOf", ()):
            members += self._members(branch)
        return members

    def _find_spellings(self, schema: dict[str, Any]) -> dict[str, Raw]:
        """Return the choices of an Enum or a Literal that are not strings: spelling -> JSON value.

        For Literal[1, "a"], the result is {"1": 1}. A spelling that is also a string among the
        choices is left out.
        """
        members = self._members(schema)
        spellings = {
            encode(item).decode(): Raw(encode(item))
            for item in members
            if not isinstance(item, str)
        }
        return {text: raw for text, raw in spellings.items() if text not in members}

    def _find_conversion(self, schema: dict[str, Any]) -> str:
        """Return how strings are converted for a schema: "text", "number" or "json"."""
        types = self._types(schema)
        if types & {"any", "string"}:
            return "text"
        without_null = types - {"null"}
        return "number" if without_null and without_null <= NUMBERS else "json"

    def _types(self, schema: dict[str, Any]) -> set[str]:
        """Return the names of the JSON types that a schema allows; {"any"} if it names none."""
        schema = self._resolve(schema)
        if "anyOf" in schema:
            return set[str]().union(*map(self._types, schema["anyOf"]))
        values = [*schema.get("enum", ()), schema.get("const")]
        if any(isinstance(value, str) for value in values):
            return {"string"}
        if "type" in schema:
            types = schema["type"]
            return {types} if isinstance(types, str) else set(types)
        # An enumeration without strings needs no type. "enum" is none of the types that
        # _find_conversion() looks for, so its values are decoded as JSON.
        return {"enum"} if "enum" in schema or "const" in schema else {"any"}

    def _resolve(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the schema itself, or the definition to which its `$ref` leads."""
        while isinstance(name := schema.get("$ref"), str):
            schema = self._definitions[name.removeprefix("#/$defs/")]
        return schema


def _parse_json(text: str) -> Any:
    """Return a text as Raw if it is JSON; otherwise as a str, for which the decoder will raise."""
    try:
        decode(text)
    except DECODE_ERRORS:
        return text
    return Raw(text.encode())
