package operate_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/operate"
)

func numbers(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

func TestBulkReportsEachOnce(t *testing.T) {
	t.Parallel()
	var got []int
	b := operate.Bulk[int]{
		Decide: func(context.Context, int) operate.Result { return operate.Result{Outcome: operate.Settled} },
		Report: func(n int, _ operate.Result) error { got = append(got, n); return nil },
	}
	if err := b.Run(t.Context(), slices.Values(numbers(1000))); err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	if !slices.Equal(got, numbers(1000)) {
		t.Errorf("%d reports, want one for each of 1,000", len(got))
	}
}

// Lines that fail by themselves, such as those without a kept answer, do not keep the others from being tried.
func TestBulkGoesOnAfterFaultsOfLines(t *testing.T) {
	t.Parallel()
	n := 0
	b := operate.Bulk[int]{
		Decide: func(context.Context, int) operate.Result {
			return operate.Result{Outcome: operate.Failed, Err: errors.New("no answer is kept")}
		},
		Report: func(int, operate.Result) error { n++; return nil },
	}
	if err := b.Run(t.Context(), slices.Values(numbers(1000))); err != nil || n != 1000 {
		t.Errorf("Run() = %v after %d reports, want all 1,000", err, n)
	}
}

func TestBulkKeepsItsRate(t *testing.T) {
	t.Parallel()
	began := time.Now()
	b := operate.Bulk[int]{
		Rate:   1000,
		Decide: func(context.Context, int) operate.Result { return operate.Result{Outcome: operate.Settled} },
		Report: func(int, operate.Result) error { return nil },
	}
	if err := b.Run(t.Context(), slices.Values(numbers(301))); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 200*time.Millisecond { // a pause of 100 ms is made up for
		t.Errorf("301 decisions at 1,000 a second took %v", took)
	}
}

// A run that ends early reports all that it has begun.
func TestBulkEndsEarly(t *testing.T) {
	t.Parallel()
	full := errors.New("the disk is full")
	away := fmt.Errorf("%w: the server is away", driver.ErrUnavailable)
	tests := []struct {
		name   string
		result operate.Result
		report error
		cancel bool
		want   error
		most   int
	}{
		{"report fails", operate.Result{Outcome: operate.Settled}, full, false, full, 200},
		{"canceled", operate.Result{Outcome: operate.Settled}, nil, true, context.Canceled, 200},
		{"servers are away", operate.Result{Outcome: operate.Failed, Err: away}, nil, false, operate.ErrServersFail, 400},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			decided, reported := make(chan int, 100_000), 0
			b := operate.Bulk[int]{
				Decide: func(ctx context.Context, n int) operate.Result {
					if ctx.Err() != nil {
						t.Error("a decision under way was canceled")
					}
					decided <- n
					return tt.result
				},
				Report: func(int, operate.Result) error {
					for reported == 0 && len(decided) < 10 { // until others are under way
						time.Sleep(time.Millisecond)
					}
					reported++
					if tt.cancel {
						cancel()
					}
					return tt.report
				},
			}
			err := b.Run(ctx, slices.Values(numbers(100_000)))
			if !errors.Is(err, tt.want) {
				t.Errorf("Run() = %v, want %v", err, tt.want)
			}
			if len(decided) != reported || reported == 0 || reported > tt.most {
				t.Errorf("%d decisions and %d reports, want as many, and at most %d", len(decided), reported, tt.most)
			}
		})
	}
}
