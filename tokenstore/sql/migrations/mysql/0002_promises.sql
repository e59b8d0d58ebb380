-- How long the route of an open attempt keeps a result and remembers a key, in microseconds. 0:
-- not known, or no open attempt.
--
-- A statement that finds its column is an earlier try of this migration.

ALTER TABLE {records} ADD COLUMN result_ttl BIGINT NOT NULL DEFAULT 0;

ALTER TABLE {records} ADD COLUMN key_ttl BIGINT NOT NULL DEFAULT 0;
