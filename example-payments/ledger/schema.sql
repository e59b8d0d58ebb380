-- Money is in minor units. Times are microseconds since 1970, UTC. Package fence makes the table of
-- fences. The types in braces are those of the database.

CREATE TABLE IF NOT EXISTS accounts (
    merchant {text 255} NOT NULL,
    id       {text 255} NOT NULL,
    currency {text 3}   NOT NULL,
    opening  BIGINT     NOT NULL,
    balance  BIGINT     NOT NULL CHECK (balance >= 0),
    PRIMARY KEY (merchant, id)
){engine};

CREATE TABLE IF NOT EXISTS payments (
    seq          {serial},
    id           {text 64}  NOT NULL UNIQUE,
    operation_id {text 255} NOT NULL, -- not unique, so that a broken middleware shows
    merchant     {text 255} NOT NULL,
    from_account {text 255} NOT NULL,
    to_account   {text 255} NOT NULL,
    amount       BIGINT     NOT NULL CHECK (amount > 0),
    currency     {text 3}   NOT NULL,
    note         {text 500} NOT NULL,
    INDEX payments_operation (operation_id),
    INDEX payments_merchant (merchant, seq),
    INDEX payments_note (merchant, note, seq),
    created_at   BIGINT     NOT NULL
){engine};
