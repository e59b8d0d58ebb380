CREATE TABLE IF NOT EXISTS {table} (
    operation_id VARBINARY(255) NOT NULL PRIMARY KEY,
    domain       VARBINARY(255) NOT NULL, -- lock domain of the highest fence
    token        BIGINT         NOT NULL, -- of the highest fence
    past         MEDIUMBLOB     NOT NULL  -- JSON: the lock domains that are over for the operation
) ENGINE = InnoDB
