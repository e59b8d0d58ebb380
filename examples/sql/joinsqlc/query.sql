-- name: InsertPayment :exec
INSERT INTO payments (id, payer, amount) VALUES ($1, $2, $3);

-- name: SumOfPayer :one
SELECT sum(amount)::bigint FROM payments WHERE payer = $1;
