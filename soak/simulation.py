"""Simulated worlds around the server, as many as wanted, on all cores: see tests/simulation.

scripts/soak simulation [--seeds N] [--from M] [--jobs J]     run them
scripts/soak simulation --replay SEED                         run one and show every frame
scripts/soak simulation --proxy [--replay SEED]               a proxy and its server's processes
scripts/soak simulation --nats [--replay SEED]                plugins that call each other over NATS
scripts/soak simulation --orders                              every order of events around two calls

Seeds that fail are added to tests/simulation/seeds.txt.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

if __name__ == "__main__":
    # A process of its own: this file has the package's name, and the processes that it starts must
    # find the package.
    paths = [str(ROOT / "tests"), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    os.execve(sys.executable, [sys.executable, "-m", "simulation", *sys.argv[1:]], environment)
