CREATE TABLE IF NOT EXISTS idempotency_keys (
	key          text PRIMARY KEY,
	request_hash bytea NOT NULL,
	created_at   timestamptz NOT NULL DEFAULT now(),
	locked_at    timestamptz, -- while a request of BankPayments is under way
	status       integer,     -- NULL until there is an answer
	answer       bytea
);
-- A job deletes old keys by their age.
CREATE INDEX IF NOT EXISTS idempotency_keys_created_at ON idempotency_keys (created_at);
