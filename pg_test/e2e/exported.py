"""What monitoring/queries.yaml exports."""

import re

from conftest import ROOT

QUERIES = (ROOT / "monitoring/queries.yaml").read_text()


def declared():
    """Returns the statement, labels and metrics of each of the exporter's queries."""
    for name, query, metrics in re.findall(r"^(\w+):\n  query: \|\n((?:    .*\n)+)  metrics:\n((?:    .*\n)+)", QUERIES, re.M):
        columns = re.findall(r"- (\w+):\n +usage: (\w+)\n", metrics)
        yield name, query, [column for column, usage in columns if usage == "LABEL"], [column for column, usage in columns if usage != "LABEL"]


def measured(conn):
    """Returns what the exporter would report of the database as a whole, by the names without the prefix."""
    found = {}
    for name, query, labels, metrics in declared():
        if labels == ["datname"]:
            names = [f"{name}_{metric}".removeprefix("eskit_lease_") for metric in metrics]
            found |= dict(zip(names, conn.execute(query).fetchone()[1:], strict=True))
    return found
