-- Times are microseconds since 1970 by the clock of the machine, and 0 where a time does
-- not apply. Texts of callers are bytes, because a key of a client may be any bytes.
--
-- SQLite keeps the comments between CREATE and the semicolon, and shows them with .schema.

CREATE TABLE {schema} (
	-- Idemkeeper: The migrations that were applied. Times are microseconds since 1970, 0 for none
	version INTEGER PRIMARY KEY, -- number of the migration
	applied INTEGER NOT NULL     -- when
) STRICT;

CREATE TABLE {never} (
	-- Idemkeeper: Never has a row, so a record with a guard cannot be committed
	k BLOB NOT NULL PRIMARY KEY CHECK (0) -- no value is allowed
) STRICT;

CREATE TABLE {records} (
	-- Idemkeeper: One row for each idempotency key. Times are microseconds since 1970, 0 for none
	k              BLOB NOT NULL PRIMARY KEY, -- key ID, 32 bytes
	form           INTEGER NOT NULL,          -- version of the other columns
	rev            INTEGER NOT NULL,          -- random, another one after each write
	state          INTEGER NOT NULL,          -- 1 issued, 2 pending, 3 completed, 4 released, 5 unknown, 6 expired
	kind           INTEGER NOT NULL,          -- 0 key of a client, 1 issued token
	route          BLOB NOT NULL,             -- name of the policy, as bytes
	fingerprint    BLOB NOT NULL,             -- of the request, version and SHA-256
	attempt        INTEGER NOT NULL,          -- number of the last attempt
	domain         BLOB NOT NULL,             -- lock domain of the fence
	fence          INTEGER NOT NULL,          -- fencing token, 64 bits without a sign
	nonce          BLOB NOT NULL,             -- of the attempt
	settlement     BLOB NOT NULL,             -- ID of the standing settlement
	repaired       INTEGER NOT NULL,          -- 1 if the settlement replaced an older or missing record
	created        INTEGER NOT NULL,          -- when the record was made
	started        INTEGER NOT NULL,          -- when the last attempt began
	settled        INTEGER NOT NULL,          -- when the last attempt was settled
	result_expires INTEGER NOT NULL,          -- end of the stored response
	key_expires    INTEGER NOT NULL,          -- end of the key
	token_expires  INTEGER NOT NULL,          -- end of an issued token
	decided_by     BLOB NOT NULL,             -- who settled the attempt in place of its holder
	decided_reason BLOB NOT NULL,             -- why
	result_ttl     INTEGER NOT NULL DEFAULT 0, -- how long the route of an open attempt keeps a result, in microseconds
	key_ttl        INTEGER NOT NULL DEFAULT 0, -- how long the route of an open attempt remembers the key, in microseconds
	response       BLOB,                      -- stored response in the binary form of idem.Response
	previous       BLOB,                      -- JSON of the record that a pending one replaced
	open_since     INTEGER,                   -- started, while the record is pending or unknown
	expires        INTEGER,                   -- when the record changes by itself, NULL for never
	-- set while a joined transaction holds the key
	guard          BLOB CONSTRAINT idem_only_the_middleware_commits REFERENCES {never} (k) DEFERRABLE INITIALLY DEFERRED
) STRICT;

CREATE INDEX {name:records_open} ON {records} (open_since, k) WHERE open_since IS NOT NULL;

CREATE INDEX {name:records_expires} ON {records} (expires) WHERE expires IS NOT NULL;

CREATE TABLE {bindings} (
	-- Idemkeeper: Requests of keys on routes that call other systems, which outlive a rollback. Times are microseconds since 1970, 0 for none
	k           BLOB NOT NULL PRIMARY KEY, -- key ID
	form        INTEGER NOT NULL,          -- version of the other columns
	kind        INTEGER NOT NULL,          -- 0 key of a client
	route       BLOB NOT NULL,             -- not used
	fingerprint BLOB NOT NULL,             -- of the request
	created     INTEGER NOT NULL,          -- when the key was bound
	expires     INTEGER NOT NULL           -- end of the binding
) STRICT;

CREATE INDEX {name:bindings_expires} ON {bindings} (expires);

CREATE TABLE {domains} (
	-- Idemkeeper: Lock domains that an operator has declared dead. Times are microseconds since 1970, 0 for none
	domain         BLOB NOT NULL PRIMARY KEY, -- lock domain
	decided_by     BLOB NOT NULL,             -- who
	decided_reason BLOB NOT NULL,             -- why
	decided        INTEGER NOT NULL           -- when
) STRICT;

CREATE TABLE {decisions} (
	-- Idemkeeper: Decisions of people about attempts, which outlive the record. Times are microseconds since 1970, 0 for none
	k              BLOB NOT NULL,    -- key ID
	settlement     BLOB NOT NULL,    -- ID of the settlement
	attempt        INTEGER NOT NULL, -- number of the attempt
	state          INTEGER NOT NULL, -- 3 completed, 4 released, 6 its answer was removed
	decided_by     BLOB NOT NULL,    -- who
	decided_reason BLOB NOT NULL,    -- why
	decided        INTEGER NOT NULL, -- when
	PRIMARY KEY (k, settlement)
) STRICT;

CREATE TABLE {notes} (
	-- Idemkeeper: Facts about the whole store. Times are microseconds since 1970, 0 for none
	name    TEXT NOT NULL PRIMARY KEY, -- of the fact
	noted   INTEGER NOT NULL           -- when
) STRICT;

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
