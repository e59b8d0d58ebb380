package operate

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

const (
	// bulkWorkers is how many decisions are under way at the same time.
	bulkWorkers = 16
	// bulkFailures is how many decisions in a row may fail for want of a server before the rest is not
	// tried. Each would fail after a time-out.
	bulkFailures = 100
	// bulkTimeout bounds one decision.
	bulkTimeout = time.Minute
)

// ErrServersFail says that so many decisions failed in a row that the rest was not tried.
var ErrServersFail = errors.New("too many decisions failed in a row")

// Bulk carries out many decisions.
type Bulk[T any] struct {
	Rate   float64 // decisions a second, 0 for no limit
	Decide func(context.Context, T) Result
	// Report gets each result, one after the other, in the order in which they come. An error ends the run
	// as soon as what is under way has ended, and those results are reported too.
	Report func(T, Result) error
}

// Run carries out decisions until there are no more or ctx ends. Decisions that are under way then
// go to their end, and are reported. The error is that of Report, ErrServersFail or ctx.Err().
func (b *Bulk[T]) Run(ctx context.Context, list iter.Seq[T]) error {
	type reported struct {
		item   T
		result Result
	}
	run, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	next, results := make(chan T), make(chan reported)
	var workers sync.WaitGroup
	for range bulkWorkers {
		workers.Go(func() {
			for item := range next {
				call, cancel := context.WithTimeout(context.WithoutCancel(ctx), bulkTimeout)
				results <- reported{item, b.Decide(call, item)}
				cancel()
			}
		})
	}
	go func() {
		b.pace(run, list, next)
		close(next)
		workers.Wait()
		close(results)
	}()
	inARow := 0
	for r := range results {
		if err := b.Report(r.item, r.result); err != nil {
			stop(err)
		}
		if inARow++; r.result.Outcome != Failed || !errors.Is(r.result.Err, driver.ErrUnavailable) && !errors.Is(r.result.Err, context.DeadlineExceeded) {
			inARow = 0
		}
		if inARow == bulkFailures {
			stop(fmt.Errorf("%w, the last one with: %w", ErrServersFail, r.result.Err))
		}
	}
	return context.Cause(run)
}

// pace passes decisions on, at the rate. It makes up for a pause of at most a tenth of a second.
func (b *Bulk[T]) pace(ctx context.Context, list iter.Seq[T], next chan<- T) {
	every := time.Duration(0)
	if b.Rate > 0 {
		every = time.Duration(float64(time.Second) / b.Rate)
	}
	due := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for item := range list {
		if wait := time.Until(due); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
				return
			}
		} else if wait < -time.Second/10 {
			due = time.Now().Add(-time.Second / 10)
		}
		due = due.Add(every)
		if ctx.Err() != nil {
			return
		}
		select {
		case next <- item:
		case <-ctx.Done():
			return
		}
	}
}
