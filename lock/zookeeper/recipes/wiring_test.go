package recipes

import (
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
)

// constructors are those of this package, each with the rest of its arguments in order, and the form
// that panics.
var constructors = map[string]struct {
	build func(in zookeeper.Space, path string) (any, error)
	must  func(in zookeeper.Space, path string)
}{
	"Mutex": {
		func(in zookeeper.Space, path string) (any, error) { return none(NewMutex(in, path)) },
		func(in zookeeper.Space, path string) { MustNewMutex(in, path) },
	},
	"ReentrantMutex": {
		func(in zookeeper.Space, path string) (any, error) { return none(NewReentrantMutex(in, path)) },
		func(in zookeeper.Space, path string) { MustNewReentrantMutex(in, path) },
	},
	"RWMutex": {
		func(in zookeeper.Space, path string) (any, error) { return none(NewRWMutex(in, path)) },
		func(in zookeeper.Space, path string) { MustNewRWMutex(in, path) },
	},
	"Semaphore": {
		func(in zookeeper.Space, path string) (any, error) { return none(NewSemaphore(in, path, 1)) },
		func(in zookeeper.Space, path string) { MustNewSemaphore(in, path, 1) },
	},
	"Election": {
		func(in zookeeper.Space, path string) (any, error) { return none(NewElection(in, path, "me")) },
		func(in zookeeper.Space, path string) { MustNewElection(in, path, "me") },
	},
	"Register": {
		func(in zookeeper.Space, path string) (any, error) { return none(NewRegister(in, path)) },
		func(in zookeeper.Space, path string) { MustNewRegister(in, path) },
	},
}

// none makes a nil pointer a nil interface.
func none[T any](v *T, err error) (any, error) {
	if v == nil {
		return nil, err
	}
	return v, err
}

// Wrong wiring is an error of each constructor, and a panic of its form with Must.
func TestConstructorsRefuseWrongWiring(t *testing.T) {
	t.Parallel()
	c := &zookeeper.Client{}
	var missing *zookeeper.Client
	for of, constructor := range constructors {
		if v, err := constructor.build(c.Namespace("/app"), "/x"); err != nil || v == nil {
			t.Errorf("New%s() = %v, %v, want one", of, v, err)
		}
		for name, tt := range map[string]struct {
			in   zookeeper.Space
			path string
		}{
			"a relative path":              {c, "x"},
			"no path":                      {c, ""},
			"the root":                     {c, "/"},
			"an empty element":             {c, "/a//x"},
			"a relative element":           {c, "/a/../x"},
			"a namespace that is no path":  {c.Namespace("app"), "/x"},
			"no client":                    {nil, "/x"},
			"a client that is nil":         {missing, "/x"},
			"a namespace without a client": {missing.Namespace("/app"), "/x"},
		} {
			if v, err := constructor.build(tt.in, tt.path); err == nil || v != nil {
				t.Errorf("New%s() with %s = %v, %v, want an error", of, name, v, err)
			}
			wantPanic(t, "MustNew"+of+"() with "+name, func() { constructor.must(tt.in, tt.path) })
		}
	}
	if _, err := NewElection(c, "/x", strings.Repeat("x", maxCandidate)); err != nil {
		t.Errorf("NewElection() with the longest name = %v", err)
	}
	if l, err := MustNewElection(c, "/x", "").Campaign(bounded(t)); err == nil || l != nil {
		t.Errorf("Campaign() without a name = %v, %v, want a refusal", l, err)
	}
	for _, permits := range []int{0, -1} {
		if sem, err := NewSemaphore(c, "/x", permits); err == nil || sem != nil {
			t.Errorf("NewSemaphore() of %d permits = %v, %v, want an error", permits, sem, err)
		}
	}
	for _, name := range []string{strings.Repeat("x", maxCandidate+1), "\xff"} {
		if e, err := NewElection(c, "/x", name); err == nil || e != nil {
			t.Errorf("NewElection() of %.10q = %v, %v, want an error", name, e, err)
		}
	}
}

func wantPanic(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s returned, want a panic", what)
		}
	}()
	f()
}
