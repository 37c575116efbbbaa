"""Shared by the benchmarks: connections, pgbench, interleaved repetitions, and the table of results."""

import datetime
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess

import psycopg

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent


MAJOR = os.environ.get("BENCH_PG", "15")
KNOBS = {"BENCH_PG"}  # the variables that change the load, or what bears it


def number(name, default):
    KNOBS.add(name)
    return int(os.environ.get(name, default))


SECONDS = number("BENCH_SECONDS", 2)
REPEAT = number("BENCH_REPEAT", 9)
CLIENTS = number("BENCH_CLIENTS", 16)
THREADS = number("BENCH_THREADS", 2)
BULK = number("BENCH_BULK", 100_000)
SESSIONS = number("BENCH_SESSIONS", 10_000)
ROUNDS = number("BENCH_ROUNDS", 500)


def connect():
    return psycopg.connect("dbname=postgres", autocommit=True)


def one(db, sql, *values):
    """Returns the first row of a statement, or its value if it has one column."""
    row = db.execute(sql, values).fetchone()
    return row[0] if row is not None and len(row) == 1 else row


def stats(db):
    return dict(db.execute("SELECT name, value FROM eskit_lease.stats()").fetchall())


def script_file(name, text=None):
    """Returns a file with a script of bench/sql, or with this text, and with the scripts that it includes, which
    pgbench cannot do."""
    scripts, file = HERE / "sql", ROOT / "target" / "bench" / f"{name}.sql"
    include = re.compile(r"^\\i (.*)\n", re.M)
    file.parent.mkdir(parents=True, exist_ok=True)
    text = text or (scripts / f"{name}.sql").read_text()
    file.write_text(include.sub(lambda found: (scripts / found[1]).read_text(), text))
    return file


def pgbench_command(script, *options, clients=CLIENTS, threads=THREADS, seconds=SECONDS, times=None, text=None, **variables):
    """Returns the command that runs the script for so many seconds, or so many times."""
    defines = [f"--define={name}={value}" for name, value in {"ready": "false", **variables}.items()]
    return [
        "pgbench", "--no-vacuum", "--protocol=prepared", f"--client={clients}", f"--jobs={min(threads, clients)}",
        f"--transactions={times}" if times else f"--time={seconds}", f"--file={script_file(script, text)}", *defines, *options, "postgres",
    ]  # fmt: skip


def pgbench(script, **options):
    """Returns the transactions per second of a script."""
    done = subprocess.run(pgbench_command(script, **options), capture_output=True, text=True)
    tps = re.search(r"^tps = ([0-9.]+)", done.stdout, re.M)
    if done.returncode != 0 or tps is None:
        raise SystemExit(f"pgbench {script} failed:\n{done.stdout}{done.stderr}")
    return float(tps[1])


def interleave(variants, repeat=REPEAT):
    """Measures each of the variants in turn, `repeat` times over, so that all see the same state of the machine.

    Many short rounds are better than few long ones, as other processes may use the processors. A first round, with cold
    caches and new files, does not count."""
    values = {name: [] for name in variants}
    for measure in variants.values():
        measure()
    for _ in range(repeat):
        for name, measure in variants.items():
            values[name].append(measure())
    return values


def percentiles(values):
    return [percentile(values, percent) for percent in range(101)]


def percentile(values, percent):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else float("nan")


class Report:
    """The rows of the table: figures, the figures that they are compared with, and whether a bound holds."""

    def __init__(self):
        self.rows, self.charts = [], {}

    def add(self, what, measured, compared="", ratio="", bound="", ok=None):
        verdict = "" if ok is None else "PASS" if ok else "FAIL"
        row = {"what": what, "measured": measured, "compared": compared, "ratio": ratio, "bound": bound, "verdict": verdict}
        self.rows.append(row)
        print(f"  {what:<46} {measured:<32} {compared:<48} {ratio:<18} {bound:<8} {verdict}".rstrip(), flush=True)

    def ratio(self, what, ours, against, theirs, unit="/s", at_least=None, at_most=None):
        """Compares repetition by repetition, and reports the median of the ratios, and their spread."""
        ratios = [a / b for a, b in zip(ours, theirs)]
        middle = statistics.median(ratios)
        bound, ok = "", None
        if at_least is not None:
            bound, ok = f">= {at_least}", middle >= at_least
        elif at_most is not None:
            bound, ok = f"<= {at_most}", middle <= at_most
        self.add(what, show(ours, unit), f"{against} {show(theirs, unit)}",
                 f"{middle:.2f} ({min(ratios):.2f}-{max(ratios):.2f})", bound, ok)  # fmt: skip

    def check(self, what, measured, bound, ok):
        self.add(what, measured, "", "", bound, ok)

    def chart(self, name, kind, title, x, y, data):
        """Writes what bench/plots.py draws, to bench/results/NAME.svg. `data` has for each label: for "bars" the
        values, for a "distribution" its percentiles from 0 to 100, for "lines" the values at each x: [[x, values],
        ...]. Bars may be in groups that are compared within: then `data` has such labels for each group. `x` and `y`
        say what is measured, with its unit. Labels with eskit_lease in them stand out."""
        self.charts[name] = {"kind": kind, "title": title, "x": x, "y": y, "data": data}

    def failed(self):
        return [row["what"] for row in self.rows if row["verdict"] == "FAIL"]

    def save(self, path, busy_before):
        with connect() as db:
            version = one(db, "SELECT extversion FROM pg_extension WHERE extname = 'eskit_lease'")
            server = one(db, "SHOW server_version")
        machine = {
            "processor": processor(),
            "cores": os.cpu_count(),
            "load average before": busy_before,
            "kernel": platform.release(),
            "server": server,
            "extension": f"{version} {REVISION}",
        }
        load = {"seconds": SECONDS, "repeat": REPEAT, "clients": CLIENTS, "threads": THREADS, "bulk": BULK, "sessions": SESSIONS, "rounds": ROUNDS}
        when = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
        path.parent.mkdir(exist_ok=True)
        text = json.dumps({"when": when, "machine": machine, "load": load, "rows": self.rows, "charts": self.charts}, indent=1)
        # Rows of numbers are put on one line.
        text = re.sub(r"\[[-+0-9.e,\s]+\]", lambda found: re.sub(r"\s+", " ", found[0]), text)
        path.write_text(text + "\n")


def show(values, unit):
    middle, low, high = statistics.median(values), min(values), max(values)
    form = (lambda v: f"{v:,.0f}") if middle >= 100 else (lambda v: f"{v:.2f}")
    return f"{form(middle)} {unit} ({form(low)}-{form(high)})"


def processor():
    found = re.search(r"^model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    return found[1] if found else platform.machine()


def revision():
    """The commit that is measured; -dirty if the tree has anything else but newer results."""
    git = lambda *words: subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True).stdout.strip()
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench/results")
    return git("rev-parse", "--short=12", "HEAD") + ("-dirty" if changed else "")


# At the start: a part that is done has written its results.
REVISION = revision()
