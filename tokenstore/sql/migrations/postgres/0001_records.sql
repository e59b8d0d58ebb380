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

CREATE TABLE {records} (
	k              bytea PRIMARY KEY,  -- key ID, 32 bytes
	form           smallint NOT NULL,  -- version of the other columns
	rev            bigint NOT NULL,    -- random, another one after each write
	state          smallint NOT NULL,  -- 1 issued, 2 pending, 3 completed, 4 released, 5 unknown, 6 expired
	kind           smallint NOT NULL,  -- 0 client key, 1 issued token
	route          bytea NOT NULL,
	fingerprint    bytea NOT NULL,     -- version and SHA-256, 33 bytes
	attempt        bigint NOT NULL,
	domain         bytea NOT NULL,     -- of the fence
	fence          bigint NOT NULL,    -- 64 bits without a sign, as a number with one
	nonce          bytea NOT NULL,     -- 16 bytes
	settlement     bytea NOT NULL,     -- ID of the standing settlement, 16 bytes
	repaired       smallint NOT NULL,  -- 1: the settlement replaced an older or missing record
	created        bigint NOT NULL,
	started        bigint NOT NULL,
	settled        bigint NOT NULL,
	result_expires bigint NOT NULL,
	key_expires    bigint NOT NULL,
	token_expires  bigint NOT NULL,
	decided_by     bytea NOT NULL,
	decided_reason bytea NOT NULL,
	response       bytea,              -- the binary form of idem.Response
	previous       bytea,              -- JSON: the record that a pending one replaced
	open_since     bigint,             -- started, while the record is pending or unknown
	expires        bigint,             -- when the record changes by itself; NULL: never
	guard          bytea CONSTRAINT idem_only_the_middleware_commits REFERENCES {never} (k) DEFERRABLE INITIALLY DEFERRED
);

CREATE INDEX {name:records_open} ON {records} (open_since, k) WHERE open_since IS NOT NULL;

CREATE INDEX {name:records_expires} ON {records} (expires) WHERE expires IS NOT NULL;

-- The fingerprints of keys on routes that call other systems. They outlive a rollback of
-- the business transaction.
CREATE TABLE {bindings} (
	k           bytea PRIMARY KEY,
	form        smallint NOT NULL,
	kind        smallint NOT NULL,
	route       bytea NOT NULL,
	fingerprint bytea NOT NULL,
	created     bigint NOT NULL,
	expires     bigint NOT NULL
);

CREATE INDEX {name:bindings_expires} ON {bindings} (expires);

-- Lock domains that an operator has declared dead.
CREATE TABLE {domains} (
	domain         bytea PRIMARY KEY,
	decided_by     bytea NOT NULL,
	decided_reason bytea NOT NULL,
	decided        bigint NOT NULL
);

-- The decisions of people about attempts. They outlive the record and its next attempt.
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

-- Facts about the whole store.
CREATE TABLE {notes} (
	name    varchar(64) PRIMARY KEY,
	noted   bigint NOT NULL
);
