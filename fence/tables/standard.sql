CREATE TABLE IF NOT EXISTS {table} (
    operation_id TEXT   NOT NULL PRIMARY KEY,
    domain       TEXT   NOT NULL, -- lock domain of the highest fence
    token        BIGINT NOT NULL, -- of the highest fence
    past         TEXT   NOT NULL  -- JSON: the lock domains that are over for the operation
)
