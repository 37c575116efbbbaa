-- Declared names of leases: only they may be leased where the setting declared_names is on.
\i pg_test/sql/include/helpers.psql
\i pg_test/sql/include/refusals.psql
\pset null -
SELECT session AS a FROM session_open('a', '1 hour') \gset
SELECT session AS b FROM session_open('b', '1 hour') \gset
SELECT setting, context FROM pg_settings WHERE name = 'eskit_lease.declared_names';

-- Off, the default: every name is a lease, and another case is another one.
SELECT * FROM pg_temp.ask('Orders', :'a');
SELECT * FROM pg_temp.ask('orders', :'b');
SELECT * FROM pg_temp.ask('orders', :'a', true);
SELECT lease_declare('tenant/', prefix => true), lease_declare('invoices'), lease_declare('naïve job'), lease_declare('tenant/7/'), lease_declare('tenant/7/8');
SELECT semaphore_create('gpu', 2), bridge_create('old', 7), group_create('g', 1);
SELECT name, kind, owner = current_user AS mine FROM declared_names ORDER BY 1;

SET eskit_lease.declared_names = on;
-- What a session has, and what it waits for, goes on.
SELECT * FROM pg_temp.ask('Orders', :'a');
SELECT * FROM pg_temp.ask('orders', :'a');
SELECT * FROM pg_temp.ask('orders', :'a', true);
SELECT lease_release('orders', fence) FROM leases WHERE resource = 'orders';
SELECT * FROM pg_temp.ask('orders', :'a');
SELECT held, reason FROM leases, lease_renew(resource, fence) WHERE resource = 'orders';
SELECT lease_release('Orders', fence, '1 hour') FROM leases WHERE resource = 'Orders';
SELECT * FROM pg_temp.ask('Orders', :'a');
-- What it has given up does not.
SELECT released FROM lease_release_many('{Orders,orders}', :'a');
SELECT pg_temp.refused(format('lease_acquire(''Orders'', %L)', :'a'), format('lease_acquire(''orders'', %L, true)', :'a'));

-- Declared: a name, its prefixes, semaphores and bridges.
SELECT name, reason FROM unnest(ARRAY['invoices', 'naïve job', 'tenant/', 'tenant/7', 'tenant/7/', 'tenant/7/8', 'tenant/7/8x', 'tenant/é', 'tenant/' || repeat('x', 248), 'gpu', 'old']) AS name,
    pg_temp.ask(name, :'a');
SELECT resource, reason FROM lease_acquire_many('{invoices,tenant/9}', :'a');
SELECT reason FROM lock_acquire('tenant/lock', 'host', '1 minute');
SELECT pg_temp.refused(format('lease_acquire(''g'', %L)', :'a'));
-- Not declared: the hint names what is near, in another case, with a blank, or with a few other letters.
SELECT pg_temp.refused(
    format('lease_acquire(''Invoices'', %L)', :'b'), format('lease_acquire(''invoices '', %L, true)', :'b'), format('lease_acquire('' in voice'', %L)', :'b'),
    format('lease_acquire(''naive job'', %L)', :'b'), format('lease_acquire(''Tenant/7'', %L)', :'b'), format('lease_acquire(''tenat/7'', %L)', :'b'),
    format('lease_acquire(''GPU'', %L)', :'b'), format('lease_acquire(''something else'', %L)', :'b'), format('lease_acquire(''tenant'', %L)', :'b'),
    format('lease_acquire(''invoice'', %L)', :'b'), format('lease_acquire_many(''{invoices,tenant/9,Tenant/9}'', %L)', :'b'),
    'lock_acquire(''Invoices'', ''host'', ''1 minute'')', 'lock_acquire(''tenan'', ''host'', ''1 minute'', gen_random_uuid())');
-- A session that has ended is told so, whatever it asks for.
SELECT reason FROM lease_acquire('Invoices', '00000000-0000-0000-0000-000000000000');
-- Groups, keys and items are declared by their own functions.
SELECT group_join('g', :'b') > 0 AS joined, (SELECT first FROM execution_begin('a key', :'b')), queue_create('q'), item_add('q', '1') > 0 AS added;
SELECT count(*) FROM item_claim('q', :'b');

-- A declaration counts until its drop, which takes nothing from a holder or a waiter.
SELECT * FROM pg_temp.ask('invoices', :'b', true);
SELECT lease_undeclare('invoices'), lease_undeclare('invoices', missing_ok => true) AS again;
SELECT reason FROM pg_temp.ask('invoices', :'a');
SELECT held FROM leases, lease_renew(resource, fence) WHERE resource = 'invoices';
SELECT released FROM lease_release_many('{invoices}', :'a');
SELECT reason FROM pg_temp.ask('invoices', :'b');
SELECT pg_temp.refused(format('lease_acquire(''invoices'', %L)', :'a'));
BEGIN;
SELECT lease_declare('invoices');
SELECT reason FROM pg_temp.ask('invoices', :'b');
ROLLBACK;
SELECT lease_undeclare('tenant/');
SELECT name, pg_temp.error_of(format('SELECT lease_acquire(%L, %L)', name, :'b')) FROM unnest(ARRAY['tenant/1', 'tenant/7/1', 'tenant/7/8']) AS name;
-- A lock that is asked for again by its request goes on.
SELECT lease_declare('locks/', true);
SELECT fence AS f FROM lock_acquire('locks/1', 'host', '1 minute', '11111111-1111-4111-8111-111111111111') \gset
SELECT lease_undeclare('locks/');
SELECT granted, fence = :f AS same, reason FROM lock_acquire('locks/1', 'host', '1 minute', '11111111-1111-4111-8111-111111111111');
SELECT pg_temp.refused('lock_acquire(''locks/1'', ''other'', ''1 minute'')');
SELECT lease_release('locks/1', :f), lease_release('tenant/lock', fence) FROM leases WHERE resource = 'tenant/lock';
-- A take-over takes what is not declared, too.
SELECT session AS c FROM session_open('a', '1 hour', takeover => true) \gset
SELECT resource, reason FROM leases, lease_acquire(resource, :'c') WHERE state = 'held' AND consumer = 'a' AND resource LIKE 'tenant%' ORDER BY 1;

-- Refusals of the functions.
SELECT pg_temp.refused('lease_declare(NULL)', 'lease_declare('''')', 'lease_declare(repeat(''x'', 256))', 'lease_declare(''n'', NULL)', 'lease_declare(''naïve job'')',
    'lease_declare(''naïve job'', true)', 'lease_undeclare(NULL)', 'lease_undeclare('''')', 'lease_undeclare(''none'')', 'lease_undeclare(''none'', NULL)', 'lease_undeclare(''gpu'')');
SELECT lease_declare('p', true);
SELECT pg_temp.refused('lease_declare(''p'')');
BEGIN READ ONLY;
SELECT pg_temp.error_of('SELECT lease_declare(''n'')');
SELECT pg_temp.error_of('SELECT lease_undeclare(''p'')');
SELECT pg_temp.error_of(format('SELECT lease_acquire(''n'', %L)', :'b'));
COMMIT;
-- A transaction sees its own declarations, whatever its snapshot.
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT lease_declare('n'), lease_undeclare('p');
SELECT pg_temp.error_of(format('SELECT lease_acquire(''p'', %L)', :'b'));
SELECT reason FROM lease_acquire('n', :'b');
COMMIT;

-- Many names near each other cost a bounded number of looks, and the hint compares a bounded number of them.
SELECT count(lease_declare(repeat('a', n) || 'B')) FROM generate_series(1, 254) AS n;
SELECT count(lease_declare(repeat('0', 8) || n)) FROM generate_series(1, 1000) AS n;
SELECT split_part(pg_temp.error_of(format('SELECT lease_acquire(repeat(''a'', 255), %L)', :'b')), E'\n', 1) AS error;
SELECT lease_declare('a', true);
SELECT reason FROM lease_acquire(repeat('a', 255), :'b');
SELECT pg_temp.error_of(format('SELECT lease_acquire(''N'', %L)', :'b'));
SELECT count(lease_undeclare(name)) FROM declared_names WHERE kind IN ('lease', 'prefix');

-- Consumers declare, and drop what is theirs; only a superuser changes the setting. For a role or a database it counts
-- from the next connection on.
SELECT current_user AS superuser \gset
CREATE ROLE regress_names_one LOGIN;
CREATE ROLE regress_names_two;
SELECT grant_consumer('regress_names_one'), grant_consumer('regress_names_two'), grant_monitor('regress_names_two');
SELECT p.proname, has_function_privilege('public', p.oid, 'EXECUTE') AS of_public, has_function_privilege('regress_names_one', p.oid, 'EXECUTE') AS of_consumer
FROM pg_proc AS p WHERE p.proname LIKE 'lease\_%declare' ORDER BY 1;
SELECT r AS role, has_table_privilege(r, 'declared_names', 'SELECT') FROM unnest(ARRAY['regress_names_one', 'regress_names_two']) AS r;
SET ROLE regress_names_one;
SELECT lease_declare('theirs'), pg_temp.error_of('SET eskit_lease.declared_names = off');
SET ROLE regress_names_two;
SELECT pg_temp.error_of('SELECT lease_undeclare(''theirs'')');
SELECT pg_temp.error_of('SELECT lease_undeclare(''theirs'', true)');
SELECT name, kind, owner FROM declared_names WHERE name = 'theirs';
RESET ROLE;
RESET eskit_lease.declared_names;
ALTER ROLE regress_names_one SET eskit_lease.declared_names = on;
\c - regress_names_one
\i pg_test/sql/include/helpers.psql
SELECT pg_temp.error_of('SELECT lock_acquire(''Theirs'', ''host'', ''1 minute'')');
SELECT reason FROM lock_acquire('theirs', 'host', '1 minute');
SELECT lease_undeclare('theirs');
\c - :superuser
\i pg_test/sql/include/helpers.psql
SELECT reason FROM lock_acquire('Theirs', 'host', '1 minute');
SELECT format('ALTER DATABASE %I SET eskit_lease.declared_names = on', current_database()) AS alter \gset
:alter;
\c
\i pg_test/sql/include/helpers.psql
SELECT pg_temp.error_of('SELECT lock_acquire(''of the database'', ''host'', ''1 minute'')');
SELECT format('ALTER DATABASE %I RESET eskit_lease.declared_names', current_database()) AS alter \gset
:alter;
SELECT count(*) FROM declared_names WHERE kind IN ('lease', 'prefix');

SELECT count(session_close(session)) > 0 AS closed FROM sessions;
SELECT semaphore_drop('gpu'), bridge_drop('old'), group_drop('g'), queue_drop('q', true);
DELETE FROM eskit_lease._executions;
DROP OWNED BY regress_names_one, regress_names_two;
DROP ROLE regress_names_one, regress_names_two;
