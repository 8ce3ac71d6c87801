"""Puts the harness of tests/stdio beside the rooms of this folder: real processes, spoken to in lines."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "stdio"))
