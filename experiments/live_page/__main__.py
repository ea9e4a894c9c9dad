"""Serve an experiment's page: `python -m experiments.live_page HOST PORT`, with commands on standard input."""

import asyncio
import sys

from experiments.live_page.server import serve

if __name__ == "__main__":
    sys.exit(asyncio.run(serve(sys.argv[1], int(sys.argv[2]))))
