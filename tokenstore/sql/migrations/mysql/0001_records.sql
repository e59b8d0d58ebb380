-- Times are microseconds since 1970 by the clock of the server, and 0 where a time does
-- not apply. Keys and texts of callers are bytes. A collation would take keys for equal
-- that differ in case or in trailing spaces.
--
-- MySQL commits each of these statements by itself, so each can be repeated.

CREATE TABLE IF NOT EXISTS {schema} (
	version INT NOT NULL PRIMARY KEY COMMENT 'number of the migration',
	applied BIGINT NOT NULL COMMENT 'when'
) ENGINE = InnoDB, COMMENT = 'Idemkeeper: The migrations that were applied. Times are microseconds since 1970, 0 for none';

CREATE TABLE IF NOT EXISTS {records} (
	k              VARBINARY(32) NOT NULL PRIMARY KEY COMMENT 'key ID, 32 bytes',
	form           SMALLINT NOT NULL COMMENT 'version of the other columns',
	rev            BIGINT NOT NULL COMMENT 'random, another one after each write',
	state          SMALLINT NOT NULL COMMENT '1 issued, 2 pending, 3 completed, 4 released, 5 unknown, 6 expired',
	kind           SMALLINT NOT NULL COMMENT '0 key of a client, 1 issued token',
	route          VARBINARY(255) NOT NULL COMMENT 'name of the policy, as bytes',
	fingerprint    VARBINARY(33) NOT NULL COMMENT 'of the request, version and SHA-256',
	attempt        BIGINT NOT NULL COMMENT 'number of the last attempt',
	domain         VARBINARY(255) NOT NULL COMMENT 'lock domain of the fence',
	fence          BIGINT NOT NULL COMMENT 'fencing token, 64 bits without a sign',
	nonce          VARBINARY(16) NOT NULL COMMENT 'of the attempt',
	settlement     VARBINARY(16) NOT NULL COMMENT 'ID of the standing settlement',
	repaired       SMALLINT NOT NULL COMMENT '1 if the settlement replaced an older or missing record',
	created        BIGINT NOT NULL COMMENT 'when the record was made',
	started        BIGINT NOT NULL COMMENT 'when the last attempt began',
	settled        BIGINT NOT NULL COMMENT 'when the last attempt was settled',
	result_expires BIGINT NOT NULL COMMENT 'end of the stored response',
	key_expires    BIGINT NOT NULL COMMENT 'end of the key',
	token_expires  BIGINT NOT NULL COMMENT 'end of an issued token',
	decided_by     VARBINARY(255) NOT NULL COMMENT 'who settled the attempt in place of its holder',
	decided_reason VARBINARY(1024) NOT NULL COMMENT 'why',
	result_ttl     BIGINT NOT NULL DEFAULT 0 COMMENT 'how long the route of an open attempt keeps a result, in microseconds',
	key_ttl        BIGINT NOT NULL DEFAULT 0 COMMENT 'how long the route of an open attempt remembers the key, in microseconds',
	response       LONGBLOB COMMENT 'stored response in the binary form of idem.Response',
	previous       BLOB COMMENT 'JSON of the record that a pending one replaced',
	open_since     BIGINT COMMENT 'started, while the record is pending or unknown',
	expires        BIGINT COMMENT 'when the record changes by itself, NULL for never',
	INDEX {name:records_open} (open_since, k),
	INDEX {name:records_expires} (expires)
) ENGINE = InnoDB, COMMENT = 'Idemkeeper: One row for each idempotency key. Times are microseconds since 1970, 0 for none';

CREATE TABLE IF NOT EXISTS {bindings} (
	k           VARBINARY(32) NOT NULL PRIMARY KEY COMMENT 'key ID',
	form        SMALLINT NOT NULL COMMENT 'version of the other columns',
	kind        SMALLINT NOT NULL COMMENT '0 key of a client',
	route       VARBINARY(255) NOT NULL COMMENT 'not used',
	fingerprint VARBINARY(33) NOT NULL COMMENT 'of the request',
	created     BIGINT NOT NULL COMMENT 'when the key was bound',
	expires     BIGINT NOT NULL COMMENT 'end of the binding',
	INDEX {name:bindings_expires} (expires)
) ENGINE = InnoDB, COMMENT = 'Idemkeeper: Requests of keys on routes that call other systems, which outlive a rollback. Times are microseconds since 1970, 0 for none';

CREATE TABLE IF NOT EXISTS {domains} (
	domain         VARBINARY(255) NOT NULL PRIMARY KEY COMMENT 'lock domain',
	decided_by     VARBINARY(255) NOT NULL COMMENT 'who',
	decided_reason VARBINARY(1024) NOT NULL COMMENT 'why',
	decided        BIGINT NOT NULL COMMENT 'when'
) ENGINE = InnoDB, COMMENT = 'Idemkeeper: Lock domains that an operator has declared dead. Times are microseconds since 1970, 0 for none';

CREATE TABLE IF NOT EXISTS {decisions} (
	k              VARBINARY(32) NOT NULL COMMENT 'key ID',
	settlement     VARBINARY(16) NOT NULL COMMENT 'ID of the settlement',
	attempt        BIGINT NOT NULL COMMENT 'number of the attempt',
	state          SMALLINT NOT NULL COMMENT '3 completed, 4 released, 6 its answer was removed',
	decided_by     VARBINARY(255) NOT NULL COMMENT 'who',
	decided_reason VARBINARY(1024) NOT NULL COMMENT 'why',
	decided        BIGINT NOT NULL COMMENT 'when',
	PRIMARY KEY (k, settlement)
) ENGINE = InnoDB, COMMENT = 'Idemkeeper: Decisions of people about attempts, which outlive the record. Times are microseconds since 1970, 0 for none';

CREATE TABLE IF NOT EXISTS {notes} (
	name  VARBINARY(64) NOT NULL PRIMARY KEY COMMENT 'of the fact',
	noted BIGINT NOT NULL COMMENT 'when'
) ENGINE = InnoDB, COMMENT = 'Idemkeeper: Facts about the whole store. Times are microseconds since 1970, 0 for none';

CREATE TABLE IF NOT EXISTS {locks} (
	k       VARBINARY(32) NOT NULL PRIMARY KEY COMMENT 'key ID',
	owner   VARBINARY(16) COMMENT 'random, another one for each lease, NULL for a free lock',
	domain  VARBINARY(64) NOT NULL COMMENT 'lock domain of the fence',
	fence   BIGINT NOT NULL COMMENT 'fencing token of the last owner',
	nonce   VARBINARY(16) NOT NULL COMMENT 'of the attempt',
	holder  VARBINARY(255) NOT NULL COMMENT 'process of the last owner, pid@host',
	ttl     BIGINT NOT NULL COMMENT 'time to live in microseconds',
	expires BIGINT NOT NULL COMMENT 'end of the time to live, or when it was released',
	INDEX {name:locks_expires} (expires)
) ENGINE = InnoDB, COMMENT = 'Idemkeeper: Locks of package lock/sql. A released lock stays for a minute. Times are microseconds since 1970, 0 for none';

CREATE TABLE IF NOT EXISTS {lock_domain} (
	id     SMALLINT NOT NULL PRIMARY KEY COMMENT 'always 1',
	domain VARBINARY(64) NOT NULL COMMENT 'lock domain, a UUID',
	fence  BIGINT NOT NULL COMMENT 'no lower than any fence of a lock that was removed'
) ENGINE = InnoDB, COMMENT = 'Idemkeeper: The lock domain of package lock/sql, in one row';

-- The records in readable types. Without the responses and fingerprints, so that it may be shown to more people than the table. A text that
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
