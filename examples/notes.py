"""A server of notes: resources, a template, a prompt, completion and resource updates.

python examples/notes.py
"""

from pathlib import Path
from typing import Literal

from concertino import Server, assistant, user
from concertino.types import Annotations, PromptMessage, ResourceContents

server = Server("notes", version="1.0.0", ttl_s=60)
notes = {"shopping": "Eggs, flour, plums.", "ideas": "A cake without an oven."}

server.add_resource(
    "notes://source",
    path=Path(__file__),
    title="The source of this server",
    mime_type="text/x-python",
)
server.add_resource(
    "notes://logo",
    blob=b"\x89PNG\r\n\x1a\n",
    mime_type="image/png",
    description="The first bytes of a logo.",
)


@server.resource("notes://index", annotations=Annotations(audience=["user"], priority=1.0))
def index() -> dict[str, int]:
    """The number of characters in each note."""
    return {name: len(text) for name, text in notes.items()}


@server.resource("notes://notes/{name}{?style}", mime_type="text/plain")
def note(name: str, style: Literal["plain", "shouted"] = "plain") -> str | None:
    """One note."""
    text = notes.get(name)
    return text if text is None or style == "plain" else text.upper()


@server.prompt(title="Improve a note")
def improve(
    name: str, sentences: int = 1, tone: Literal["friendly", "formal"] = "friendly"
) -> list[PromptMessage]:
    """Ask for a better note.

    Args:
        name: The name of the note.
        sentences: The most sentences that the new note may have.
    """
    return [
        user(
            ResourceContents(
                f"notes://notes/{name}", text=notes.get(name, ""), mime_type="text/plain"
            )
        ),
        user(f"Improve this note in at most {sentences} {tone} sentences."),
        assistant("Here is a better one:"),
    ]


@server.complete("improve", "name")
@server.complete("notes://notes/{name}{?style}", "name")
def names(value: str) -> list[str]:
    return [name for name in notes if name.startswith(value)]


@server.tool
def write(name: str, text: str) -> str:
    """Write a note."""
    notes[name] = text
    server.resource_updated(f"notes://notes/{name}")
    server.resource_updated("notes://index")
    return f"{name} has {len(text)} characters."


@server.tool
def pin(name: str) -> str:
    """Add a note to the list of resources."""
    server.add_resource(f"notes://pinned/{name}", text=notes[name], name=name)
    return f"{name} is pinned."


if __name__ == "__main__":
    server.run()
