package idem

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/idemkeeper/idemkeeper/idem/guarantee"
)

// routes are what adapters have set up with an engine.
type routes struct {
	mu   sync.Mutex
	list []*wiring
}

// wiring is one policy that an adapter has set up. It is safe for concurrent use.
type wiring struct {
	engine    *core
	require   guarantee.Need
	guarantee guarantee.Guarantee // its Route is the name of the policy, or the line of the program
	named     bool
	served    sync.Map // names of routes, of a policy without a name
	serving   atomic.Int64
}

// maxServed bounds the names of one policy. A gRPC server may take methods whose names clients make up.
const maxServed = 1000

// add notes a policy, and reports it the first time. One route cannot have two requirements.
func (r *routes) add(c *core, p *Policy, g guarantee.Guarantee) (w *wiring, first bool, err error) {
	w = &wiring{engine: c, require: p.Require, guarantee: g, named: p.Name != ""}
	if !w.named {
		w.guarantee.Route = wiredAt()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, other := range r.list {
		switch {
		case other.guarantee.Route != w.guarantee.Route:
		case other.require != w.require && w.named:
			return nil, false, fmt.Errorf("idem: route %q is set up twice, and requires %s here and %s there", p.Name, w.require, other.require)
		case other.guarantee.String() == w.guarantee.String():
			return other, false, nil
		}
	}
	r.list = append(r.list, w)
	return w, true, nil
}

// all returns the guarantee of each route that is known.
func (r *routes) all() []guarantee.Guarantee {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []guarantee.Guarantee
	for _, w := range r.list {
		g, served := w.guarantee, false
		w.served.Range(func(name, _ any) bool {
			g.Route, served = name.(string), true //nolint:forcetypeassert // serves stores nothing else
			all = append(all, g)
			return true
		})
		if !served {
			all = append(all, g)
		}
	}
	return all
}

// of reports whether the policy of w was set up with an engine.
func (w *wiring) of(c *core) bool { return w != nil && w.engine == c }

// serves notes a route of a policy without a name.
func (w *wiring) serves(route string) {
	if w == nil {
		return
	}
	if _, known := w.served.Load(route); known || w.serving.Load() >= maxServed {
		return
	}
	if _, known := w.served.LoadOrStore(route, nil); !known {
		w.serving.Add(1)
	}
}

const module = "github.com/idemkeeper/idemkeeper/"

// wiredAt is the line of the program that has called an adapter, such as "main.go:42".
func wiredAt() string {
	pc := make([]uintptr, 32)
	frames := runtime.CallersFrames(pc[:runtime.Callers(1, pc)])
	for {
		frame, more := frames.Next()
		if !library(frame.Function) {
			return fmt.Sprintf("%s:%d", filepath.Base(frame.File), frame.Line)
		}
		if !more {
			return ""
		}
	}
}

// library reports whether a function is of the engine or of an adapter.
func library(function string) bool {
	slash := strings.LastIndexByte(function, '/') + 1
	dot := strings.IndexByte(function[slash:], '.')
	if dot < 0 {
		return false
	}
	pkg := function[:slash+dot]
	return pkg == module+"idem" || strings.HasPrefix(pkg, module+"middleware/") && !strings.HasSuffix(pkg, "_test")
}
