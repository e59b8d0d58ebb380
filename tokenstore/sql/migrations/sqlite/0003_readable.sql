-- The records in readable types. Times are UTC.
--
-- Without the responses and fingerprints, so that it may be shown to more people than the table.

CREATE VIEW {readable} AS SELECT
	lower(hex(k)) AS key_id,
	CASE state WHEN 1 THEN 'issued' WHEN 2 THEN 'pending' WHEN 3 THEN 'completed' WHEN 4 THEN 'released' WHEN 5 THEN 'unknown' WHEN 6 THEN 'expired' END AS state,
	CASE kind WHEN 0 THEN 'client-key' WHEN 1 THEN 'issued-token' END AS kind,
	CAST(route AS TEXT) AS route,
	attempt,
	CAST(domain AS TEXT) AS domain,
	printf('%u', fence) AS fence,
	strftime('%Y-%m-%d %H:%M:%f', NULLIF(created, 0) / 1000000.0, 'unixepoch') AS created,
	strftime('%Y-%m-%d %H:%M:%f', NULLIF(started, 0) / 1000000.0, 'unixepoch') AS started,
	strftime('%Y-%m-%d %H:%M:%f', NULLIF(settled, 0) / 1000000.0, 'unixepoch') AS settled,
	strftime('%Y-%m-%d %H:%M:%f', NULLIF(result_expires, 0) / 1000000.0, 'unixepoch') AS result_expires,
	strftime('%Y-%m-%d %H:%M:%f', NULLIF(key_expires, 0) / 1000000.0, 'unixepoch') AS key_expires,
	strftime('%Y-%m-%d %H:%M:%f', NULLIF(token_expires, 0) / 1000000.0, 'unixepoch') AS token_expires,
	strftime('%Y-%m-%d %H:%M:%f', NULLIF(open_since, 0) / 1000000.0, 'unixepoch') AS open_since,
	strftime('%Y-%m-%d %H:%M:%f', NULLIF(expires, 0) / 1000000.0, 'unixepoch') AS expires,
	NULLIF(result_ttl, 0) / 1000000 AS result_ttl_seconds,
	NULLIF(key_ttl, 0) / 1000000 AS key_ttl_seconds,
	repaired,
	CAST(decided_by AS TEXT) AS decided_by,
	CAST(decided_reason AS TEXT) AS decided_reason,
	length(response) AS response_bytes
FROM {records};
