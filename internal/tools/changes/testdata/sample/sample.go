// Package sample has one of each thing that changes can change.
package sample

import (
	"errors"
	"time"
)

type flag bool

var errSmall = errors.New("small")

const limit = 2 + 3 // a constant stays

func grade(points int, extra bool) string {
	switch {
	case points > limit && (extra || points == 100):
		return "best"
	case points > limit:
		return "good"
	}
	return "bad"
}

func withdraw(balance *int, amount int) error {
	if *balance < amount {
		return errSmall
	}
	*balance -= amount
	return nil
}

func both(balance *int, amount int) (int, error) { return *balance, withdraw(balance, amount) }

func all(balance *int) (int, error) { return both(balance, *balance) }

func same(a, b string) bool { return a == b }

// The type flag keeps these comparisons as they are.
func defined(a, b string) flag { return a == b }

func spread(d, by time.Duration) time.Duration { return d + 2*by - time.Duration(1<<3) }

func count(to int) (n int) {
	for n < to {
		n++
	}
	return n
}

func wait(done chan struct{}) {
	go close(done)
	<-done
}

func never(ok bool) {
	if !ok {
		panic("no test comes here")
	}
}
