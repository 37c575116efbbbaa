"""Collisions of the keys that names are folded to, counted with the extension's own folds (bench/keys) and, for
hashtext, by the server, over the same names. Compared with the collisions of random keys of 64 bits, and of 32."""

import math
import subprocess

from harness import ROOT, connect, number, one

NAMES = number("BENCH_NAMES", 10_000_000)
PROGRAM = ROOT / "target" / "release" / "keys"
# If the keys are as good as random ones, a smaller share of runs than this misses a bound of ours by chance.
RARE = 1e-5


def keys(report):
    lines = subprocess.run([PROGRAM, "count", str(NAMES)], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    *families, (_, _, _, sha256, fnv1a, _) = (line.split("\t") for line in lines)
    by_server = hashtext([int(names) for _, _, names, _, _, _ in families])
    wide, narrow = expected(NAMES, 64), expected(NAMES, 32)
    limit = at_most(wide)
    for fold, found in [("group_lock_key", int(sha256)), ("advisory_lock_id", int(fnv1a))]:
        report.add(f"{fold} of {NAMES:,} names", f"{found:,} collisions", f"expected of 64 bits {wide:.2g}", "", f"<= {limit}", found <= limit)
    found = by_server.pop()
    report.add("hashtext of the same (a warning)", f"{found:,} collisions", f"expected of 32 bits {narrow:,.0f}", f"{found / narrow:.2f}")
    worst = (0, "")
    for (family, _, names, sha256, fnv1a, partitions), found in zip(families, by_server):
        limit = at_most(expected(int(names), 64))
        ok = max(int(sha256), int(fnv1a)) <= limit
        report.add(f"  {family}", f"{sha256} and {fnv1a} collisions", f"hashtext {found:,}, expected {expected(int(names), 32):,.0f}", "",
                   f"<= {limit}", ok)  # fmt: skip
        share = [int(count) for count in partitions.split()]
        worst = max(worst, (max(share) * len(share) / int(names), family))
    # Five standard deviations of a partition's count. In one run of 20,000 some partition exceeds them by chance.
    bound = 1 + 5 * math.sqrt(len(share) / (NAMES / len(families)))
    fullest, family = worst
    report.add("partition_for, the fullest of 16 in any family", f"{fullest:.4f} of its share", family, "", f"<= {bound:.4f}", fullest <= bound)


def hashtext(families):
    """Counts the collisions of hashtext in each family's names, and in all."""
    with connect() as db:
        db.execute("SET work_mem = '256MB'")
        db.execute("CREATE TEMP TABLE names (name text NOT NULL)")
        db.execute("CREATE TEMP TABLE hashes (family integer NOT NULL, hash integer NOT NULL)")
        for n, names in enumerate(families):
            writer = subprocess.Popen([PROGRAM, "names", str(NAMES), str(n)], stdout=subprocess.PIPE)
            with writer, db.cursor().copy("COPY names FROM STDIN") as copy:
                while block := writer.stdout.read(1 << 20):
                    copy.write(block)
            assert writer.returncode == 0 and one(db, "SELECT count(*) FROM names") == names
            db.execute("INSERT INTO hashes SELECT %s, hashtext(name) FROM names", (n,))
            db.execute("TRUNCATE names")
        repeated = "SELECT count(*) - count(DISTINCT hash) FROM hashes"
        return [one(db, f"{repeated} WHERE family = %s", n) for n in range(len(families))] + [one(db, repeated)]


def expected(names, bits):
    """Returns how many pairs of so many random keys are expected to be equal."""
    return names * (names - 1) / 2 ** (bits + 1)


def at_most(mean):
    """Returns the least count that chance rarely exceeds (RARE) if `mean` is expected (Poisson)."""
    count, term, beyond = 0, math.exp(-mean), -math.expm1(-mean)
    while beyond > RARE:
        count += 1
        term *= mean / count
        beyond -= term
    return count
