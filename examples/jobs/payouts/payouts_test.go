package payouts

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

func TestAccountsArePaidOnceAMonth(t *testing.T) {
	engine, err := idem.New(memorylock.New(), memorystore.New())
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	paid, bankIsClosed := map[string]int{}, true
	job := &Job{Engine: engine, Policy: idem.Policy{Name: "payout", InDoubt: idem.LeaveUnknown()}, Pay: func(ctx context.Context, account, month string) error {
		mu.Lock()
		defer mu.Unlock()
		if account == "carol" && bankIsClosed {
			idem.NoEffect(ctx) // the bank has said so
			return errors.New("the bank is closed")
		}
		paid[month+" "+account]++
		return nil
	}}
	accounts := []string{"alice", "bob", "carol"}
	november := time.Date(2026, time.November, 30, 2, 0, 0, 0, time.UTC)

	if err := job.Run(t.Context(), november, accounts); err == nil {
		t.Error("Run() = nil, want the account that was not paid")
	}
	bankIsClosed = false
	var wg sync.WaitGroup
	for range 2 { // two machines; one may find an account in progress
		wg.Go(func() { _ = job.Run(t.Context(), november.Add(time.Hour), accounts) })
	}
	wg.Wait()
	if err := job.Run(t.Context(), november.AddDate(0, 0, 1), accounts); err != nil {
		t.Errorf("Run() = %v in December", err)
	}
	want := map[string]int{}
	for _, account := range accounts {
		for _, month := range []string{"2026-11", "2026-12"} {
			want[fmt.Sprint(month, " ", account)] = 1
		}
	}
	if !maps.Equal(paid, want) {
		t.Errorf("paid %v, want each once a month", paid)
	}
}
