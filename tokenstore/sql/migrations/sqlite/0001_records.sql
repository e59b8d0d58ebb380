-- Times are microseconds since 1970 by the clock of the machine, and 0 where a time does
-- not apply. Texts of callers are bytes, because a key of a client may be any bytes.

CREATE TABLE {schema} (
	version INTEGER PRIMARY KEY,
	applied INTEGER NOT NULL
) STRICT;

-- No row ever gets into this table. A row of {records} with a guard therefore cannot be
-- committed.
CREATE TABLE {never} (
	k BLOB NOT NULL PRIMARY KEY CHECK (0)
) STRICT;

CREATE TABLE {records} (
	k              BLOB NOT NULL PRIMARY KEY,  -- key ID, 32 bytes
	form           INTEGER NOT NULL,  -- version of the other columns
	rev            INTEGER NOT NULL,    -- random, another one after each write
	state          INTEGER NOT NULL,  -- 1 issued, 2 pending, 3 completed, 4 released, 5 unknown, 6 expired
	kind           INTEGER NOT NULL,  -- 0 client key, 1 issued token
	route          BLOB NOT NULL,
	fingerprint    BLOB NOT NULL,     -- version and SHA-256, 33 bytes
	attempt        INTEGER NOT NULL,
	domain         BLOB NOT NULL,     -- of the fence
	fence          INTEGER NOT NULL,    -- 64 bits without a sign, as a number with one
	nonce          BLOB NOT NULL,     -- 16 bytes
	settlement     BLOB NOT NULL,     -- ID of the standing settlement, 16 bytes
	repaired       INTEGER NOT NULL,  -- 1: the settlement replaced an older or missing record
	created        INTEGER NOT NULL,
	started        INTEGER NOT NULL,
	settled        INTEGER NOT NULL,
	result_expires INTEGER NOT NULL,
	key_expires    INTEGER NOT NULL,
	token_expires  INTEGER NOT NULL,
	decided_by     BLOB NOT NULL,
	decided_reason BLOB NOT NULL,
	response       BLOB,              -- the binary form of idem.Response
	previous       BLOB,              -- JSON: the record that a pending one replaced
	open_since     INTEGER,             -- started, while the record is pending or unknown
	expires        INTEGER,             -- when the record changes by itself; NULL: never
	guard          BLOB CONSTRAINT idem_only_the_middleware_commits REFERENCES {never} (k) DEFERRABLE INITIALLY DEFERRED
) STRICT;

CREATE INDEX {name:records_open} ON {records} (open_since, k) WHERE open_since IS NOT NULL;

CREATE INDEX {name:records_expires} ON {records} (expires) WHERE expires IS NOT NULL;

-- The fingerprints of keys on routes that call other systems. They outlive a rollback of
-- the business transaction.
CREATE TABLE {bindings} (
	k           BLOB NOT NULL PRIMARY KEY,
	form        INTEGER NOT NULL,
	kind        INTEGER NOT NULL,
	route       BLOB NOT NULL,
	fingerprint BLOB NOT NULL,
	created     INTEGER NOT NULL,
	expires     INTEGER NOT NULL
) STRICT;

CREATE INDEX {name:bindings_expires} ON {bindings} (expires);

-- Lock domains that an operator has declared dead.
CREATE TABLE {domains} (
	domain         BLOB NOT NULL PRIMARY KEY,
	decided_by     BLOB NOT NULL,
	decided_reason BLOB NOT NULL,
	decided        INTEGER NOT NULL
) STRICT;

-- The decisions of people about attempts. They outlive the record and its next attempt.
CREATE TABLE {decisions} (
	k              BLOB NOT NULL,
	settlement     BLOB NOT NULL,
	attempt        INTEGER NOT NULL,
	state          INTEGER NOT NULL,
	decided_by     BLOB NOT NULL,
	decided_reason BLOB NOT NULL,
	decided        INTEGER NOT NULL,
	PRIMARY KEY (k, settlement)
) STRICT;

-- Facts about the whole store.
CREATE TABLE {notes} (
	name    TEXT NOT NULL PRIMARY KEY,
	noted   INTEGER NOT NULL
) STRICT;
