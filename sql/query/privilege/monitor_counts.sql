GRANT EXECUTE ON FUNCTION eskit_lease._count_held(), eskit_lease._count_items(integer, pg_catalog.text, integer) TO {role}
