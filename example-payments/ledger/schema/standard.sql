-- For SQLite and PostgreSQL, which differ in {serial}. Money is in minor units.
-- Times are microseconds since 1970, UTC. Package fence makes the table of fences.

CREATE TABLE IF NOT EXISTS accounts (
    merchant TEXT   NOT NULL,
    id       TEXT   NOT NULL,
    currency TEXT   NOT NULL,
    opening  BIGINT NOT NULL,
    balance  BIGINT NOT NULL CHECK (balance >= 0),
    PRIMARY KEY (merchant, id)
);

CREATE TABLE IF NOT EXISTS payments (
    seq          {serial},
    id           TEXT   NOT NULL UNIQUE,
    operation_id TEXT   NOT NULL, -- not unique, so that a broken middleware shows
    merchant     TEXT   NOT NULL,
    from_account TEXT   NOT NULL,
    to_account   TEXT   NOT NULL,
    amount       BIGINT NOT NULL CHECK (amount > 0),
    currency     TEXT   NOT NULL,
    note         TEXT   NOT NULL,
    created_at   BIGINT NOT NULL
);

CREATE INDEX IF NOT EXISTS payments_operation ON payments (operation_id);
CREATE INDEX IF NOT EXISTS payments_merchant ON payments (merchant, seq);
CREATE INDEX IF NOT EXISTS payments_note ON payments (merchant, note, seq);
