package background_test

import (
	"sync"
	"testing"
	"testing/synctest"

	"github.com/idemkeeper/idemkeeper/internal/background"
)

func idle(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestIdleOnceTheLastIsDone(t *testing.T) {
	t.Parallel()
	var work background.Tracker
	before := work.Idle()
	if !idle(before) {
		t.Error("a new Tracker is not idle")
	}
	for round := range 2 {
		work.Add()
		first := work.Idle()
		work.Add()
		work.Done()
		if idle(first) || idle(work.Idle()) {
			t.Errorf("round %d: idle with one under way", round)
		}
		work.Done()
		if !idle(first) || !idle(work.Idle()) {
			t.Errorf("round %d: not idle when the last was done", round)
		}
	}
	work.Add()
	work.Done() // no caller asks meanwhile
	if !idle(before) || !idle(work.Idle()) {
		t.Error("not idle when all was done")
	}
}

// A waiter waits for all work that began before it was idle, and for no later work.
func TestIdleWhileWorkBeginsAndEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var work background.Tracker
		var wg sync.WaitGroup
		last := make(chan struct{})
		work.Add()
		for range 8 {
			wg.Go(func() {
				for range 100 {
					work.Add()
					work.Done()
				}
			})
		}
		waiting := work.Idle()
		wg.Wait()
		if idle(waiting) {
			t.Error("idle with one under way")
		}
		wg.Go(func() {
			<-last
			work.Done()
			work.Add()
		})
		close(last)
		<-waiting
		wg.Wait()
		if idle(work.Idle()) {
			t.Error("idle with another one under way")
		}
		work.Done()
	})
}

func TestDoneWithoutAddPanics(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("Done() without Add() did not panic")
		}
	}()
	new(background.Tracker).Done()
}
