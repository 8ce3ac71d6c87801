"""ToolChange and ArgumentChange: the changes that a Transform makes to a tool.

ToolChange("new_name", arguments={"repo": ArgumentChange(value="octocat/hello")})
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.json import encode

from concertino.near_names import HintingStructMeta

__all__ = ["ArgumentChange", "ToolChange"]


class ArgumentChange(Struct, frozen=True, metaclass=HintingStructMeta):
    """The changes that a Transform makes to one argument of a tool.

        ArgumentChange(name="owner", default="octocat")
        ArgumentChange(env="GITHUB_OWNER")                 # clients do not see this argument

    A field that is not given changes nothing. At most one of default, value and env may be given.

    name: the new name of the argument.
    description: the new description.
    default: the value that the tool gets if the client does not send the argument; any JSON value.
    value: the value that the tool always gets; any JSON value. The argument is hidden: clients do
        not see it, and may not send it.
    env: the name of an environment variable. The tool always gets its value, as a string, and the
        argument is hidden. The variable is read when the Transform is created.

    Raises ValueError if more than one of default, value and env is given, if a hidden argument gets
    a name or a description, or if a field has a wrong type.
    """

    name: str | None = None
    description: str | None = None
    default: Any | UnsetType = UNSET
    value: Any | UnsetType = UNSET
    env: str | None = None

    def __post_init__(self) -> None:
        given = [
            name
            for name, is_given in (
                ("default", self.default is not UNSET),
                ("value", self.value is not UNSET),
                ("env", self.env is not None),
            )
            if is_given
        ]
        if len(given) > 1:
            raise ValueError(f"expected one of default, value and env, got {' and '.join(given)}")
        if self.is_hidden and (self.name is not None or self.description is not None):
            raise ValueError("a hidden argument has no name and no description")
        _check_texts({"name": self.name, "env": self.env}, {"description": self.description})
        for field, value in (("default", self.default), ("value", self.value)):
            # encode() raises if the value is not JSON.
            try:
                encode(None if value is UNSET else value)
            except (TypeError, ValueError) as exc:
                raise ValueError(f"{field}: expected a JSON value: {exc}") from None

    @property
    def is_hidden(self) -> bool:
        """Return whether clients do not see the argument."""
        return self.value is not UNSET or self.env is not None


class ToolChange(Struct, frozen=True, metaclass=HintingStructMeta):
    """The changes that a Transform makes to a tool. A field that is None changes nothing.

    name: the new name. Clients cannot call the tool by its old name any more.
    title, description: the new texts.
    tags: more words by which a ToolSearch finds the tool. Clients get them as `concertino/tags` in
        the tool's `_meta`. () to change nothing.
    arguments: the server's name of an argument -> its changes.

    Raises ValueError if a field has a wrong type, and if two arguments would get the same name.
    """

    name: str | None = None
    title: str | None = None
    description: str | None = None
    tags: tuple[str, ...] = ()
    arguments: Mapping[str, ArgumentChange] = {}

    def __post_init__(self) -> None:
        _check_texts({"name": self.name}, {"title": self.title, "description": self.description})
        # Any: callers without a type checker pass anything.
        tags: Any = self.tags
        if isinstance(tags, str) or not all(isinstance(tag, str) for tag in tags):
            raise ValueError(f"tags: expected a tuple of texts, got {tags!r}")
        names: dict[str, str] = {}
        for own, change in self.arguments.items():
            given: Any = change
            if not isinstance(given, ArgumentChange):
                raise ValueError(f"arguments: {own}: expected an ArgumentChange, got {given!r}")
            if change.is_hidden:
                continue
            shown = change.name or own
            if (other := names.setdefault(shown, own)) != own:
                raise ValueError(f"both {other!r} and {own!r} would be called {shown!r}")


def _check_texts(names: Mapping[str, Any], texts: Mapping[str, Any]) -> None:
    """Raise ValueError for a name that is empty, and for a name or text that is not a string."""
    for field, value in names.items():
        if value is not None and (not isinstance(value, str) or not value):
            raise ValueError(f"{field}: expected a name, got {value!r}")
    for field, value in texts.items():
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{field}: expected a text, got {value!r}")
