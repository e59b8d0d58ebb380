package recipes

import (
	"bufio"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// The pair of lock tests that Jepsen is known for: processes add elements to a
// set, one at a time, by reading it and writing it back under a lock. One of them
// is paused past its session between the two, and the next has the lock
// meanwhile, as it should. Then the first goes on. No lock can keep it from
// writing back what it had read; only the set can, by the fence.

// guardedSet is the set: a resource of its own, which knows nothing of locks.
type guardedSet struct {
	fenced bool

	mu       sync.Mutex
	elements []string
	fence    uint64 // the greatest seen
	refused  int
}

// serve answers one process at a time per connection, a line for a line:
//
//	read FENCE           the elements
//	write FENCE ELEMENTS "ok", or "stale" where a greater fence was seen
func (g *guardedSet) serve(c net.Conn) {
	defer c.Close()
	for lines := bufio.NewScanner(c); lines.Scan(); {
		var op, elements string
		var fence uint64
		_, _ = fmt.Sscan(lines.Text(), &op, &fence, &elements)
		fmt.Fprintln(c, g.do(op, fence, elements))
	}
}

func (g *guardedSet) do(op string, fence uint64, elements string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.fenced && fence < g.fence {
		g.refused++
		return "stale"
	}
	g.fence = max(g.fence, fence)
	if op == "read" {
		return strings.Join(g.elements, ",")
	}
	g.elements = strings.Split(elements, ",")
	return "ok"
}

func startGuardedSet(t testing.TB, fenced bool) (*guardedSet, string) {
	t.Helper()
	g := &guardedSet{fenced: fenced}
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { g.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		wg.Wait()
	})
	return g, ln.Addr().String()
}

func TestGuardedSet(t *testing.T) {
	t.Parallel()
	for _, fenced := range []bool{false, true} {
		t.Run(fmt.Sprintf("fenced %v", fenced), func(t *testing.T) {
			t.Parallel()
			server, chroot := testserver.SharedZooKeeper(t)[0], testserver.Chroot(t)
			g, addr := startGuardedSet(t, fenced)
			first, second := startAdder(t, server, chroot, addr), startAdder(t, server, chroot, addr)
			first.add("a")
			second.add("b")

			first.tell("c")
			first.want("read <nil>")
			first.signal(syscall.SIGSTOP)
			second.add("d") // when the first one's session has expired
			first.signal(syscall.SIGCONT)
			first.tell("go")
			want := []string{"a", "b", "d", "c", "e"}
			if fenced {
				first.want("stale")
				first.add("c") // so it knows, and does it again
			} else {
				first.want("ok")
				want = []string{"a", "b", "c", "e"} // "d" was acknowledged, and is lost
			}
			second.add("e")

			g.mu.Lock()
			defer g.mu.Unlock()
			if !slices.Equal(g.elements, want) {
				t.Errorf("the set is %q, want %q", g.elements, want)
			}
			if fenced != (g.refused == 1) {
				t.Errorf("%d late requests were refused", g.refused)
			}
		})
	}
}
