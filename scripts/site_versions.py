"""Put a built site into a folder that holds one for each version of the package.

usage: python scripts/site_versions.py SITE FOLDER

FOLDER/0.1 is replaced by SITE when the package has a version 0.1.x. FOLDER/versions.json lists the
versions, the newest first, as the selector of the theme reads it; FOLDER/index.html leads to the
newest.
"""

import json
import shutil
import sys
from pathlib import Path

import concertino

REDIRECT = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>concertino</title>
<meta http-equiv="refresh" content="0; url={version}/">
<link rel="canonical" href="{version}/">
</head>
<body><a href="{version}/">concertino {version}</a></body>
</html>
"""


def main() -> None:
    site, folder = (Path(argument) for argument in sys.argv[1:])
    publish(site, folder, ".".join(concertino.__version__.split(".")[:2]))


def publish(site: Path, folder: Path, version: str) -> None:
    """Put a site into a folder as one version, and list all versions that are there."""
    target = folder / version
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(site, target)
    versions = sorted(
        (path.parent.name for path in folder.glob("*/objects.inv")), key=numbers, reverse=True
    )
    listed = [
        {"version": item, "title": item, "aliases": ["latest"] if item == versions[0] else []}
        for item in versions
    ]
    (folder / "versions.json").write_text(json.dumps(listed, indent=1) + "\n")
    (folder / "index.html").write_text(REDIRECT.format(version=versions[0]))


def numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


if __name__ == "__main__":
    main()
