package held

import (
	"errors"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// A session has one claim for each path, and not more claims than it may have. A claim moves to
// the name that the servers gave its znode.
func TestOnePathHasOneClaim(t *testing.T) {
	t.Parallel()
	table := NewTable(&Client{MaxClaims: 2}, nil)
	reserve := func(path string) *Claim {
		t.Helper()
		mine, other, err := table.reserve(path, table.Client.MaxClaims)
		if mine == nil || other != nil || err != nil {
			t.Fatalf("Reserve(%s) = %v, %v, %v, want a claim", path, mine, other, err)
		}
		return mine
	}
	a := reserve("/a")
	if mine, other, err := table.reserve("/a", table.Client.MaxClaims); mine != nil || other != a || err != nil {
		t.Errorf("Reserve() of a claimed path = %v, %v, %v, want the claim that is there", mine, other, err)
	}
	a.Rename("/a1")
	if a.Path() != "/a1" || table.Find("/a1") != a || table.Find("/a") != nil {
		t.Errorf("Path() = %s after Rename(), and Find() knows the claim by another name", a.Path())
	}
	b := reserve("/a")
	if mine, other, err := table.reserve("/c", table.Client.MaxClaims); mine != nil || other != nil || !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("a claim of a third path = %v, %v, %v, want %v", mine, other, err, driver.ErrUnavailable)
	}
	if mine, other, _ := table.reserve("/a1", table.Client.MaxClaims); mine != nil || other != a {
		t.Errorf("Reserve() of a claimed path = %v, %v, want the claim that is there", mine, other)
	}
	b.Free()
	select {
	case <-b.Freed():
	default:
		t.Error("Freed() is open after Free()")
	}
	if table.Find("/a") != nil || table.Freed() != 1 {
		t.Errorf("Find() = %v, Freed() = %d after Free(), want none and 1", table.Find("/a"), table.Freed())
	}
	reserve("/c")
	if mine, other := table.Reserve("/d"); mine == nil || other != nil {
		t.Errorf("Reserve() of a third path = %v, %v, want a claim beyond the limit", mine, other)
	}
}

// The holder of a lease gets the claim of another path even in a full table, unless the lease is
// over or the path is claimed.
func TestClaimOfASecondPath(t *testing.T) {
	t.Parallel()
	table := NewTable(&Client{MaxClaims: 1}, nil)
	if _, _, err := table.reserve("/a", table.Client.MaxClaims); err != nil {
		t.Fatal(err)
	}
	l := &Lease{ending: ending{done: make(chan struct{})}}
	if cl, err := table.Succeed(l, "/a"); cl != nil || err != nil {
		t.Errorf("Succeed() to a claimed path = %v, %v, want none", cl, err)
	}
	if cl, err := table.Succeed(l, "/b"); cl == nil || err != nil || table.Find("/b") != cl {
		t.Errorf("Succeed() = %v, %v, want the claim of the path", cl, err)
	}
	l.ending.end(nil)
	if cl, err := table.Succeed(l, "/c"); cl != nil || !errors.Is(err, driver.ErrLeaseLost) || table.Find("/c") != nil {
		t.Errorf("Succeed() after the end of the lease = %v, %v, want %v", cl, err, driver.ErrLeaseLost)
	}
}
