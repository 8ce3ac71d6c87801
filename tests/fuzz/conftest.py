"""Puts the repository's own folder on the path: fuzz/ is not installed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
