"""What the catalogs say of the extension, in words that mean the same in another database.

A row is found by its object, and each of its columns is a fact. PostgreSQL knows which columns are references, and
describes what they refer to; expressions, which contain oids, are written as SQL. Only columns that say how or when
something was stored are left out, so columns that a new major adds are compared as well.
"""

# Members, and what belongs to them: indexes, constraints, defaults, rules, row types. TOAST tables, whose names contain
# oids, are left out.
OBJECTS = """
    WITH RECURSIVE objects AS (
        SELECT 'pg_extension'::regclass::oid AS classid, oid AS objid FROM pg_extension WHERE extname = 'eskit_lease'
        UNION
        SELECT d.classid, d.objid FROM objects AS o JOIN pg_depend AS d ON d.refclassid = o.classid AND d.refobjid = o.objid
        WHERE (d.deptype = 'e' OR d.deptype IN ('i', 'a') AND o.classid <> 'pg_extension'::regclass)
          AND pg_describe_object(d.classid, d.objid, 0) !~ 'pg_toast')
    SELECT classid, objid FROM objects"""

# For each catalog: the object of a row, which rows to compare, and columns that are written differently (None: left
# out).
ABOUT = "pg_describe_object('{catalog}'::regclass, c.oid, 0)"
OURS = "(SELECT objid FROM objects WHERE classid = '{catalog}'::regclass)"
CATALOGS = {
    "pg_extension": (ABOUT, "c.oid IN " + OURS, {}),
    "pg_namespace": (ABOUT, "c.oid IN " + OURS, {}),
    "pg_class": (ABOUT, "c.oid IN " + OURS, {
        "relfilenode": None, "relpages": None, "reltuples": None, "relallvisible": None, "relallfrozen": None,
        "relfrozenxid": None, "relminmxid": None, "reltoastrelid": "c.reltoastrelid <> 0",
    }),
    "pg_attribute": (
        "format('column %s of %s', c.attnum, pg_describe_object('pg_class'::regclass, c.attrelid, 0))",
        "c.attnum > 0 AND c.attrelid IN (SELECT objid FROM objects WHERE classid = 'pg_class'::regclass)",
        # Left out: whether the column came with the table, and a stamp that newer minor versions keep among the
        # options.
        {"attcacheoff": None, "atthasmissing": None, "attmissingval": None,
         "attoptions": "ARRAY(SELECT o FROM unnest(c.attoptions) AS o WHERE o NOT LIKE 'pg\\_attver=%' ORDER BY 1)"},
    ),
    "pg_attrdef": (ABOUT, "c.oid IN " + OURS, {"adbin": "pg_get_expr(c.adbin, c.adrelid)"}),
    "pg_constraint": (ABOUT, "c.oid IN " + OURS, {"conbin": "pg_get_constraintdef(c.oid)"}),
    "pg_index": (
        "pg_describe_object('pg_class'::regclass, c.indexrelid, 0)",
        "c.indexrelid IN (SELECT objid FROM objects WHERE classid = 'pg_class'::regclass)",
        {"indcheckxmin": None, "indexprs": "pg_get_expr(c.indexprs, c.indrelid)", "indpred": "pg_get_indexdef(c.indexrelid)"},
    ),
    "pg_rewrite": (ABOUT, "c.oid IN " + OURS, {"ev_qual": None, "ev_action": "pg_get_ruledef(c.oid)"}),
    "pg_type": (ABOUT, "c.oid IN " + OURS, {"typdefaultbin": "pg_get_expr(c.typdefaultbin, 0)"}),
    "pg_proc": (ABOUT, "c.oid IN " + OURS, {
        "proargdefaults": "pg_get_expr(c.proargdefaults, 0)",
        "prosqlbody": "CASE WHEN c.prosqlbody IS NOT NULL THEN pg_get_functiondef(c.oid) END",
    }),
    "pg_sequence": (
        "pg_describe_object('pg_class'::regclass, c.seqrelid, 0)",
        "c.seqrelid IN (SELECT objid FROM objects WHERE classid = 'pg_class'::regclass)",
        {},
    ),
    "pg_description": (
        "pg_describe_object(c.classoid, c.objoid, c.objsubid)",
        "(c.classoid, c.objoid) IN (SELECT classid, objid FROM objects)",
        {"classoid": None, "objoid": None},
    ),
    "pg_init_privs": (
        "pg_describe_object(c.classoid, c.objoid, c.objsubid)",
        "(c.classoid, c.objoid) IN (SELECT classid, objid FROM objects)",
        {"classoid": None, "objoid": None},
    ),
}  # fmt: skip

DEPENDS = """
    SELECT pg_describe_object(classid, objid, objsubid), 'depends',
           coalesce(pg_describe_object(refclassid, refobjid, refobjsubid), '-') || format(' (%s)', deptype)
    FROM pg_depend WHERE (classid, objid) IN (SELECT classid, objid FROM objects) AND pg_describe_object(refclassid, refobjid, 0) !~ 'pg_toast'
    UNION ALL
    SELECT pg_describe_object(classid, objid, objsubid), 'depends', pg_describe_object(refclassid, refobjid, 0) || format(' (%s)', deptype)
    FROM pg_shdepend WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND (classid, objid) IN (SELECT classid, objid FROM objects)"""

COLUMNS = """
    SELECT a.attname, a.atttypid::regtype::text, k.pktable::regclass::text, coalesce(k.is_array, false)
    FROM pg_attribute AS a
    LEFT JOIN pg_get_catalog_foreign_keys() AS k ON k.fktable = a.attrelid AND k.fkcols = ARRAY[a.attname::text] AND k.pkcols = '{oid}'
    WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped"""


def _fact(column, target, is_array):
    if not target:
        return f"c.{column}::text"
    described = f"coalesce(pg_describe_object('{target}'::regclass, {{}}, 0), '-')"
    if is_array:
        return f"(SELECT string_agg({described.format('of')}, ', ' ORDER BY at) FROM unnest(c.{column}) WITH ORDINALITY AS u (of, at))"
    return described.format(f"c.{column}")


def facts(conn):
    """Returns {(object, aspect): what the catalogs say of it}."""
    conn.execute(f"DROP TABLE IF EXISTS objects; CREATE TEMP TABLE objects AS {OBJECTS}")
    found = {}
    for catalog, (about, which, otherwise) in CATALOGS.items():
        columns = []
        for name, _, target, is_array in conn.execute(COLUMNS, (catalog,)).fetchall():
            said = otherwise.get(name, _fact(name, target, is_array))
            if name != "oid" and said:
                columns.append(f"('{catalog}.{name}', ({said})::text)")
        about, which = about.format(catalog=catalog), which.format(catalog=catalog)
        rows = f"SELECT {about}, f.* FROM {catalog} AS c, LATERAL (VALUES {', '.join(columns)}) AS f WHERE {which}"
        for what, aspect, fact in conn.execute(rows):
            found[what, aspect] = fact
    for what, aspect, fact in conn.execute(DEPENDS):
        found.setdefault((what, aspect), []).append(fact)
    conn.execute("DROP TABLE objects")
    return {key: sorted(fact) if isinstance(fact, list) else fact for key, fact in found.items()}


def differences(fresh, updated):
    """Returns a text for each object whose facts differ: what it lacks, and both definitions of what differs."""
    there = [{what for what, _ in side} for side in (fresh, updated)]
    texts = {}
    for key in sorted(fresh.keys() | updated.keys()):
        what, aspect = key
        lines = texts.setdefault(what, [])
        sides = [name for name, objects in zip(("fresh", "updated"), there, strict=True) if what in objects]
        if len(sides) == 1:
            fact = (fresh | updated)[key]
            if fact is not None:
                lines.append(f"  only in the {sides[0]} database: {aspect} = {fact}")
        elif fresh.get(key) != updated.get(key):
            lines += [f"  {aspect}", f"    fresh:   {fresh.get(key)}", f"    updated: {updated.get(key)}"]
    return ["\n".join([what, *lines]) for what, lines in texts.items() if lines]
