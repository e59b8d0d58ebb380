package recipes

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
)

func TestRegister(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	a, b := MustNewRegister(r.Client, "/idem/some/value"), MustNewRegister(r.Other, "/idem/some/value")
	want := func(reg *Register, data string, version int64) {
		t.Helper()
		got, v, err := reg.Load(bounded(t))
		if err != nil || string(got) != data || v != version {
			t.Errorf("Load() = %q, %d, %v; want %q, %d", got, v, err, data, version)
		}
	}
	save := func(reg *Register, data string, version int64, wanted error) {
		t.Helper()
		if err := reg.Save(bounded(t), []byte(data), version); !errors.Is(err, wanted) {
			t.Errorf("Save(%q, %d) = %v, want %v", data, version, err, wanted)
		}
	}
	want(a, "", 0)
	save(a, "x", 1, ErrConflict)
	save(a, "one\nline", 0, nil)
	want(b, "one\nline", 1)
	save(b, "again", 0, ErrConflict)
	save(b, "two", 1, nil)
	save(a, "late", 1, ErrConflict)
	want(a, "two", 2)
	save(a, "", 2, nil)
	want(b, "", 3)
	// A version that no znode has is a conflict. Its lower half may be that of any version.
	for _, version := range []int64{-1, math.MinInt64, math.MaxInt32, math.MaxInt32 + 1, 1 << 32, 1<<32 + 3, math.MaxInt64} {
		save(a, "no", version, ErrConflict)
	}
	wrong := Registers(r.Client)("relative")
	if err := wrong.Save(bounded(t), nil, 0); err == nil || errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Save() at a relative path = %v, want an error of the path", err)
	}
	if data, v, err := wrong.Load(bounded(t)); err == nil || errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Load() at a relative path = %q, %d, %v, want an error of the path", data, v, err)
	}

	// Lost replies and requests.
	match := testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains("/idem/some/value"))
	for i, lose := range []func(testserver.Match) <-chan struct{}{r.Proxy.DropNextReply, r.Proxy.DropNextRequest} {
		lost := lose(match)
		save(a, "survives", int64(3+i), nil)
		await(t, "the loss", lost)
		want(b, "survives", int64(4+i))
	}
	lost := r.Proxy.DropNextReply(testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains("/idem/other")))
	if err := MustNewRegister(r.Client, "/idem/other").Save(bounded(t), []byte("new"), 0); err != nil {
		t.Errorf("Save() = %v", err)
	}
	await(t, "the loss", lost)
}

// Of many writers of the same bytes exactly one is told that it was the one,
// whatever is lost on the way.
func TestRegisterHasOneWinner(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	for version := range int64(5) {
		r.Proxy.DropNextReply(testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains("/idem/raced")))
		var won atomic.Int32
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				c := []*zookeeper.Client{r.Client, r.Other}[i%2]
				var err error
				for end := time.Now().Add(patience); time.Now().Before(end); {
					if _, err = clientOf(c).Table(); err == nil {
						err = MustNewRegister(c, "/idem/raced").Save(bounded(t), []byte("same"), version)
						break
					}
				}
				switch {
				case err == nil:
					won.Add(1)
				case !errors.Is(err, ErrConflict):
					// A connection that broke between usable and Save.
					t.Logf("Save() = %v", err)
				}
			})
		}
		wg.Wait()
		if n := won.Load(); n > 1 {
			t.Errorf("version %d has %d winners", version, n)
		}
		r.Proxy.Restore()
		until(t, "connected", func() bool { return r.Client.Locker().Ping(bounded(t)) == nil })
		if _, v, err := MustNewRegister(r.Other, "/idem/raced").Load(bounded(t)); err != nil || v != version+1 {
			t.Fatalf("version %d, %v; want %d", v, err, version+1)
		}
	}
}

// A value that the servers would not take is refused here: they would cut the
// connection that all locks of the client share.
func TestRegisterRefusesLargeValues(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	reg, connected := MustNewRegister(r.Client, "/idem/large"), r.Proxy.Accepted()
	if err := reg.Save(bounded(t), make([]byte, MaxRegister+1), 0); !errors.Is(err, ErrRegisterTooLarge) {
		t.Errorf("Save() of %d bytes = %v, want %v", MaxRegister+1, err, ErrRegisterTooLarge)
	}
	if err := reg.Save(bounded(t), make([]byte, MaxRegister), 0); err != nil {
		t.Errorf("Save() of %d bytes = %v", MaxRegister, err)
	}
	if data, version, err := reg.Load(bounded(t)); len(data) != MaxRegister || version != 1 || err != nil {
		t.Errorf("Load() = %d bytes, %d, %v; want what was saved", len(data), version, err)
	}
	if n := r.Proxy.Accepted() - connected; n != 0 {
		t.Errorf("the client connected again %d times, want never", n)
	}
}
