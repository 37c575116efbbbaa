BEGIN;
SELECT pgq.next_batch('bench', 'bench') AS batch_id \gset
SELECT count(ev_data) FROM pgq.get_batch_events(:batch_id);
COMMIT;
SELECT pgq.finish_batch(:batch_id);
