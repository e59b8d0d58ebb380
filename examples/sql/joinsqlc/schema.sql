CREATE TABLE payments (
    id     text PRIMARY KEY,
    payer  text NOT NULL,
    amount bigint NOT NULL
);
