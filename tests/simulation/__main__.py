"""See seeds.py."""

import sys

from simulation.seeds import main

if __name__ == "__main__":
    sys.exit(main())
