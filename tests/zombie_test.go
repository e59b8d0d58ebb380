package tests

import (
	"slices"
	"testing"
)

// woken is what a client of a paused holder may be told in the end: the one
// payment, or that its outcome has to be asked for again.
func woken(t *testing.T, done <-chan answer, want payment) {
	t.Helper()
	a := <-done
	switch {
	case a.err == nil && a.status == 201 && a.payment == want:
	case a.is(503, "ownership-lost"), a.is(503, "unavailable"), a.is(409, "outcome-unknown"):
	default:
		t.Errorf("answer of the paused holder = %v, want %v, or 503", a, want)
	}
}

// A holder that is paused beyond its session at any point is succeeded, and
// when it wakes up it can neither pay nor change the outcome.
func TestPausedHolderIsSucceededAndCannotPayLater(t *testing.T) {
	for _, p := range points {
		t.Run(p.name, func(t *testing.T) {
			s, v, other := failover(t)
			const key = "paused"
			done := p.reach(t, v, key)
			v.pause(t)
			s.waitLock(s.zooKeeper(), key, false) // its session is over

			retry := other.demo().payUntil(patience, key, amount, key)
			want := paidOnce(t, other.demo(), key)
			original(t, "retry", retry, want)

			v.resume(t)
			v.deliver()
			woken(t, done, want)
			if p.reports { // and the store did not listen
				v.waitLog(t, "event=superseded", op(key))
			}
			for _, in := range []*instance{v.instance, other} {
				again := in.demo().payUntil(patience, key, amount, key)
				original(t, "retry at "+in.name, again, want)
			}
			paidOnce(t, other.demo(), key)
		})
	}
}

// Without a resolver the next holder is told that the outcome is unknown, and
// the one that wakes up may still report it, but not pay.
func TestPausedHolderWithoutResolverIsUnknown(t *testing.T) {
	for _, p := range points {
		if !p.begun || p.stored {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			s, v, other := failover(t, flags("--resolver", "none"))
			const key = "paused-unknown"
			done := p.reach(t, v, key)
			v.pause(t)
			s.waitLock(s.zooKeeper(), key, false)
			refused(t, "retry", other.demo().payUntil(patience, key, amount, key), 409, "outcome-unknown")

			v.resume(t)
			v.deliver()
			if !p.paid {
				a := <-done
				if a.status == 201 {
					t.Errorf("answer of the paused holder = %v, want no payment", a)
				}
				a = other.demo().pay(key, amount, key)
				if a.status == 201 {
					t.Errorf("retry = %v, want no payment", a)
				}
				paidNever(t, other.demo(), key)
				return
			}
			want := paidOnce(t, other.demo(), key)
			woken(t, done, want)
			a := other.demo().pay(key, amount, key)
			if !a.is(409, "outcome-unknown") {
				original(t, "retry after the report", a, want)
			}
			paidOnce(t, other.demo(), key)
		})
	}
}

// The paused holder wakes up while the next one is at work, and has not paid
// yet: the one that woke up must not pay now.
func TestPausedHolderWakesBeforeTheNextHasPaid(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	v, next := s.startVictim(), s.start("the next", latency(victimLatency))
	const key = "both"
	first := reachLog("at=before-ledger")(t, v, key)
	v.pause(t)
	s.waitLock(s.zooKeeper(), key, false)
	second := next.demo().paying(key, amount, key)
	next.waitLog(t, "at=before-ledger", op(key))
	v.resume(t)

	b := <-second
	want := paidOnce(t, next.demo(), key)
	original(t, "answer of the next holder", b, want)
	woken(t, first, want)
	v.neverLogged(t, "at=after-ledger", op(key))
	original(t, "retry", v.demo().payUntil(patience, key, amount, key), want)
}

// All of several holders that were paused one after the other wake up at once.
func TestSeveralPausedHoldersWakeAtOnce(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	const key = "chain"
	conn := s.zooKeeper()
	var victims []*victim
	var answers []<-chan answer
	for range 2 {
		v := s.startVictim()
		done := v.demo().paying(key, amount, key)
		eventually(t, "holder", func() error { // the lock of the one before has to go
			select {
			case a := <-done:
				if !a.comeBack() {
					t.Fatalf("answer of a holder to be = %v", a)
				}
				done = v.demo().paying(key, amount, key)
			default:
			}
			if _, ok := v.stderr.find("at=before-ledger", op(key)); !ok {
				return errNotYet
			}
			return nil
		})
		v.pause(t)
		s.waitLock(conn, key, false)
		victims, answers = append(victims, v), append(answers, done)
	}
	last := s.start("the last")
	retry := last.demo().payUntil(patience, key, amount, key)
	want := paidOnce(t, last.demo(), key)
	original(t, "retry", retry, want)
	for _, v := range slices.Backward(victims) {
		v.resume(t)
	}
	for _, done := range answers {
		woken(t, done, want)
	}
	paidOnce(t, last.demo(), key)
}
