// Package payouts is a job of every month. It may be started twice, on two machines, and again
// after it died halfway. It pays each account at most once for each month.
package payouts

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Job pays accounts. Make it with all fields set.
type Job struct {
	Engine *idem.Engine
	Policy idem.Policy
	// Pay sends the money of one account for one month.
	Pay func(ctx context.Context, account, month string) error
}

// Run pays all accounts for the month of a time. The error names the accounts that the next run has
// to look at. It pays no account that was paid before.
func (j *Job) Run(ctx context.Context, at time.Time, accounts []string) error {
	month := at.UTC().Format("2006-01")
	var failed error
	for _, account := range accounts {
		_, err := j.Engine.Do(ctx, idem.Operation{
			Scope:       "payouts",
			Key:         idem.Key(month + " " + account), // what is to happen once
			Policy:      &j.Policy,
			Fingerprint: idem.FingerprintOf("payout", month, account),
		}, func(ctx context.Context) (idem.Response, error) {
			return idem.Response{}, j.Pay(ctx, account, month)
		})
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("account %s: %w", account, err))
		}
	}
	return failed
}
