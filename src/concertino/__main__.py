"""Runs the command line: `python -m concertino` is the same as the command `concertino`."""

from concertino.cli import main

main()
