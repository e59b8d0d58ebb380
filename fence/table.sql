CREATE TABLE IF NOT EXISTS {table} (
    operation_id {text 255} NOT NULL PRIMARY KEY,
    domain       {text 255} NOT NULL, -- lock domain of the highest fence
    token        BIGINT     NOT NULL, -- of the highest fence
    past         {long text} NOT NULL -- JSON: the lock domains that are over for the operation
){engine};
