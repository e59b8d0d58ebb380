package leaseclock

import (
	"testing"
	"time"
)

func TestNowNeverGoesBack(t *testing.T) {
	t.Parallel()
	before := Now()
	if before.IsZero() {
		t.Fatal("Now() stands for no moment")
	}
	for range 10_000 {
		now := Now()
		if now.Before(before) {
			t.Fatalf("Now() is %v before an earlier one", before.Sub(now))
		}
		before = now
	}
}

func TestInstants(t *testing.T) {
	t.Parallel()
	m := NewManual()
	early := m.Now()
	if late := early.Add(time.Second); !early.Before(late) || !late.After(early) || late.Sub(early) != time.Second {
		t.Errorf("a second later is %v later", late.Sub(early))
	}
	if early.Before(early) || early.After(early) {
		t.Error("a moment is before or after itself")
	}
	m.Advance(time.Minute)
	if got := m.Now().Sub(early); got != time.Minute {
		t.Errorf("Advance(1m) moved the clock by %v", got)
	}
	var none Instant
	if !none.IsZero() || !none.Before(early) {
		t.Errorf("the zero Instant is not before all others")
	}
}
