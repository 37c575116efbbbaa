"""Prints the demo's output, for a person."""

import sys
import time

TTY = sys.stdout.isatty()

# Each proof: its statement, and a query that gives (value shown, whether it holds).
PROOFS = [
    ("events written", "SELECT count(*), count(*) >= 20000 FROM order_events"),
    ("events applied", "SELECT count(*), count(*) = (SELECT count(*) FROM order_events) FROM applied"),
    ("different events applied", "SELECT count(DISTINCT position), count(DISTINCT position) = (SELECT count(*) FROM order_events) FROM applied"),
    ("events missing", """SELECT count(*), count(*) = 0 FROM order_events e
        WHERE NOT EXISTS (SELECT FROM applied a WHERE a.position = e.position)"""),
    ("events applied twice", "SELECT count(*), count(*) = 0 FROM (SELECT FROM applied GROUP BY position HAVING count(*) > 1) d"),
    ("events out of turn", """SELECT count(*), count(*) = 0
        FROM (SELECT fence < lag(fence) OVER (ORDER BY position) AS falls FROM applied) f WHERE falls"""),
    ("sum of all orders, in cents", """SELECT sum(cents), sum(cents) = (SELECT sum(cents) FROM order_events)
        AND sum(orders) = (SELECT count(*) FROM order_events) FROM customer_totals"""),
    ("customers whose totals differ", """SELECT count(*), count(*) = 0 FROM customer_totals t
        FULL JOIN (SELECT customer, count(*) AS orders, sum(cents) AS cents FROM order_events GROUP BY customer) e USING (customer)
        WHERE (t.orders, t.cents) IS DISTINCT FROM (e.orders, e.cents)"""),
]  # fmt: skip


def paint(code, text):
    return f"\x1b[{code}m{text}\x1b[0m" if TTY else text


def heading(text):
    print(f"\n{paint('1', text)}")


class Report:
    def __init__(self, db):
        self.db, self.started = db, time.time()
        (version,) = db.execute("SELECT current_setting('server_version')").fetchone()
        (extension,) = db.execute("SELECT extversion FROM pg_extension WHERE extname = 'eskit_lease'").fetchone()
        print(paint("1", f"eskit_lease {extension} on PostgreSQL {version.split()[0]}: four consumers, one stream, TTL 2 s"))

    def live(self, at, text):
        for word, code in (("leads", "32"), ("killed", "31"), ("SIGSTOP", "33"), ("SIGTERM", "36"), ("refused", "35")):
            if word in text:
                text = paint(code, text)
                break
        print(f"{at - self.started:7.2f} s  {text}", flush=True)

    def print(self, reigns, zombie, heir, refused, asleep):
        self.reigns(reigns)
        self.hand_overs(reigns)
        proven = self.zombie(zombie, heir, refused, asleep) & self.proofs()
        took = f"{time.time() - self.started:.1f} s"
        print("\n" + (paint("1;32", f"Every event was applied exactly once. {took}") if proven else paint("1;31", "NOT PROVEN")))
        return proven

    def reigns(self, reigns):
        applied = dict(self.db.execute("SELECT fence, count(*) FROM applied GROUP BY fence"))
        heading(f"{'Who led':12}  {'fence':>16}  {'from':>8}  {'until':>8}  {'events':>7}  ended because")
        why = {
            "killed": "it was killed",
            "stopped": "its TTL ran out while it was stopped",
            "released": "it was asked to, and released",
            "drained": "the stream was drained",
            "lost": "its TTL ran out (the machine was too busy)",
        }
        for reign in reigns:
            print(f"{reign.consumer.name:12}  {reign.fence:16}  {reign.since - self.started:6.2f} s  "
                  f"{reign.until - self.started:6.2f} s  {applied.get(reign.fence, 0):7,}  {why[reign.fault[0]]}")

    def hand_overs(self, reigns):
        heading(f"{'Hand-over':26}  {'latency':>10}")
        for old, new in zip(reigns, reigns[1:]):
            kind, since, *more = old.fault
            note = {
                "killed": "after the kill: its connection broke, and with it its session",
                "stopped": f"after its deadline, {new.since - (more or [since])[0]:.2f} s after it was stopped",
                "released": "after the request: it finished what it was at, and let go",
            }.get(kind, "after it noticed")
            print(f"{old.consumer.name} -> {new.consumer.name:12}  {(new.since - since) * 1000:7.1f} ms  {note}")

    def zombie(self, zombie, heir, refused, asleep):
        heading("The zombie")
        print(f"{zombie.consumer.name} slept for {asleep:.2f} s and then wrote its batch, not knowing that {heir.consumer.name} leads:")
        if not refused:
            print(paint("31", "  NOT REFUSED"))
            return False
        print(f"  ERROR {refused['sqlstate']}: {refused['message']}")
        print(f"  DETAIL: {refused['detail']}")
        return True

    def proofs(self):
        heading("The proof")
        proven = True
        for what, sql in PROOFS:
            value, holds = self.db.execute(sql).fetchone()
            proven &= bool(holds)
            print(f"{what:32} {value:>15,}  {paint('32', 'ok') if holds else paint('31', 'WRONG')}")
        return proven
