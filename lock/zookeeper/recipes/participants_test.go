package recipes

import (
	"context"
	"slices"
	"testing"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
)

// shown is what a list of participants says of each: role, permits, and whether it
// has what it wants.
type shown struct {
	role    string
	permits int
	holds   bool
}

func show(them []Participant) (all []shown) {
	for _, p := range them {
		all = append(all, shown{p.Role, p.Permits, p.Holds})
	}
	return all
}

func TestParticipantsOfASemaphore(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	sem := MustNewSemaphore(r.Client, "/s", 3)
	list := func() []shown {
		them, err := sem.Participants(bounded(t))
		if err != nil {
			t.Fatalf("Participants() = %v", err)
		}
		return show(them)
	}
	if got := list(); len(got) != 0 {
		t.Errorf("Participants() of an unused semaphore = %+v", got)
	}
	one, err := sem.Acquire(bounded(t), 2)
	if err != nil {
		t.Fatal(err)
	}
	big, small := make(chan *Lease, 1), make(chan *Lease, 1)
	acquire := func(n int, to chan<- *Lease) {
		l, err := MustNewSemaphore(r.Other, "/s", 3).Acquire(bounded(t), n)
		if err != nil {
			t.Error(err)
		}
		to <- l
	}
	go acquire(2, big)
	until(t, "two in line", func() bool { return len(list()) == 2 })
	go acquire(1, small)
	until(t, "three in line", func() bool { return len(list()) == 3 })
	// The small one waits although a permit is free: the big one is before it.
	if got, want := list(), []shown{{"", 2, true}, {"", 2, false}, {"", 1, false}}; !slices.Equal(got, want) {
		t.Errorf("Participants() = %+v, want %+v", got, want)
	}
	recipetest.Release(r, one)
	two, three := <-big, <-small
	if got, want := list(), []shown{{"", 2, true}, {"", 1, true}}; !slices.Equal(got, want) {
		t.Errorf("Participants() = %+v, want %+v", got, want)
	}
	releaseAll(t, []*Lease{two, three})
}

func TestParticipantsOfAnRWMutex(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	m, other := MustNewRWMutex(r.Client, "/rw"), MustNewRWMutex(r.Other, "/rw")
	list := func() []shown {
		them, err := m.Participants(bounded(t))
		if err != nil {
			t.Fatalf("Participants() = %v", err)
		}
		return show(them)
	}
	var held []*Lease
	for range 2 {
		l, err := m.AcquireRead(bounded(t))
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, l)
	}
	write, read := make(chan *Lease, 1), make(chan *Lease, 1)
	wait := func(acquire func(context.Context) (*Lease, error), to chan<- *Lease) {
		l, err := acquire(bounded(t))
		if err != nil {
			t.Error(err)
		}
		to <- l
	}
	go wait(other.AcquireWrite, write)
	until(t, "three in line", func() bool { return len(list()) == 3 })
	go wait(other.AcquireRead, read)
	until(t, "four in line", func() bool { return len(list()) == 4 })
	want := []shown{{RoleRead, 0, true}, {RoleRead, 0, true}, {RoleWrite, 0, false}, {RoleRead, 0, false}}
	if got := list(); !slices.Equal(got, want) {
		t.Errorf("Participants() = %+v, want %+v", got, want)
	}
	releaseAll(t, held)
	writer := <-write
	want = []shown{{RoleWrite, 0, true}, {RoleRead, 0, false}}
	if got := list(); !slices.Equal(got, want) {
		t.Errorf("Participants() = %+v, want %+v", got, want)
	}
	releaseAll(t, []*Lease{writer})
	releaseAll(t, []*Lease{<-read})
}
