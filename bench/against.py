"""against.py ROWS PART...: the rows of both sides, as bench/against has measured them in turns."""

import json
import pathlib
import re
import sys

FIGURE = re.compile(r" (p50 .*|[\d.,]+ (/s|ms|s)\b.*)$")  # a figure at the end of the column `compared`


def rows(turns, part):
    """Returns each row's ratios in all turns, or its measured values if it has no ratio."""
    found = {}
    for turn in sorted(turns.iterdir()):
        owner = ""
        for row in json.loads((turn / f"{part}.json").read_text())["rows"]:
            # An indented row belongs to the row above, and needs its name.
            owner = row["what"] if row["what"] == row["what"].lstrip() else owner
            key = (owner, row["what"].strip(), FIGURE.sub("", row["compared"]))
            found.setdefault(key, []).append((row["ratio"] or row["measured"]).split(" (")[0])
    return found


def main(kept, *parts):
    sides = {side.name.split(" ", 1)[1]: side for side in sorted(pathlib.Path(kept).iterdir())}
    for part in parts:
        of = {name: rows(turns, part) for name, turns in sides.items()}
        print(f"\n{part}")
        for key in (key for key in next(iter(of.values())) if all(key in found for found in of.values())):
            owner, what, against = key
            print(f"  {owner if owner == what else f'{owner}: {what}'}, of {against or 'nothing'}")
            for name, found in of.items():
                print(f"    {name:<12} {', '.join(found[key])}")


if __name__ == "__main__":
    main(*sys.argv[1:])
