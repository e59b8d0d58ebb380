-- How long the route of an open attempt keeps a result and remembers a key, in microseconds. 0:
-- not known, or no open attempt.

ALTER TABLE {records} ADD COLUMN result_ttl bigint NOT NULL DEFAULT 0;

ALTER TABLE {records} ADD COLUMN key_ttl bigint NOT NULL DEFAULT 0;

-- Times are microseconds since 1970, and 0 where a time does not apply.

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
COMMENT ON COLUMN {decisions}.state IS '3 completed, 4 released';
COMMENT ON COLUMN {decisions}.decided_by IS 'who';
COMMENT ON COLUMN {decisions}.decided_reason IS 'why';
COMMENT ON COLUMN {decisions}.decided IS 'when';

COMMENT ON TABLE {notes} IS 'Idemkeeper: Facts about the whole store. Times are microseconds since 1970, 0 for none';
COMMENT ON COLUMN {notes}.name IS 'of the fact';
COMMENT ON COLUMN {notes}.noted IS 'when';
