"""Print what the checks need, one requirement a line: to build, to run with all extras, to develop.
With the name of a dependency group: what is needed to run, and that group. From pyproject.toml
alone.

pip has known `--group` only since 25.1, and the pip that a Python 3.11 brings along is older.
"""

import sys
import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)

groups = [project["project"]["dependencies"]]
if len(sys.argv) > 1:
    groups += [project["dependency-groups"][name] for name in sys.argv[1:]]
else:
    extras = project["project"]["optional-dependencies"]
    groups += [
        project["build-system"]["requires"],
        *(requirements for name, requirements in extras.items() if name != "all"),
        project["dependency-groups"]["dev"],
    ]
print("\n".join(requirement for group in groups for requirement in group))
