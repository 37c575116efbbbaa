"""Calls with extreme values: each function in the catalog, including new ones, is called with arguments by their types.

A value is the SQL of an expression. Among the extremes are valid values, which lead further into the code: sessions,
fences and names of the stage."""

import json

from conftest import MAJOR
from hypothesis import strategies as st

LONG, DEEP = 2_000_000, 5_000  # bytes of a text; levels of a jsonb
INTEGERS = [-(2**31), -1, 0, 1, 2, 3, 255, 256, 1000, 1001, 32767, 32768, 32769, 100_000, 100_001, 2**31 - 1]
NAMES = ["r", "r2", "g", "sem", "q", "qk", "qf", "qg", "k", "k2"]


def quoted(text):
    return "'" + text.replace("'", "''") + "'"


def array(element, type):
    """Returns arrays: with several dimensions, other lower bounds or NULLs, empty ones, large ones, and arrays of
    values stored compressed or out of line."""
    few = st.lists(element, max_size=4).map(lambda found: f"ARRAY[{', '.join(found)}]::{type}[]")
    return st.one_of(
        few,
        few.map(lambda one: f"ARRAY[{one}, {one}]"),
        element.map(lambda one: f"array_fill({one}::{type}, ARRAY[2, 2, 2], ARRAY[-5, 0, 2147483000])"),
        element.map(lambda one: f"array_fill({one}::{type}, ARRAY[1001])"),
        st.sampled_from([
            "NULL", f"'{{}}'::{type}[]", f"'[7:8]={{NULL,NULL}}'::{type}[]", f"array_fill(NULL::{type}, ARRAY[100001])",
            f"array_fill(NULL::{type}, ARRAY[5], ARRAY[-2147483648])",
        ]),
    )  # fmt: skip


TEXTS = [
    "NULL", "''", "' '", "E'\\x01\\x1f\\x7f'", "repeat('x', 255)", "repeat('x', 256)", "repeat('é', 127)", "repeat('é', 128)",
    f"repeat('x', {LONG})", "repeat(E'\\u20ac', 100000)", "E'\\U0010FFFF\\uFFFD\\u202E'", "'%s%n%d{}{role}$1;--'", "(SELECT long FROM stored)",
    "'x'::varchar(1)", "'x'::name", "'x'::char(9)", "'x'::nonempty",
]  # fmt: skip
texts = st.one_of(
    st.sampled_from(NAMES).map(quoted),
    st.sampled_from(NAMES + ["sticky", "range", "none", "fifo", "key", "done", "failed", "retry", "i", "consumer", "extreme consumer"]).map(quoted),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=300).map(quoted),
    st.sampled_from(TEXTS),
)  # fmt: skip
uuids = st.sampled_from([
    "mine", "mine", "mine", "drained", "closed", "others", "private", "NULL", "'00000000-0000-0000-0000-000000000000'",
    "'ffffffff-ffff-ffff-ffff-ffffffffffff'", "gen_random_uuid()",
]).map(lambda value: f"(SELECT uuid FROM stage WHERE name = '{value}')" if value.isalpha() and value != "NULL" else value)  # fmt: skip
LONGS = ["NULL", *(f"'{number}'::bigint" for number in [-(2**63), -(2**53), -1, 0, 1, 2, 5, 2**53, 2**62 - 1, 2**62, 2**63 - 2, 2**63 - 1])]
longs = st.one_of(
    st.sampled_from(["lease", "part", "claim", "run", "lock", "sem", "item", "item2"]).map(lambda name: f"(SELECT number FROM stage WHERE name = '{name}')"),
    st.sampled_from(LONGS),
    st.integers(-(2**63), 2**63 - 1).map(lambda number: f"'{number}'::bigint"),
)
integers = st.one_of(st.sampled_from(INTEGERS), st.integers(-5, 50), st.integers(-(2**31), 2**31 - 1)).map(lambda number: f"'{number}'::integer")
INTERVALS = [
    "NULL", "'0'", "'1 ms'", "'50 ms'", "'1 second'", "'1 minute'", "'1 hour'", "'1 day'", "'-1 ms'", "'-1 day +24:00:00.001'", "'178000000 years'",
    "'-178000000 years'", "make_interval(mins => 2147483647)", "'2147483647 days'", "'-2147483648 days'", "'2147483647 months'",
    "make_interval(secs => 9223372036854)", "make_interval(secs => -9223372036854)", "'24 days 20:31:23.647'", "'24 days 20:31:23.648'",
    *(["'infinity'", "'-infinity'"] if int(MAJOR) >= 17 else []),
]  # fmt: skip
TIMES = [
    "NULL", "now()", "now() + '50 ms'", "now() + '1 day'", "'infinity'", "'-infinity'", "'4714-11-24 00:00:00+00 BC'", "'294276-12-31 23:59:59.999999+00'",
    "'epoch'", "'2000-01-01'",
]  # fmt: skip
JSONS = [
    "NULL", "'null'::jsonb", "'1e131071'::jsonb", "'-1e-16383'::jsonb", "to_jsonb('NaN'::numeric)", "to_jsonb('-infinity'::float8)",
    f"to_jsonb(repeat('x', {LONG}))", "to_jsonb(repeat('x', 1048000))", "to_jsonb(repeat(E'\\x01', 1000000))",
    f"(repeat('[', {DEEP}) || repeat(']', {DEEP}))::jsonb", "to_jsonb(array_fill('1e131071'::numeric, ARRAY[200]))", "(SELECT json FROM stored)",
]  # fmt: skip
jsons = st.one_of(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3), max_leaves=6,
    ).map(lambda value: quoted(json.dumps(value)) + "::jsonb"),
    st.sampled_from(JSONS),
)  # fmt: skip
BOOLEANS = ["true", "false", "NULL"]
CLASSES = [
    value if value == "NULL" else f"{value}::regclass" for value in [
    "NULL", "0", "4294967295", "'mine'", "'mine_1'", "'partitioned'", "'stage'", "'a_view'", "'a_sequence'", "'an_index'", "'a_type'", "'theirs'", "'kept'",
    "'pg_class'", "'pg_catalog.pg_class_oid_index'", "'eskit_lease._leases'", "'eskit_lease.leases'", "'eskit_lease.session_state'", "'eskit_lease.fence_seq'",
    "(SELECT reltoastrelid FROM pg_class WHERE relname = 'stored')", "'information_schema.tables'",
    ]
]  # fmt: skip
# NULL, the xids reserved by PostgreSQL, an old one, the last one, and one's own.
XIDS = ["NULL", *(f"'{xid}'::xid" for xid in (0, 1, 2, 3, 4294967295)), "pg_current_xact_id()::xid"]
ROLES = ["NULL", "0::regrole", "4294967295::regrole", "'extreme_nobody'::regrole", "'\"eXtreme {role}; \"'::regrole", "'pg_monitor'::regrole"]

OF_TYPE = {
    "text": texts, "uuid": uuids, "bigint": longs, "integer": st.one_of(integers, st.just("NULL")), "interval": st.sampled_from(INTERVALS),
    "timestamp with time zone": st.sampled_from(TIMES), "jsonb": jsons, "boolean": st.sampled_from(BOOLEANS), "regclass": st.sampled_from(CLASSES),
    "regrole": st.sampled_from(ROLES),
    "text[]": array(texts, "text"), "jsonb[]": array(jsons, "jsonb"), "bigint[]": array(longs, "bigint"),
    "integer[]": array(integers, "integer"), "uuid[]": array(uuids, "uuid"), "xid": st.sampled_from(XIDS),
}  # fmt: skip

# The extremes: each argument takes each value of its type.
EXTREMES = {
    "text": TEXTS, "uuid": ["NULL", "gen_random_uuid()", "'00000000-0000-0000-0000-000000000000'"], "bigint": LONGS,
    "integer": ["NULL", *(f"'{number}'::integer" for number in INTEGERS)], "interval": INTERVALS, "timestamp with time zone": TIMES, "jsonb": JSONS,
    "boolean": BOOLEANS, "regclass": CLASSES, "regrole": ROLES, "xid": XIDS,
} | {
    f"{type}[]": ["NULL", f"'{{}}'::{type}[]", f"array_fill(NULL::{type}, ARRAY[100001])", f"array_fill({one}::{type}, ARRAY[2, 2], ARRAY[-5, 2147483000])",
                  f"array_fill({one}::{type}, ARRAY[100001])"]
    for type, one in [("text", "'r'"), ("jsonb", "'1'"), ("bigint", "'1'"), ("integer", "'1'"), ("uuid", "gen_random_uuid()")]
}  # fmt: skip
# Valid values for the other arguments.
SOUND = {
    "text": "'r'", "uuid": "(SELECT uuid FROM stage WHERE name = 'mine')", "bigint": "(SELECT number FROM stage WHERE name = 'lease')", "integer": "'1'::integer",
    "interval": "'1 minute'", "timestamp with time zone": "now()", "jsonb": "'1'::jsonb", "boolean": "true", "regclass": "'mine'::regclass",
    "regrole": "'extreme_nobody'::regrole", "text[]": "'{r}'::text[]", "jsonb[]": "'{1}'::jsonb[]", "bigint[]": "'{1}'::bigint[]", "uuid[]": "ARRAY(SELECT uuid FROM stage WHERE name = 'mine')",
    "integer[]": "'{1}'::integer[]", "xid": "pg_current_xact_id()::xid",
}  # fmt: skip


def at_extremes(functions):
    """Gives a call of each function with each of its arguments at each extreme, and the others valid."""
    for name, types in functions:
        for at, type in enumerate(types):
            for value in EXTREMES[type]:
                arguments = [value if i == at else SOUND[other] for i, other in enumerate(types)]
                yield f"eskit_lease.{name}({', '.join(arguments)})"


# The callers, the kinds of transactions, and the ways of a call.
WHO = ["extreme_consumer", "extreme_consumer", "extreme_other", "extreme_monitor", "postgres"]
BEGINS = [None, None, "BEGIN", "BEGIN READ ONLY", "BEGIN ISOLATION LEVEL REPEATABLE READ", "BEGIN ISOLATION LEVEL SERIALIZABLE",
          "BEGIN ISOLATION LEVEL SERIALIZABLE, READ ONLY, DEFERRABLE"]  # fmt: skip
FORMS = [
    "SELECT {call}", "SELECT * FROM {call}", "SELECT * FROM {call}", "SELECT x FROM generate_series(1, 3) AS i, LATERAL (SELECT {call} AS x) AS y",
    "SELECT * FROM generate_series(1, 2) AS i, LATERAL {call} AS y", "WITH x AS MATERIALIZED (SELECT {call}) TABLE x LIMIT 1",
    "SELECT * FROM ROWS FROM ({call}) WITH ORDINALITY", "EXPLAIN (ANALYZE, VERBOSE) SELECT * FROM {call}", "PREPARE p AS SELECT * FROM {call}; EXECUTE p; EXECUTE p; DEALLOCATE p",
    "DECLARE c SCROLL CURSOR WITH HOLD FOR SELECT * FROM {call}; FETCH ALL FROM c; FETCH BACKWARD ALL FROM c; CLOSE c",
    "DO $do$ BEGIN PERFORM * FROM {call}; EXCEPTION WHEN division_by_zero THEN NULL; END $do$", "CREATE TEMP TABLE made ON COMMIT DROP AS SELECT * FROM {call}",
    "SELECT CASE WHEN random() < 2 THEN to_jsonb(x) END FROM {call} AS x",
]  # fmt: skip
ENDS = ["COMMIT", "COMMIT", "ROLLBACK", "PREPARE TRANSACTION 'extreme'"]


@st.composite
def calls(draw, functions):
    name, types = draw(st.sampled_from(functions))
    arguments = ", ".join(draw(OF_TYPE[type]) for type in types)
    return f"eskit_lease.{name}({arguments})"


@st.composite
def transactions(draw, functions):
    """Draws the caller, the statements of a transaction, whether each is in a savepoint of its own, and how the
    transaction ends."""
    body = draw(st.lists(st.tuples(st.sampled_from(FORMS), calls(functions)), min_size=1, max_size=4))
    statements = [form.format(call=call) for form, call in body]
    begin = draw(st.sampled_from(BEGINS))
    return draw(st.sampled_from(WHO)), begin, draw(st.booleans()), statements, draw(st.sampled_from(ENDS))
