"""sqlalchemy_main.py lead CONSUMER | write FENCE | autocommit: the reader's part of sqlalchemy_leader.py."""

import json
import sys

import sqlalchemy_leader
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError


def work(db):
    db.execute(text("INSERT INTO applied (consumer) VALUES (:consumer)"), {"consumer": sys.argv[2]})
    return False


def told(engine):
    """Returns what another connection is told of a session that was opened by this engine."""
    with engine.connect() as db, sqlalchemy_leader.connect() as other:
        session = db.execute(text("SELECT session FROM eskit_lease.session_open('web', '1 min')")).scalar_one()
        return other.execute("SELECT reason FROM eskit_lease.session_heartbeat(%s)", (session,)).fetchone()[0]


try:
    match sys.argv[1]:
        case "lead":
            sqlalchemy_leader.run(sys.argv[2], work)
        case "write":
            sqlalchemy_leader.fenced(int(sys.argv[2]), work)
        case "autocommit":
            print(json.dumps({name: told(getattr(sqlalchemy_leader, name)) for name in ("engine", "leases")}))
except DBAPIError as error:
    print(error.orig.sqlstate)
