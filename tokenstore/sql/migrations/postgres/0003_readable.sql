-- Without this, autovacuum begins when a fifth of a table is dead, which is 14 million rows of 70 million.
-- The partitioned table itself takes no such parameters. Those of a DBA stay.

DO $$
DECLARE
	part regclass;
BEGIN
	FOR part IN SELECT c.oid::regclass FROM pg_catalog.pg_class c
		WHERE c.relkind = 'r' AND (c.oid IN ('{records}'::regclass, '{bindings}'::regclass)
			OR c.oid IN (SELECT relid FROM pg_catalog.pg_partition_tree('{records}')))
		AND coalesce(array_to_string(c.reloptions, ','), '') NOT LIKE '%autovacuum_vacuum_scale_factor%'
	LOOP
		EXECUTE format('ALTER TABLE %s SET (autovacuum_vacuum_scale_factor = 0.01)', part);
	END LOOP;
END $$;

-- The records in readable types. Without the responses and fingerprints, so that it may be shown to more
-- people than the table.

CREATE VIEW {readable} AS SELECT
	encode(k, 'hex') AS key_id,
	CASE state WHEN 1 THEN 'issued' WHEN 2 THEN 'pending' WHEN 3 THEN 'completed' WHEN 4 THEN 'released' WHEN 5 THEN 'unknown' WHEN 6 THEN 'expired' END AS state,
	CASE kind WHEN 0 THEN 'client-key' WHEN 1 THEN 'issued-token' END AS kind,
	encode(route, 'escape') AS route,
	attempt,
	encode(domain, 'escape') AS domain,
	CASE WHEN fence < 0 THEN fence + 18446744073709551616 ELSE fence::numeric END AS fence,
	'epoch'::timestamptz + NULLIF(created, 0) * interval '1 microsecond' AS created,
	'epoch'::timestamptz + NULLIF(started, 0) * interval '1 microsecond' AS started,
	'epoch'::timestamptz + NULLIF(settled, 0) * interval '1 microsecond' AS settled,
	'epoch'::timestamptz + NULLIF(result_expires, 0) * interval '1 microsecond' AS result_expires,
	'epoch'::timestamptz + NULLIF(key_expires, 0) * interval '1 microsecond' AS key_expires,
	'epoch'::timestamptz + NULLIF(token_expires, 0) * interval '1 microsecond' AS token_expires,
	'epoch'::timestamptz + NULLIF(open_since, 0) * interval '1 microsecond' AS open_since,
	'epoch'::timestamptz + NULLIF(expires, 0) * interval '1 microsecond' AS expires,
	NULLIF(result_ttl, 0) * interval '1 microsecond' AS result_ttl,
	NULLIF(key_ttl, 0) * interval '1 microsecond' AS key_ttl,
	repaired = 1 AS repaired,
	encode(decided_by, 'escape') AS decided_by,
	encode(decided_reason, 'escape') AS decided_reason,
	octet_length(response) AS response_bytes
FROM {records};

COMMENT ON VIEW {readable} IS 'Idemkeeper: The records in readable types, without responses and fingerprints';
COMMENT ON COLUMN {readable}.key_id IS 'key ID, in hexadecimal digits';
COMMENT ON COLUMN {readable}.state IS 'of the last attempt';
COMMENT ON COLUMN {readable}.kind IS 'client-key or issued-token';
COMMENT ON COLUMN {readable}.route IS 'name of the policy, bytes that are not ASCII are escaped';
COMMENT ON COLUMN {readable}.attempt IS 'number of the last attempt';
COMMENT ON COLUMN {readable}.domain IS 'lock domain of the fence';
COMMENT ON COLUMN {readable}.fence IS 'fencing token, 64 bits without a sign';
COMMENT ON COLUMN {readable}.created IS 'when the record was made';
COMMENT ON COLUMN {readable}.started IS 'when the last attempt began';
COMMENT ON COLUMN {readable}.settled IS 'when the last attempt was settled';
COMMENT ON COLUMN {readable}.result_expires IS 'end of the stored response';
COMMENT ON COLUMN {readable}.key_expires IS 'end of the key';
COMMENT ON COLUMN {readable}.token_expires IS 'end of an issued token';
COMMENT ON COLUMN {readable}.open_since IS 'started, while the record is pending or unknown';
COMMENT ON COLUMN {readable}.expires IS 'when the record changes by itself, NULL for never';
COMMENT ON COLUMN {readable}.result_ttl IS 'how long the route of an open attempt keeps a result';
COMMENT ON COLUMN {readable}.key_ttl IS 'how long the route of an open attempt remembers the key';
COMMENT ON COLUMN {readable}.repaired IS 'the settlement replaced an older or missing record';
COMMENT ON COLUMN {readable}.decided_by IS 'who settled the attempt in place of its holder';
COMMENT ON COLUMN {readable}.decided_reason IS 'why';
COMMENT ON COLUMN {readable}.response_bytes IS 'length of the stored response';
