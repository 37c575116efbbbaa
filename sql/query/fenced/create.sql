CREATE OR REPLACE TRIGGER {name} AFTER {events} ON {table} FOR EACH {level} EXECUTE FUNCTION eskit_lease.require_fence({arguments})
