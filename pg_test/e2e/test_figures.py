"""The figures of the front page, of the page on speed and of the comparison are those of the last measurement in
bench/results."""

import json
import re
import subprocess
import tomllib

from conftest import ROOT, once

pytestmark = once

README, SPEED, COMPARISON = ROOT / "README.md", ROOT / "docs/speed.md", ROOT / "docs/comparison.md"
RESULTS = {file.stem: json.loads(file.read_text()) for file in (ROOT / "bench/results").glob("*.json")}
BEAT, REFUSED, HOLDER = "session_heartbeat", "lease_acquire, refused", "lease_acquire by the holder"
NEW, CHECK, RELEASE = "lease_acquire of a new name + lease_release", "fence_check with an INSERT", "lease_release until"
DONE, STORM = "items claimed, then done, {} at a time, {}", "expiry of 100,000 leases, {} waited for"


def row(part, what, other=""):
    """Returns the first row that has this name, or is indented below a row of this name, and that has `other` in its
    own name or is compared with `other`."""
    above = ""
    for found in RESULTS[part]["rows"]:
        above = above if found["what"].startswith(" ") else found["what"]
        if above.startswith(what) and (found["compared"].startswith(other) or found["what"].lstrip().startswith(other)):
            return found
    raise LookupError(f"{part}: {what}: {other}")


def numbers(cell):
    return [float(number.replace(",", "")) for number in re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?", cell)]


def ratio(*name):
    return numbers(row(*name)["ratio"])[0]


def measured(*name):
    return numbers(row(*name)["measured"])


def compared(*name):
    return numbers(row(*name)["compared"])


def front_page():
    yield "{:.2f} of the rate of `SELECT 1`", ratio("rates", BEAT, "SELECT 1")
    yield "{:.2f} of the rate of that transaction without it", ratio("fence", CHECK, "without")
    yield "half within {:.2f} ms, 99 % within {:.2f} ms", *measured("handover", RELEASE)


def speed():
    yield "{:.2f} of `SELECT 1`, and {:.2f} of an empty function in C", ratio("rates", BEAT, "SELECT 1"), ratio("rates", BEAT, "an empty function")
    by_pgbench, by_driver = ratio("rates", BEAT, "UPDATE"), ratio("peers", BEAT, "UPDATE, synchronous_commit on")
    by_hand = by_pgbench, by_driver, ratio("peers", BEAT, "UPDATE, synchronous_commit off")
    yield "{:.1f} times an UPDATE of a row ({:.1f} times over TCP, {:.1f} times with `synchronous_commit` off)", *by_hand
    yield "off), {:.1f} times etcd's keep-alive stream", ratio("peers", BEAT, "etcd")
    yield "{:,.0f} times as quick as", round(ratio("heartbeats", "one heartbeat that keeps"), -3)
    yield "writes {:.0f} MB of WAL", ratio("heartbeats", "one heartbeat that keeps", "in WAL") / 1e6
    yield "{:.2f} of `SELECT 1`; {:.2f} times an upsert by hand", ratio("rates", REFUSED, "SELECT 1"), ratio("rates", REFUSED, "guarded upsert")
    crowd = REFUSED + ", 64 clients"
    yield "{:.0f} times a plain one where 64 clients", measured("rates", crowd)[0] / measured("rates", crowd, "plain upsert")[0]
    yield "{:.2f} of two bare statements that write such rows; {:.1f} times etcd's", ratio("grants", NEW), ratio("peers", NEW, "etcd")
    yield "revoke; {:.1f} times lease tables by hand", ratio("peers", NEW, "row lock")
    yield "{:.2f} of `SELECT 1`; {:.1f} times lease tables by hand", ratio("rates", HOLDER, "SELECT 1"), ratio("peers", HOLDER, "row lock")
    yield "{:.2f} of that transaction without it", ratio("fence", CHECK, "without")
    yield "in one statement too, does {:.2f}.", ratio("fence", CHECK, "SELECT .. FOR SHARE")
    yield "which is a round trip more, {:.2f}.", ratio("fence", CHECK, "in a statement of its own")
    yield "half of them within {:.2f} ms and 99 % within {:.2f}; an UPDATE", *measured("handover", RELEASE)
    yield "an UPDATE with NOTIFY takes {:.2f} and {:.2f}", *compared("handover", RELEASE, "UPDATE with NOTIFY")
    yield "etcd's mutex {:.2f} and {:.2f}", *compared("handover", RELEASE, "etcd mutex")
    yield "half of them within {:.1f} ms and 99 % within {:.1f}; after", *measured("expiry", "deadline")
    yield "attached client {:.1f} and {:.1f}", *measured("expiry", "kill")
    yield "acquired in {:.2f} times, released in {:.2f} times", ratio("bulk", "lease_acquire_many"), ratio("bulk", "lease_release_many")
    some, all_of_them = STORM.format("10,000"), STORM.format("100,000")
    yield "with 10,000 of them waited for: all of these handed over within {:.2f} s", *measured("storm", some)
    yield "with all 100,000 waited for: within {:.2f} s", *measured("storm", all_of_them)
    yield "(by SQL that does no more than change the rows, {:.2f})", compared("storm", all_of_them, "SQL by hand")[0]
    yield "99 % of others' heartbeats take {:.2f} ms at most", measured("storm", all_of_them, "heartbeats of others")[1]
    yield "at most, and {:.2f} before", compared("storm", all_of_them, "heartbeats of others")[1]
    yield "before (beside a process that updates a plain table {:.2f})", measured("storm", all_of_them, "heartbeats beside a process that updates")[1]


def comparison():
    in_memory, always = (1 / ratio("peers", NEW, f"Redis, {how}") for how in ("in memory", "appendfsync always"))
    yield "reach {:.1f} times the rate of this extension; with `appendfsync always`, {:.1f} times", in_memory, always
    yield "Renewing is {:.1f} times as fast, in memory", 1 / ratio("peers", BEAT, "Redis, in memory")
    yield "A heartbeat here is {:.1f} times as fast as with `appendfsync always`", ratio("peers", BEAT, "Redis, appendfsync always")
    advisory, upsert = ratio("peers", NEW, "session advisory lock"), ratio("peers", NEW, "INSERT .. ON CONFLICT")
    yield "reach {:.1f} times the rate of `lease_acquire` and `lease_release` (ratio {:.2f})", 1 / advisory, advisory
    yield "{:.1f} times as fast as `lease_acquire` and `lease_release` (ratio {:.2f})", 1 / upsert, upsert
    yield "`hashtext` gave {:,.0f} collisions", *measured("keys", "hashtext")
    for many in (1, 100):
        for age, named in ("idle", "idle"), ("old snapshot", "with a snapshot that is 8 minutes old" if many == 1 else "with that"):
            ratios = [ratio("items", DONE.format(many, age), other) for other in ("graphile-worker", "UPDATE, DELETE")]
            yield f"| {many} at a time, {named} | " + ("{:.1f} | {:.1f} |" if age == "idle" else "{:.0f} | {:.0f} |"), *ratios
    pgq = [ratio("items", DONE.format(many, age), "pgq") for age in ("idle", "old snapshot") for many in (1, 100)]
    yield "The rate of items claimed and finished is {:.1f} times that of PgQ one at a time, and {:.1f} times in batches of 100", *pgq[:2]
    yield "With an old snapshot the ratios are {:.0f} and {:.0f}", *pgq[2:]


def stale(page, figures):
    text = " ".join(page.read_text().split())
    return [f"{page.name}: {said}" for said in (template.format(*values) for template, *values in figures) if said not in text]


def test_figures_are_those_that_were_measured():
    assert stale(README, front_page()) + stale(SPEED, speed()) + stale(COMPARISON, comparison()) == []


def test_pages_tell_when_it_was_measured():
    parts = {
        README: ("rates", "fence", "handover"),
        SPEED: ("rates", "peers", "heartbeats", "grants", "fence", "handover", "expiry", "bulk", "storm"),
        COMPARISON: ("peers", "items", "keys", "wal"),
    }
    wanted = {page: {RESULTS[part]["when"].split()[0] for part in names} for page, names in parts.items()}
    assert {page: set(re.findall(r"\d{4}-\d\d-\d\d", page.read_text())) for page in parts} == wanted


def unfit(machines, version, is_released, is_known):
    """Returns what is wrong with the results of a version, given the machine of each part. Until the version is
    released, each part may be measured at a time of its own, and results of a former version may stand."""
    of = {part: machine["extension"].split() for part, machine in machines.items()}
    former = sorted(part for part, (measured, _) in of.items() if measured != version)
    found = [f"{part}: of version {of[part][0]}" for part in former if is_released]
    own = {part: commit for part, (measured, commit) in of.items() if measured == version}
    found += [f"{part}: {commit} is no commit" for part, commit in own.items() if commit.endswith("-dirty") or not is_known(commit)]
    for what, values in (("commit", set(own.values())), ("machine", {(machines[part]["processor"], machines[part]["kernel"]) for part in own})):
        found += [f"more than one {what}: {sorted(values)}"] if is_released and len(values) > 1 else []
    return found


def test_unfit_results_are_found():
    def machine(extension, processor="a processor"):
        return {"extension": extension, "processor": processor, "kernel": "6.1"}

    def found(*machines, is_released=False):
        return unfit(dict(zip("abc", machines)), "1.1.0", is_released, {"1111111", "2222222"}.__contains__)

    good = machine("1.1.0 1111111")
    assert found(good, good) == found(good, good, is_released=True) == []
    assert found(machine("1.0.0 3333333-dirty")) == []
    assert found(good, machine("1.0.0 1111111"), is_released=True) == ["b: of version 1.0.0"]
    assert found(machine("1.1.0 1111111-dirty")) == ["a: 1111111-dirty is no commit"]
    assert found(machine("1.1.0 3333333")) == ["a: 3333333 is no commit"]
    others = machine("1.1.0 2222222"), machine("1.1.0 1111111", "another")
    assert found(good, *others) == []
    assert found(good, others[0], is_released=True) == ["more than one commit: ['1111111', '2222222']"]
    assert len(found(good, others[1], is_released=True)) == 1


def test_results_of_a_release_are_of_one_commit_and_one_machine():
    """A release is measured anew, after the heading in CHANGELOG.md has lost its "(unreleased)"."""

    def git(*words):
        return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True)

    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]["version"]
    heading = re.search(rf"^## {re.escape(version)}(.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)[1]
    # A shallow clone lacks commits; sources from an archive have no repository, or lie in one of another project.
    is_whole = git("rev-parse", "--is-shallow-repository", "--show-toplevel").stdout.split() == ["false", str(ROOT)]
    known = (lambda commit: git("cat-file", "-e", f"{commit}^{{commit}}").returncode == 0) if is_whole else lambda _: True
    machines = {part: run["machine"] for part, run in RESULTS.items()}
    assert unfit(machines, version, "unreleased" not in heading, known) == []
