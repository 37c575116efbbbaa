"""Fenced tables: a transaction of a fence_check and 100 rows, with the table fenced and not fenced. Measured as the
client sees it, from BEGIN to the answer of COMMIT, and in processor time of the backend, in which no wait for client or
disk hides the cost of the triggers. That cost is small beside the changes of a machine's speed from second to second,
so each repetition is a number of short turns."""

import time

from groups import Group, Processor
from harness import REPEAT, connect, number, one

FORMS = {"plain": None, "whole": "'bench/fenced'", "by_column": "'bench/fenced', 'partition'"}
TURNS = number("BENCH_FENCED", 30)
TRANSACTIONS = 10
ROWS = 100
PAYLOAD = "what a projection writes for one event"


def one_insert(db, table):
    db.execute(f"INSERT INTO {table} (partition, payload) SELECT 0, %s FROM generate_series(1, %s)", (PAYLOAD, ROWS), prepare=True)


def inserts(db, table):
    for _ in range(ROWS):
        db.execute(f"INSERT INTO {table} (partition, payload) VALUES (0, %s)", (PAYLOAD,), prepare=True)


def copy(db, table):
    with db.cursor().copy(f"COPY {table} (partition, payload) FROM STDIN") as rows:
        rows.write(f"0\t{PAYLOAD}\n" * ROWS)


def fenced(report):
    with connect() as db:
        session = one(db, "SELECT session FROM eskit_lease.session_open('fenced', '1 h')")
        Group(db, "bench/fenced", 1).fill([session])
        fence = one(db, "SELECT fence FROM eskit_lease.group_assignment('bench/fenced', %s)", session)
        cpu = Processor(db)

        def clear():
            for table, fenced in FORMS.items():
                db.execute(
                    f"""
                    DROP TABLE IF EXISTS {table};
                    CREATE TABLE {table} (
                        n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, partition integer NOT NULL, payload text NOT NULL)
                    """
                )
                if fenced:
                    db.execute(f"SELECT eskit_lease.table_fence('{table}', {fenced})")

        def transactions(table, write):
            for _ in range(TRANSACTIONS):
                with db.transaction():
                    db.execute("SELECT eskit_lease.fence_check('bench/fenced', %s)", (fence,), prepare=True)
                    write(db, table)

        def repetition(write):
            """Returns for each form the transactions per second, and per second of processor time."""
            clear()
            for table in FORMS:
                transactions(table, write)
            spent = dict.fromkeys(FORMS, (0, 0))
            for _ in range(TURNS):
                for table in FORMS:
                    seconds, milliseconds = spent[table]
                    before, began = cpu.milliseconds(), time.monotonic()
                    transactions(table, write)
                    spent[table] = seconds + time.monotonic() - began, milliseconds + cpu.milliseconds() - before
            done = TURNS * TRANSACTIONS
            return {table: (done / seconds, done * 1_000 / milliseconds) for table, (seconds, milliseconds) in spent.items()}

        for write, how in ((one_insert, "one INSERT"), (inserts, "100 INSERTs"), (copy, "COPY")):
            values = [repetition(write) for _ in range(REPEAT)]
            plain, cpu_plain = zip(*(value["plain"] for value in values))
            for table, what in (("whole", "fenced table"), ("by_column", "by a column")):
                ours, cpu_ours = zip(*(value[table] for value in values))
                report.ratio(f"{what}, 100 rows by {how}", ours, "not fenced", plain, at_least=0.9)
                report.ratio("  in processor time (information)", cpu_ours, "not fenced", cpu_plain, "/cpu s")
