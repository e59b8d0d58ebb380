-- Times are microseconds since 1970 by the clock of the server, and 0 where a time does
-- not apply. Keys and texts of callers are bytes. A collation would take keys for equal
-- that differ in case or in trailing spaces.
--
-- MySQL commits each of these statements by itself, so each can be repeated.

CREATE TABLE IF NOT EXISTS {schema} (
	version INT PRIMARY KEY,
	applied BIGINT NOT NULL
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS {records} (
	k              VARBINARY(32) NOT NULL PRIMARY KEY, -- key ID, 32 bytes
	form           SMALLINT NOT NULL,      -- version of the other columns
	rev            BIGINT NOT NULL,        -- random, another one after each write
	state          SMALLINT NOT NULL,      -- 1 issued, 2 pending, 3 completed, 4 released, 5 unknown, 6 expired
	kind           SMALLINT NOT NULL,      -- 0 client key, 1 issued token
	route          VARBINARY(255) NOT NULL,
	fingerprint    VARBINARY(33) NOT NULL, -- version and SHA-256, 33 bytes
	attempt        BIGINT NOT NULL,
	domain         VARBINARY(255) NOT NULL, -- of the fence
	fence          BIGINT NOT NULL,        -- 64 bits without a sign, as a number with one
	nonce          VARBINARY(16) NOT NULL, -- 16 bytes
	settlement     VARBINARY(16) NOT NULL, -- ID of the standing settlement, 16 bytes
	repaired       SMALLINT NOT NULL,      -- 1: the settlement replaced an older or missing record
	created        BIGINT NOT NULL,
	started        BIGINT NOT NULL,
	settled        BIGINT NOT NULL,
	result_expires BIGINT NOT NULL,
	key_expires    BIGINT NOT NULL,
	token_expires  BIGINT NOT NULL,
	decided_by     VARBINARY(255) NOT NULL,
	decided_reason VARBINARY(1024) NOT NULL,
	response       LONGBLOB,               -- the binary form of idem.Response
	previous       BLOB,                   -- JSON: the record that a pending one replaced
	open_since     BIGINT,                 -- started, while the record is pending or unknown
	expires        BIGINT,                 -- when the record changes by itself; NULL: never
	INDEX {name:records_open} (open_since, k),
	INDEX {name:records_expires} (expires)
) ENGINE = InnoDB;

-- The fingerprints of keys on routes that call other systems. They outlive a rollback of
-- the business transaction.
CREATE TABLE IF NOT EXISTS {bindings} (
	k           VARBINARY(32) NOT NULL PRIMARY KEY,
	form        SMALLINT NOT NULL,
	kind        SMALLINT NOT NULL,
	route       VARBINARY(255) NOT NULL,
	fingerprint VARBINARY(33) NOT NULL,
	created     BIGINT NOT NULL,
	expires     BIGINT NOT NULL,
	INDEX {name:bindings_expires} (expires)
) ENGINE = InnoDB;

-- Lock domains that an operator has declared dead.
CREATE TABLE IF NOT EXISTS {domains} (
	domain         VARBINARY(255) NOT NULL PRIMARY KEY,
	decided_by     VARBINARY(255) NOT NULL,
	decided_reason VARBINARY(1024) NOT NULL,
	decided        BIGINT NOT NULL
) ENGINE = InnoDB;

-- The decisions of people about attempts. They outlive the record and its next attempt.
CREATE TABLE IF NOT EXISTS {decisions} (
	k              VARBINARY(32) NOT NULL,
	settlement     VARBINARY(16) NOT NULL,
	attempt        BIGINT NOT NULL,
	state          SMALLINT NOT NULL,
	decided_by     VARBINARY(255) NOT NULL,
	decided_reason VARBINARY(1024) NOT NULL,
	decided        BIGINT NOT NULL,
	PRIMARY KEY (k, settlement)
) ENGINE = InnoDB;

-- Facts about the whole store.
CREATE TABLE IF NOT EXISTS {notes} (
	name  VARBINARY(64) NOT NULL PRIMARY KEY,
	noted BIGINT NOT NULL
) ENGINE = InnoDB;
