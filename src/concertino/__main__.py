"""Run the command line: `python -m concertino` is the same as `concertino`."""

from concertino.cli import main

main()
