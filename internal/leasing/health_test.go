package leasing

import (
	"context"
	"io"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

func healthy() *Health { return NewHealth(1, func(error) bool { return false }) }

// A part of a service that did not answer gets one request per pause.
func TestOneCallerLooksAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := healthy()
		h.Note(t.Context(), 0, time.Now(), io.EOF)
		for range 3 {
			if h.Admit(0) {
				t.Error("Admit() = true during the pause, want false")
			}
			time.Sleep(ProbePause)
			if first, second := h.Admit(0), h.Admit(0); !first || second {
				t.Errorf("Admit() = %t and then %t after the pause, want one caller", first, second)
			}
		}
	})
}

// Only a request that had the time of a pause can tell of an outage by not being answered.
func TestImpatientCallerSparesTheOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			name       string
			time, took time.Duration
			err        error
			open       bool
		}{
			{"little time", ProbePause - 1, ProbePause - 1, context.DeadlineExceeded, true},
			{"little time, ended by the connection", ProbePause - 1, ProbePause - 1, os.ErrDeadlineExceeded, true},
			{"little time, and the client's own end", ProbePause - 1, ProbePause / 2, os.ErrDeadlineExceeded, false},
			{"little time, and a broken connection", ProbePause - 1, ProbePause - 1, io.EOF, false},
			{"the time of a pause", ProbePause, ProbePause, context.DeadlineExceeded, false},
			{"much time", time.Second, time.Second, os.ErrDeadlineExceeded, false},
			{"the client's own end", time.Second, ProbePause / 2, os.ErrDeadlineExceeded, false},
			{"cancelled", time.Second, ProbePause / 2, context.Canceled, true},
		} {
			h := healthy()
			ctx, cancel := context.WithTimeout(t.Context(), tt.time)
			sent := time.Now()
			time.Sleep(tt.took)
			h.Note(ctx, 0, sent, tt.err)
			cancel()
			if got := h.Admit(0); got != tt.open {
				t.Errorf("%s: Admit() = %t, want %t", tt.name, got, tt.open)
			}
		}
	})
}
