-- How long the route of an open attempt keeps a result and remembers a key, in microseconds. 0:
-- not known, or no open attempt.

ALTER TABLE {records} ADD COLUMN result_ttl bigint NOT NULL DEFAULT 0;

ALTER TABLE {records} ADD COLUMN key_ttl bigint NOT NULL DEFAULT 0;
