package sample

import (
	"errors"
	"os"
	"testing"
	"time"
)

func TestGrade(t *testing.T) {
	for points, want := range map[int]string{3: "bad", 7: "good"} {
		if got := grade(points, false); got != want {
			t.Errorf("grade(%d) = %s, want %s", points, got, want)
		}
	}
}

func TestBalance(t *testing.T) {
	balance := 10
	if err := withdraw(&balance, 11); !errors.Is(err, errSmall) {
		t.Error(err)
	}
	if _, err := both(&balance, 4); balance != 6 || err != nil {
		t.Error(balance, err)
	}
	if _, err := all(&balance); balance != 0 || err != nil {
		t.Error(balance, err)
	}
}

func TestSame(t *testing.T) {
	if !same("a", "a") || !bool(defined("a", "a")) {
		t.Error("different")
	}
}

func TestSpread(t *testing.T) {
	if got := spread(time.Second, 0); got != time.Second-8 {
		t.Error(got)
	}
}

func TestCount(t *testing.T) {
	if got := count(2); got != 2 {
		t.Error(got)
	}
}

func TestWait(*testing.T) { wait(make(chan struct{})) }

func TestThatNeedsAChange(t *testing.T) {
	if os.Getenv("CHANGES_ON") == "" {
		t.Error("no change")
	}
}
