package fence_test

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/idemkeeper/idemkeeper/fence"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// Two holders write at the same moment. Whatever the order of their statements, the late one
// does not pay after the newer one has committed.
func TestLateHolderAgainstNewerOne(t *testing.T) {
	onEach(t, func(t *testing.T, l *ledger) {
		for _, level := range levels {
			for _, known := range []bool{false, true} { // whether the row was there before
				t.Run(fmt.Sprintf("%v, row %v", level, known), func(t *testing.T) {
					ctx, op := patient(t), fmt.Sprintf("%v %v", level, known)
					if known {
						must(t, l.pay(ctx, level, op, in("a", 1)))
					}
					// The newer holder has raised its fence and waits with its commit. The late one
					// begins, looks at something, and then wants to raise.
					newer, err := l.db.BeginTx(ctx, l.options(level))
					must(t, err)
					must(t, l.fences.Raise(ctx, newer, op, in("a", 3)))
					late := make(chan error, 1)
					looked := make(chan struct{})
					go func() {
						late <- l.inTx(ctx, level, func(tx *sql.Tx) error {
							var n int
							err := tx.QueryRowContext(ctx, "SELECT count(*) FROM payments").Scan(&n)
							close(looked)
							if err != nil {
								return err
							}
							if err := l.fences.Raise(ctx, tx, op, in("a", 2)); err != nil {
								return err
							}
							return insertPayment(ctx, tx, op, in("a", 2))
						})
					}()
					if l.dialect != dialect.SQLite { // there BEGIN waits for the other writer
						<-looked
					}
					must(t, insertPayment(ctx, newer, op, in("a", 3)))
					must(t, newer.Commit())
					if err := <-late; err == nil {
						t.Error("the late holder paid after the newer one")
					}
					if got := l.paid(t, op); !slices.Contains(got, 3) || slices.Contains(got, 2) {
						t.Errorf("payments under %v, want 3 and not 2", got)
					}
					// It is refused for good, not only by a conflict.
					if err := l.pay(ctx, level, op, in("a", 2)); !isStale(err) {
						t.Errorf("the late holder once more = %v, want a StaleError", err)
					}
				})
			}
		}
	})
}

func isStale(err error) bool {
	_, ok := errors.AsType[*fence.StaleError](err)
	return ok
}

// Many holders write for one operation at once. The payments that commit have rising fences, so
// each of them was the newest when it committed.
func TestManyHolders(t *testing.T) {
	onEach(t, func(t *testing.T, l *ledger) {
		l.exec(t, "CREATE TABLE committed (op VARCHAR(64) NOT NULL, place BIGINT NOT NULL, token BIGINT NOT NULL, PRIMARY KEY (op, place))")
		for _, level := range levels {
			t.Run(level.String(), func(t *testing.T) {
				ctx, op := patient(t), level.String()
				var wg sync.WaitGroup
				for _, token := range []uint64{5, 2, 8, 1, 7, 3, 6, 4} {
					wg.Go(func() {
						for range 20 { // until it has paid or is stale; a conflict starts over
							err := l.inTx(ctx, level, func(tx *sql.Tx) error {
								if err := l.fences.Raise(ctx, tx, op, in("a", token)); err != nil {
									return err
								}
								// The row of the fence is locked, so nobody else of this operation is here.
								_, err := tx.ExecContext(ctx, fmt.Sprintf(
									"INSERT INTO committed (op, place, token) SELECT '%s', coalesce(max(place), 0) + 1, %d FROM committed WHERE op = '%s'", op, token, op))
								return err
							})
							if err == nil || isStale(err) {
								return
							}
						}
						t.Errorf("holder %d met conflicts only", token)
					})
				}
				wg.Wait()
				got := l.tokens(t, "SELECT token FROM committed WHERE op = '"+op+"' ORDER BY place")
				if !slices.IsSorted(got) || len(got) == 0 || got[len(got)-1] != 8 {
					t.Errorf("committed under %v, want rising fences up to 8", got)
				}
			})
		}
	})
}
