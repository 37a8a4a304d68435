# SPDX-License-Identifier: Apache-2.0
"""
Write the drawn families as CSV files, one folder each; the known optimum, or the bound, is in the names.

For those with banks it says the bytes of a bank as well (`.bank15360.`), which `--bank-size` has to be given.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.instances import DRAWN
from penstock.passes.planning.minimalloc_csv import write_csv


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.instances", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="is made if it does not exist")
    parser.add_argument("--quick", action="store_true", help="a few small ones of each family")
    parser.add_argument("--only", metavar="FAMILY", choices=sorted(DRAWN), action="append")
    args = parser.parse_args()
    for family in args.only or DRAWN:
        folder: Path = args.folder / family
        for instance in DRAWN[family](args.quick):
            bank = instance.problem.bank_size
            middle = "" if bank is None else f".bank{bank}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{instance.name}{middle}.{instance.bound}.csv").write_text(write_csv(instance.problem))
    return 0


if __name__ == "__main__":
    sys.exit(main())
