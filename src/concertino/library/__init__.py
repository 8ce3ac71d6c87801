"""A folder of Markdown as a backend: resources to list, read and find, and prompts. Needs `concertino[library]`."""
