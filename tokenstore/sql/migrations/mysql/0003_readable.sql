-- Comments on tables and columns, which change no row, and the records in readable types.

ALTER TABLE {schema}
	MODIFY version INT NOT NULL COMMENT 'number of the migration',
	MODIFY applied BIGINT NOT NULL COMMENT 'when',
	COMMENT = 'Idemkeeper: The migrations that were applied. Times are microseconds since 1970, 0 for none', ALGORITHM = INPLACE, LOCK = NONE;

ALTER TABLE {records}
	MODIFY k VARBINARY(32) NOT NULL COMMENT 'key ID, 32 bytes',
	MODIFY form SMALLINT NOT NULL COMMENT 'version of the other columns',
	MODIFY rev BIGINT NOT NULL COMMENT 'random, another one after each write',
	MODIFY state SMALLINT NOT NULL COMMENT '1 issued, 2 pending, 3 completed, 4 released, 5 unknown, 6 expired',
	MODIFY kind SMALLINT NOT NULL COMMENT '0 key of a client, 1 issued token',
	MODIFY route VARBINARY(255) NOT NULL COMMENT 'name of the policy, as bytes',
	MODIFY fingerprint VARBINARY(33) NOT NULL COMMENT 'of the request, version and SHA-256',
	MODIFY attempt BIGINT NOT NULL COMMENT 'number of the last attempt',
	MODIFY domain VARBINARY(255) NOT NULL COMMENT 'lock domain of the fence',
	MODIFY fence BIGINT NOT NULL COMMENT 'fencing token, 64 bits without a sign',
	MODIFY nonce VARBINARY(16) NOT NULL COMMENT 'of the attempt',
	MODIFY settlement VARBINARY(16) NOT NULL COMMENT 'ID of the standing settlement',
	MODIFY repaired SMALLINT NOT NULL COMMENT '1 if the settlement replaced an older or missing record',
	MODIFY created BIGINT NOT NULL COMMENT 'when the record was made',
	MODIFY started BIGINT NOT NULL COMMENT 'when the last attempt began',
	MODIFY settled BIGINT NOT NULL COMMENT 'when the last attempt was settled',
	MODIFY result_expires BIGINT NOT NULL COMMENT 'end of the stored response',
	MODIFY key_expires BIGINT NOT NULL COMMENT 'end of the key',
	MODIFY token_expires BIGINT NOT NULL COMMENT 'end of an issued token',
	MODIFY decided_by VARBINARY(255) NOT NULL COMMENT 'who settled the attempt in place of its holder',
	MODIFY decided_reason VARBINARY(1024) NOT NULL COMMENT 'why',
	MODIFY response LONGBLOB COMMENT 'stored response in the binary form of idem.Response',
	MODIFY previous BLOB COMMENT 'JSON of the record that a pending one replaced',
	MODIFY open_since BIGINT COMMENT 'started, while the record is pending or unknown',
	MODIFY expires BIGINT COMMENT 'when the record changes by itself, NULL for never',
	MODIFY result_ttl BIGINT NOT NULL DEFAULT 0 COMMENT 'how long the route of an open attempt keeps a result, in microseconds',
	MODIFY key_ttl BIGINT NOT NULL DEFAULT 0 COMMENT 'how long the route of an open attempt remembers the key, in microseconds',
	COMMENT = 'Idemkeeper: One row for each idempotency key. Times are microseconds since 1970, 0 for none', ALGORITHM = INPLACE, LOCK = NONE;

ALTER TABLE {bindings}
	MODIFY k VARBINARY(32) NOT NULL COMMENT 'key ID',
	MODIFY form SMALLINT NOT NULL COMMENT 'version of the other columns',
	MODIFY kind SMALLINT NOT NULL COMMENT '0 key of a client',
	MODIFY route VARBINARY(255) NOT NULL COMMENT 'not used',
	MODIFY fingerprint VARBINARY(33) NOT NULL COMMENT 'of the request',
	MODIFY created BIGINT NOT NULL COMMENT 'when the key was bound',
	MODIFY expires BIGINT NOT NULL COMMENT 'end of the binding',
	COMMENT = 'Idemkeeper: Requests of keys on routes that call other systems, which outlive a rollback. Times are microseconds since 1970, 0 for none', ALGORITHM = INPLACE, LOCK = NONE;

ALTER TABLE {domains}
	MODIFY domain VARBINARY(255) NOT NULL COMMENT 'lock domain',
	MODIFY decided_by VARBINARY(255) NOT NULL COMMENT 'who',
	MODIFY decided_reason VARBINARY(1024) NOT NULL COMMENT 'why',
	MODIFY decided BIGINT NOT NULL COMMENT 'when',
	COMMENT = 'Idemkeeper: Lock domains that an operator has declared dead. Times are microseconds since 1970, 0 for none', ALGORITHM = INPLACE, LOCK = NONE;

ALTER TABLE {decisions}
	MODIFY k VARBINARY(32) NOT NULL COMMENT 'key ID',
	MODIFY settlement VARBINARY(16) NOT NULL COMMENT 'ID of the settlement',
	MODIFY attempt BIGINT NOT NULL COMMENT 'number of the attempt',
	MODIFY state SMALLINT NOT NULL COMMENT '3 completed, 4 released',
	MODIFY decided_by VARBINARY(255) NOT NULL COMMENT 'who',
	MODIFY decided_reason VARBINARY(1024) NOT NULL COMMENT 'why',
	MODIFY decided BIGINT NOT NULL COMMENT 'when',
	COMMENT = 'Idemkeeper: Decisions of people about attempts, which outlive the record. Times are microseconds since 1970, 0 for none', ALGORITHM = INPLACE, LOCK = NONE;

ALTER TABLE {notes}
	MODIFY name VARBINARY(64) NOT NULL COMMENT 'of the fact',
	MODIFY noted BIGINT NOT NULL COMMENT 'when',
	COMMENT = 'Idemkeeper: Facts about the whole store. Times are microseconds since 1970, 0 for none', ALGORITHM = INPLACE, LOCK = NONE;

-- Without the responses and fingerprints, so that it may be shown to more people than the table. A text that
-- is not UTF-8 is shown in hexadecimal digits, because CONVERT makes question marks of it on MariaDB, and NULL on MySQL.

CREATE OR REPLACE VIEW {readable} AS SELECT
	LOWER(HEX(k)) AS key_id,
	CASE state WHEN 1 THEN 'issued' WHEN 2 THEN 'pending' WHEN 3 THEN 'completed' WHEN 4 THEN 'released' WHEN 5 THEN 'unknown' WHEN 6 THEN 'expired' END AS state,
	CASE kind WHEN 0 THEN 'client-key' WHEN 1 THEN 'issued-token' END AS kind,
	IF(CAST(CONVERT(route USING utf8mb4) AS BINARY) = route, CONVERT(route USING utf8mb4), CONCAT('0x', HEX(route))) AS route,
	attempt,
	IF(CAST(CONVERT(domain USING utf8mb4) AS BINARY) = domain, CONVERT(domain USING utf8mb4), CONCAT('0x', HEX(domain))) AS domain,
	CAST(fence AS UNSIGNED) AS fence,
	TIMESTAMPADD(MICROSECOND, NULLIF(created, 0), TIMESTAMP'1970-01-01 00:00:00.000000') AS created,
	TIMESTAMPADD(MICROSECOND, NULLIF(started, 0), TIMESTAMP'1970-01-01 00:00:00.000000') AS started,
	TIMESTAMPADD(MICROSECOND, NULLIF(settled, 0), TIMESTAMP'1970-01-01 00:00:00.000000') AS settled,
	TIMESTAMPADD(MICROSECOND, NULLIF(result_expires, 0), TIMESTAMP'1970-01-01 00:00:00.000000') AS result_expires,
	TIMESTAMPADD(MICROSECOND, NULLIF(key_expires, 0), TIMESTAMP'1970-01-01 00:00:00.000000') AS key_expires,
	TIMESTAMPADD(MICROSECOND, NULLIF(token_expires, 0), TIMESTAMP'1970-01-01 00:00:00.000000') AS token_expires,
	TIMESTAMPADD(MICROSECOND, NULLIF(open_since, 0), TIMESTAMP'1970-01-01 00:00:00.000000') AS open_since,
	TIMESTAMPADD(MICROSECOND, NULLIF(expires, 0), TIMESTAMP'1970-01-01 00:00:00.000000') AS expires,
	NULLIF(result_ttl, 0) DIV 1000000 AS result_ttl_seconds,
	NULLIF(key_ttl, 0) DIV 1000000 AS key_ttl_seconds,
	repaired,
	IF(CAST(CONVERT(decided_by USING utf8mb4) AS BINARY) = decided_by, CONVERT(decided_by USING utf8mb4), CONCAT('0x', HEX(decided_by))) AS decided_by,
	IF(CAST(CONVERT(decided_reason USING utf8mb4) AS BINARY) = decided_reason, CONVERT(decided_reason USING utf8mb4), CONCAT('0x', HEX(decided_reason))) AS decided_reason,
	LENGTH(response) AS response_bytes
FROM {records};
