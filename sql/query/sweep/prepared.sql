SELECT p.transaction FROM pg_catalog.pg_prepared_xacts AS p WHERE p.database = current_database()
