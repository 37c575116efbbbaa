CREATE OR REPLACE TRIGGER {name} AFTER {events} ON {table} {rows} EXECUTE FUNCTION eskit_lease.require_fence({arguments})
