"""Calls the functions of eskit_lease that ../test_drivers.py sends, with psycopg, as docs/drivers.md says. That test
describes the lines.

Arguments: the URL of the database; `native` or `text`."""

import json
import sys
from datetime import datetime, timedelta
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

URL, STYLE = sys.argv[1:]


def elements(of):
    return lambda value: [None if element == r"\N" else of(element) for element in value.split("|")]


def array(value):
    quoted = [element if element == r"\N" else json.dumps(element) for element in value.split("|")]
    return "{" + ",".join(quoted).replace(r"\N", "NULL") + "}"


NATIVE = {
    "text": str, "integer": int, "bigint": int, "boolean": lambda value: value == "true", "uuid": UUID,
    "interval": lambda value: timedelta(seconds=int(value.split()[0])), "timestamp with time zone": datetime.fromisoformat,
    "jsonb": lambda value: Jsonb(json.loads(value)), "regclass": str, "regrole": str,
    "text[]": elements(str), "bigint[]": elements(int), "integer[]": elements(int), "jsonb[]": elements(lambda value: Jsonb(json.loads(value))),
    "uuid[]": elements(UUID),
}  # fmt: skip


def passed(type, value):
    if value == r"\N":
        return None
    if STYLE == "native":
        return NATIVE[type](value)
    return array(value) if type.endswith("[]") else value


with psycopg.connect(URL, autocommit=True, prepare_threshold=None) as db:
    for line in sys.stdin:
        function, *arguments = line.rstrip("\n").split("\t")
        values = [passed(type, value) for type, value in zip(arguments[::2], arguments[1::2], strict=True)]
        marks = ", ".join(["%s"] * len(values))
        try:
            answer = db.execute(f"SELECT coalesce(jsonb_agg(x), '[]')::text FROM (SELECT * FROM eskit_lease.{function}({marks})) AS x", values)
            print(answer.fetchone()[0], flush=True)
        except psycopg.Error as error:
            print(f"!{error.sqlstate} {error.diag.message_primary}", flush=True)
