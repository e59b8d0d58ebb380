-- Times are microseconds since 1970 by the clock of the server, and 0 where a time does
-- not apply. Texts of callers are bytes, because a key of a client may be any bytes.

CREATE TABLE {schema} (
	version integer PRIMARY KEY,
	applied bigint NOT NULL
);

-- No row ever gets into this table. A row of {records} with a guard therefore cannot be
-- committed.
CREATE TABLE {never} (
	k bytea PRIMARY KEY CHECK (false)
);

-- Without the parameter, autovacuum begins when a fifth of a table is dead, which is 14 million rows of 70 million.
CREATE TABLE {records} (
	k              bytea PRIMARY KEY,
	form           smallint NOT NULL,
	rev            bigint NOT NULL,
	state          smallint NOT NULL,
	kind           smallint NOT NULL,
	route          bytea NOT NULL,
	fingerprint    bytea NOT NULL,
	attempt        bigint NOT NULL,
	domain         bytea NOT NULL,
	fence          bigint NOT NULL,
	nonce          bytea NOT NULL,
	settlement     bytea NOT NULL,
	repaired       smallint NOT NULL,
	created        bigint NOT NULL,
	started        bigint NOT NULL,
	settled        bigint NOT NULL,
	result_expires bigint NOT NULL,
	key_expires    bigint NOT NULL,
	token_expires  bigint NOT NULL,
	decided_by     bytea NOT NULL,
	decided_reason bytea NOT NULL,
	result_ttl     bigint NOT NULL DEFAULT 0,
	key_ttl        bigint NOT NULL DEFAULT 0,
	response       bytea,
	previous       bytea,
	open_since     bigint,
	expires        bigint,
	guard          bytea CONSTRAINT idem_only_the_middleware_commits REFERENCES {never} (k) DEFERRABLE INITIALLY DEFERRED
) WITH (autovacuum_vacuum_scale_factor = 0.01);

CREATE INDEX {name:records_open} ON {records} (open_since, k) WHERE open_since IS NOT NULL;

CREATE INDEX {name:records_expires} ON {records} (expires) WHERE expires IS NOT NULL;

CREATE TABLE {bindings} (
	k           bytea PRIMARY KEY,
	form        smallint NOT NULL,
	kind        smallint NOT NULL,
	route       bytea NOT NULL,
	fingerprint bytea NOT NULL,
	created     bigint NOT NULL,
	expires     bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.01);

CREATE INDEX {name:bindings_expires} ON {bindings} (expires);

CREATE TABLE {domains} (
	domain         bytea PRIMARY KEY,
	decided_by     bytea NOT NULL,
	decided_reason bytea NOT NULL,
	decided        bigint NOT NULL
);

CREATE TABLE {decisions} (
	k              bytea NOT NULL,
	settlement     bytea NOT NULL,
	attempt        bigint NOT NULL,
	state          smallint NOT NULL,
	decided_by     bytea NOT NULL,
	decided_reason bytea NOT NULL,
	decided        bigint NOT NULL,
	PRIMARY KEY (k, settlement)
);

CREATE TABLE {notes} (
	name    varchar(64) PRIMARY KEY,
	noted   bigint NOT NULL
);

CREATE TABLE {locks} (
	k       bytea PRIMARY KEY,
	owner   bytea,
	domain  varchar(64) NOT NULL,
	fence   bigint NOT NULL,
	nonce   bytea NOT NULL,
	holder  varchar(255) NOT NULL,
	ttl     bigint NOT NULL,
	expires bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.01);

CREATE INDEX {name:locks_expires} ON {locks} (expires);

CREATE TABLE {lock_domain} (
	id     smallint PRIMARY KEY,
	domain varchar(64) NOT NULL,
	fence  bigint NOT NULL
);

COMMENT ON TABLE {schema} IS 'Idemkeeper: The migrations that were applied. Times are microseconds since 1970, 0 for none';
COMMENT ON COLUMN {schema}.version IS 'number of the migration';
COMMENT ON COLUMN {schema}.applied IS 'when';

COMMENT ON TABLE {never} IS 'Idemkeeper: Never has a row, so a record with a guard cannot be committed';
COMMENT ON COLUMN {never}.k IS 'no value is allowed';

COMMENT ON TABLE {records} IS 'Idemkeeper: One row for each idempotency key. Times are microseconds since 1970, 0 for none';
COMMENT ON COLUMN {records}.k IS 'key ID, 32 bytes';
COMMENT ON COLUMN {records}.form IS 'version of the other columns';
COMMENT ON COLUMN {records}.rev IS 'random, another one after each write';
COMMENT ON COLUMN {records}.state IS '1 issued, 2 pending, 3 completed, 4 released, 5 unknown, 6 expired';
COMMENT ON COLUMN {records}.kind IS '0 key of a client, 1 issued token';
COMMENT ON COLUMN {records}.route IS 'name of the policy, as bytes';
COMMENT ON COLUMN {records}.fingerprint IS 'of the request, version and SHA-256';
COMMENT ON COLUMN {records}.attempt IS 'number of the last attempt';
COMMENT ON COLUMN {records}.domain IS 'lock domain of the fence';
COMMENT ON COLUMN {records}.fence IS 'fencing token, 64 bits without a sign';
COMMENT ON COLUMN {records}.nonce IS 'of the attempt';
COMMENT ON COLUMN {records}.settlement IS 'ID of the standing settlement';
COMMENT ON COLUMN {records}.repaired IS '1 if the settlement replaced an older or missing record';
COMMENT ON COLUMN {records}.created IS 'when the record was made';
COMMENT ON COLUMN {records}.started IS 'when the last attempt began';
COMMENT ON COLUMN {records}.settled IS 'when the last attempt was settled';
COMMENT ON COLUMN {records}.result_expires IS 'end of the stored response';
COMMENT ON COLUMN {records}.key_expires IS 'end of the key';
COMMENT ON COLUMN {records}.token_expires IS 'end of an issued token';
COMMENT ON COLUMN {records}.decided_by IS 'who settled the attempt in place of its holder';
COMMENT ON COLUMN {records}.decided_reason IS 'why';
COMMENT ON COLUMN {records}.response IS 'stored response in the binary form of idem.Response';
COMMENT ON COLUMN {records}.previous IS 'JSON of the record that a pending one replaced';
COMMENT ON COLUMN {records}.open_since IS 'started, while the record is pending or unknown';
COMMENT ON COLUMN {records}.expires IS 'when the record changes by itself, NULL for never';
COMMENT ON COLUMN {records}.guard IS 'set while a joined transaction holds the key';
COMMENT ON COLUMN {records}.result_ttl IS 'how long the route of an open attempt keeps a result, in microseconds';
COMMENT ON COLUMN {records}.key_ttl IS 'how long the route of an open attempt remembers the key, in microseconds';

COMMENT ON TABLE {bindings} IS 'Idemkeeper: Requests of keys on routes that call other systems, which outlive a rollback. Times are microseconds since 1970, 0 for none';
COMMENT ON COLUMN {bindings}.k IS 'key ID';
COMMENT ON COLUMN {bindings}.form IS 'version of the other columns';
COMMENT ON COLUMN {bindings}.kind IS '0 key of a client';
COMMENT ON COLUMN {bindings}.route IS 'not used';
COMMENT ON COLUMN {bindings}.fingerprint IS 'of the request';
COMMENT ON COLUMN {bindings}.created IS 'when the key was bound';
COMMENT ON COLUMN {bindings}.expires IS 'end of the binding';

COMMENT ON TABLE {domains} IS 'Idemkeeper: Lock domains that an operator has declared dead. Times are microseconds since 1970, 0 for none';
COMMENT ON COLUMN {domains}.domain IS 'lock domain';
COMMENT ON COLUMN {domains}.decided_by IS 'who';
COMMENT ON COLUMN {domains}.decided_reason IS 'why';
COMMENT ON COLUMN {domains}.decided IS 'when';

COMMENT ON TABLE {decisions} IS 'Idemkeeper: Decisions of people about attempts, which outlive the record. Times are microseconds since 1970, 0 for none';
COMMENT ON COLUMN {decisions}.k IS 'key ID';
COMMENT ON COLUMN {decisions}.settlement IS 'ID of the settlement';
COMMENT ON COLUMN {decisions}.attempt IS 'number of the attempt';
COMMENT ON COLUMN {decisions}.state IS '3 completed, 4 released, 6 its answer was removed';
COMMENT ON COLUMN {decisions}.decided_by IS 'who';
COMMENT ON COLUMN {decisions}.decided_reason IS 'why';
COMMENT ON COLUMN {decisions}.decided IS 'when';

COMMENT ON TABLE {notes} IS 'Idemkeeper: Facts about the whole store. Times are microseconds since 1970, 0 for none';
COMMENT ON COLUMN {notes}.name IS 'of the fact';
COMMENT ON COLUMN {notes}.noted IS 'when';

COMMENT ON TABLE {locks} IS 'Idemkeeper: Locks of package lock/sql. A released lock stays for a minute. Times are microseconds since 1970, 0 for none';
COMMENT ON COLUMN {locks}.k IS 'key ID';
COMMENT ON COLUMN {locks}.owner IS 'random, another one for each lease, NULL for a free lock';
COMMENT ON COLUMN {locks}.domain IS 'lock domain of the fence';
COMMENT ON COLUMN {locks}.fence IS 'fencing token of the last owner';
COMMENT ON COLUMN {locks}.nonce IS 'of the attempt';
COMMENT ON COLUMN {locks}.holder IS 'process of the last owner, pid@host';
COMMENT ON COLUMN {locks}.ttl IS 'time to live in microseconds';
COMMENT ON COLUMN {locks}.expires IS 'end of the time to live, or when it was released';

COMMENT ON TABLE {lock_domain} IS 'Idemkeeper: The lock domain of package lock/sql, in one row';
COMMENT ON COLUMN {lock_domain}.id IS 'always 1';
COMMENT ON COLUMN {lock_domain}.domain IS 'lock domain, a UUID';
COMMENT ON COLUMN {lock_domain}.fence IS 'no lower than any fence of a lock that was removed';

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
