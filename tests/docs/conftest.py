"""Puts the rooms of tests/interop beside those of this folder: some pages are tried with the official clients."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "interop"))
