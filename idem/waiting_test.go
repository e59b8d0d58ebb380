package idem_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// TestWaitingDuplicatesAreBounded: each one keeps its body, so there are only so many of them, of a key
// and of a scope. Those beyond are refused at once, and the others get their answer.
func TestWaitingDuplicatesAreBounded(t *testing.T) {
	for _, tt := range []struct {
		name             string
		perKey, perScope int
		elsewhere        bool
		want             int // of 10 duplicates of each of two keys that wait
	}{
		{"of a key", 3, 100, false, 6},
		{"of a scope", 100, 5, false, 5},
		{"of a scope, with the lock elsewhere", 100, 1, true, 1},
		{"none is too many", 10, 20, false, 20},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := setup(t, parts{opts: []idem.Option{idem.WithMaxWaiting(tt.perKey, tt.perScope)},
					policy: func(p *idem.Policy) { p.DuplicateWait = time.Minute }})
				running, waiting := b.engine, b.engine
				if tt.elsewhere {
					running = b.another(b.locks, b.faults)
				}
				keys, release := []string{"k1", "k2"}, make(chan struct{})
				for _, key := range keys {
					go func() {
						_, err := running.Do(context.Background(), b.operation(key, "a"), func(ctx context.Context) (idem.Response, error) {
							<-release
							return b.pay(ctx)
						})
						if err != nil {
							t.Errorf("Do() = %v", err)
						}
					}()
				}
				synctest.Wait()
				answers := make(chan error, 100)
				for _, key := range keys {
					for range 10 {
						go func() {
							_, err := waiting.Do(context.Background(), b.operation(key, "a"), b.pay)
							answers <- err
						}()
						synctest.Wait()
					}
				}
				if n := len(answers); n != 20-tt.want {
					t.Errorf("%d duplicates were refused at once, want %d", n, 20-tt.want)
				}
				for range len(answers) {
					b.wantRefused(<-answers, idem.CodeInProgress)
				}
				close(release)
				time.Sleep(time.Second)
				for range len(answers) {
					if err := <-answers; err != nil {
						t.Errorf("Do() of a duplicate that waited = %v", err)
					}
				}
				b.wantRuns(2)
				// The places are free again.
				finish := b.started("k3", "a", b.pay)
				go func() {
					_, err := b.engine.Do(context.Background(), b.operation("k3", "a"), b.pay)
					answers <- err
				}()
				synctest.Wait()
				if n := len(answers); n != 0 {
					t.Errorf("a duplicate was refused after the others had left: %v", <-answers)
				}
				if _, err := finish(); err != nil {
					t.Errorf("Do() = %v", err)
				}
				if err := <-answers; err != nil {
					t.Errorf("Do() of a duplicate = %v", err)
				}
			})
		})
	}
}
