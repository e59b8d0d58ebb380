-- Partitions the table of records of PostgreSQL by the hash of the key. Stop the services before, and grant the rights on
-- the new table after it (idemctl store grants).
BEGIN;
ALTER TABLE idem_records RENAME TO idem_records_old;
CREATE TABLE idem_records (LIKE idem_records_old INCLUDING ALL) PARTITION BY HASH (k);
ALTER TABLE idem_records ADD CONSTRAINT idem_only_the_middleware_commits
	FOREIGN KEY (guard) REFERENCES idem_never (k) DEFERRABLE INITIALLY DEFERRED;
DO $$
BEGIN
	FOR i IN 0..15 LOOP
		EXECUTE format('CREATE TABLE idem_records_%s PARTITION OF idem_records FOR VALUES WITH (MODULUS 16, REMAINDER %s)
			WITH (autovacuum_vacuum_scale_factor = 0.01)', i, i);
	END LOOP;
	EXECUTE 'CREATE OR REPLACE VIEW idem_readable AS '
		|| replace(pg_get_viewdef('idem_readable'), 'idem_records_old', 'idem_records');
END $$;
INSERT INTO idem_records SELECT * FROM idem_records_old;
DROP TABLE idem_records_old;
COMMIT;
