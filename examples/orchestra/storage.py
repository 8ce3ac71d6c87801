"""Storage for other plugins: Markdown files in a folder that the plugins file names."""

from concertino import Plugin
from concertino.orchestra.markdown import MarkdownStorage

plugin = Plugin("storage.notes", version="1.0.0", description="Markdown files in a folder.")


@plugin.on_boot
def open_folder(config: dict[str, str]) -> None:
    plugin.add_storage(MarkdownStorage(config.get("folder", ".")))


if __name__ == "__main__":
    plugin.run()
