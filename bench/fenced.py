"""Fenced tables: a transaction of a fence_check and 100 rows, where the table is fenced and where it is not. As its client sees it, from
BEGIN to the answer of COMMIT; and in processor time of the backend, where no wait for client or disk hides what the triggers cost."""

import time

from groups import Group, Processor
from harness import connect, interleave, number, one

FORMS = {"plain": "", "table": "'bench/fenced'", "column": "'bench/fenced', 'partition'"}
TRANSACTIONS = number("BENCH_FENCED", 300)
ROWS = 100
PAYLOAD = "what a projection writes for one event"


def one_insert(db):
    db.execute("INSERT INTO fenced_work (partition, payload) SELECT 0, %s FROM generate_series(1, %s)", (PAYLOAD, ROWS), prepare=True)


def inserts(db):
    for _ in range(ROWS):
        db.execute("INSERT INTO fenced_work (partition, payload) VALUES (0, %s)", (PAYLOAD,), prepare=True)


def copy(db):
    with db.cursor().copy("COPY fenced_work (partition, payload) FROM STDIN") as rows:
        rows.write(f"0\t{PAYLOAD}\n" * ROWS)


def fenced(report):
    with connect() as db:
        session = one(db, "SELECT session FROM eskit_lease.session_open('fenced', '1 h')")
        Group(db, "bench/fenced", 1).fill([session])
        fence = one(db, "SELECT fence FROM eskit_lease.group_assignment('bench/fenced', %s)", session)
        db.execute(
            "CREATE TABLE fenced_work (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, partition integer NOT NULL, payload text NOT NULL)"
        )
        cpu = Processor(db)

        def measure(form, write):
            """Transactions per second of processor time."""
            db.execute("SELECT eskit_lease.unfence_table('fenced_work')")
            db.execute("TRUNCATE fenced_work")
            if FORMS[form]:
                db.execute(f"SELECT eskit_lease.fence_table('fenced_work', {FORMS[form]})")
            before, began = cpu.milliseconds(), time.monotonic()
            for _ in range(TRANSACTIONS):
                with db.transaction():
                    db.execute("SELECT eskit_lease.fence_check('bench/fenced', %s)", (fence,), prepare=True)
                    write(db)
            return TRANSACTIONS / (time.monotonic() - began), TRANSACTIONS * 1_000 / (cpu.milliseconds() - before)

        for write, how in ((one_insert, "one INSERT"), (inserts, "100 INSERTs"), (copy, "COPY")):
            values = interleave({form: lambda form=form: measure(form, write) for form in FORMS})
            for form, what in (("table", "fenced table"), ("column", "by a column")):
                (ours, cpu_ours), (plain, cpu_plain) = zip(*values[form]), zip(*values["plain"])
                report.ratio(f"{what}, 100 rows by {how}", ours, "not fenced", plain, at_least=0.9)
                report.ratio("  in processor time", cpu_ours, "not fenced", cpu_plain, "/cpu s", at_least=0.9)
