-- For MySQL and MariaDB, the same as standard.sql. Texts are bytes, because the
-- comparisons of text there take "a", "A" and "a " for the same account.

CREATE TABLE IF NOT EXISTS accounts (
    merchant VARBINARY(255) NOT NULL,
    id       VARBINARY(255) NOT NULL,
    currency VARBINARY(3)   NOT NULL,
    opening  BIGINT         NOT NULL,
    balance  BIGINT         NOT NULL CHECK (balance >= 0),
    PRIMARY KEY (merchant, id)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS payments (
    seq          BIGINT         NOT NULL AUTO_INCREMENT PRIMARY KEY,
    id           VARBINARY(64)  NOT NULL UNIQUE,
    operation_id VARBINARY(255) NOT NULL, -- not unique, so that a broken middleware shows
    merchant     VARBINARY(255) NOT NULL,
    from_account VARBINARY(255) NOT NULL,
    to_account   VARBINARY(255) NOT NULL,
    amount       BIGINT         NOT NULL CHECK (amount > 0),
    currency     VARBINARY(3)   NOT NULL,
    note         VARBINARY(500) NOT NULL,
    created_at   BIGINT         NOT NULL,
    INDEX payments_operation (operation_id),
    INDEX payments_merchant (merchant, seq),
    INDEX payments_note (merchant, note, seq)
) ENGINE = InnoDB;
