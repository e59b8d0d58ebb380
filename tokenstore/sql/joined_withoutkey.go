package sqlstore

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// This file is about the transaction of a request without a key. It has no record, which otherwise shows whether the
// transaction is still the first one, and keeps a handler of PostgreSQL from committing. So the guard of the database looks at the
// transaction itself, and what it cannot see counts as unknown.

// badConnections is how many connections of the pool may turn out to be lost, as in database/sql.
const badConnections = 2

// BeginWithoutKey opens a transaction without a record. [driver.JoinedStore] has the contract. The error
// wraps driver.ErrUnavailable.
func (j *Joined) BeginWithoutKey(ctx context.Context, handlerTimeout time.Duration) (tx driver.JoinedTx, err error) {
	const method = "begin without a key"
	if err := j.mayWrite(method); err != nil {
		return nil, err
	}
	if err := j.takeSlot(ctx); err != nil {
		return nil, err
	}
	for range badConnections + 1 {
		var t *joinedTx
		if t, err = j.tryWithoutKey(ctx, handlerTimeout); err == nil {
			t.release = j.giveSlot
			return t, nil
		}
		if !errors.Is(err, sqldriver.ErrBadConn) {
			break
		}
	}
	j.giveSlot()
	return nil, j.failed(method, err)
}

func (j *Joined) tryWithoutKey(ctx context.Context, handlerTimeout time.Duration) (t *joinedTx, err error) {
	t = j.newTx(handlerTimeout)
	t.keyless, t.attempt.Nonce = true, driver.NewNonce() // names the savepoint
	if t.session, err = j.connector.Connect(ctx); err != nil {
		return nil, err
	}
	if err = j.guard.begin(ctx, t); err != nil {
		t.finish(ctx, true)
		return nil, err
	}
	if s := databaseSQL(t.session); s != nil {
		s.hand()
	}
	return t, nil
}
