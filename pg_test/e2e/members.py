"""A member of a group for the tests, and what they check of a group."""

from collections import Counter

import psycopg
from client import Session, call, rows
from conftest import wait_until

PARTITIONS = "SELECT partition, state, session, fence, revoke_in FROM eskit_lease.group_partitions WHERE group_name = 'g' ORDER BY 1"


def create(conn, partitions, timeout="1 h", **settings):
    call(conn, "group_create", "g", partitions, settings.get("assignor", "sticky"), timeout, settings.get("settle", "0 s"))


class Member(Session):
    """A session in the group `g`, which releases revoked partitions when the test says so."""

    owned, revoking = {}, {}

    def join(self):
        call(self.conn, "group_join", "g", self.id)
        return self

    def leave(self):
        return call(self.conn, "group_leave", "g", self.id)

    def assignment(self):
        """Returns {partition: fence} of what the member owns; `revoking` has those that it must release."""
        answer = rows(self.conn, "group_assignment", "g", self.id)
        self.owned = {row.partition: row.fence for row in answer}
        self.revoking = {row.partition: row.fence for row in answer if row.state == "revoking"}
        return self.owned

    def give_back(self):
        self.assignment()
        for partition, fence in self.revoking.items():
            call(self.conn, "group_release", "g", partition, fence)
        return len(self.revoking)

    def hears(self):
        """Returns whether the revision has grown since the last call."""
        before, self.revision = self.revision, self.heartbeat().revision
        return self.revision > before


def owners(conn):
    """Returns each partition's session, or None if no living session owns it."""
    return [row[2] if row[1] in ("owned", "revoking") else None for row in conn.execute(PARTITIONS)]


def shares(conn):
    return sorted(Counter(owners(conn)).values())


def settled(conn, members):
    """Returns whether these members own all partitions, in shares that differ by one at most."""
    states = conn.execute(PARTITIONS).fetchall()
    counts = [sum(row[2] == member.id for row in states) for member in members]
    return all(row[1] == "owned" for row in states) and sum(counts) == len(states) and max(counts) - min(counts) <= 1


def settle(conn, members):
    """Has the members release revoked partitions until all is settled."""

    def done():
        for member in members:
            member.give_back()
        return settled(conn, members)

    wait_until(done)


JOURNAL = "CREATE TABLE journal (place bigint GENERATED ALWAYS AS IDENTITY, partition int, fence bigint, session uuid)"
# Rows of a partition are numbered in commit order, under a lock that is held to the commit.
WRITE = "INSERT INTO journal (partition, fence, session) VALUES (%s, %s, %s)"


def write(conn, partition, fence, session):
    """Makes one fenced write, ordered by commit within its partition. Returns whether it succeeded."""
    try:
        with conn.transaction():
            call(conn, "fence_check", "g", fence)
            conn.execute("SELECT pg_advisory_xact_lock(77, %s)", (partition,))
            conn.execute(WRITE, (partition, fence, session))
        return True
    except psycopg.Error as error:
        assert error.sqlstate in ("LF001", "55P03"), error
        return False


def check_journal(conn):
    """Checks that fences never fall within a partition, and each fence has one writer: no other member wrote beside the
    owner."""
    falls = """SELECT * FROM (SELECT *, lag(fence) OVER (PARTITION BY partition ORDER BY place) AS before FROM journal) AS j
               WHERE fence < before"""
    assert conn.execute(falls).fetchall() == []
    assert conn.execute("SELECT fence FROM journal GROUP BY fence HAVING count(DISTINCT session) > 1").fetchall() == []
    return conn.execute("SELECT count(*), count(DISTINCT (partition, fence)) FROM journal").fetchone()
