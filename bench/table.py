"""table.py [PART...]: the rows of bench/results, or of these parts, as a table in Markdown."""

import json
import pathlib
import sys

RESULTS = pathlib.Path(__file__).parent / "results"


def table(part):
    run = json.loads((RESULTS / f"{part}.json").read_text())
    print(f"**{part}**, {run['when']}, eskit_lease {run['machine']['extension']}\n")
    print("| what | measured | against | ratio (spread) | bound |")
    print("|---|---|---|---|---|")
    for row in run["rows"]:
        what = row["what"].lstrip()
        # A row that belongs to the row above is indented.
        indent = "&emsp;" * (what != row["what"])
        cells = [indent + what, row["measured"], row["compared"], row["ratio"], f"{row['bound']} {row['verdict']}".strip()]
        print("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    print()


if __name__ == "__main__":
    for part in sys.argv[1:] or sorted(file.stem for file in RESULTS.glob("*.json")):
        table(part)
