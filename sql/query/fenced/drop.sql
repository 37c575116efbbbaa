DROP TRIGGER {name} ON {table}
