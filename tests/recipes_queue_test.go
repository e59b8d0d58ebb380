package tests

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

func TestQueueFromTheShell(t *testing.T) {
	t.Parallel()
	r := newRecipes(t)
	const q = "/jobs/queue"
	prints(t, "len of a queue that is not there", r.run("queue", "len", q), "0\n")
	says(t, "peek at nothing", r.run("queue", "peek", q), 75, "nothing there", q)
	says(t, "poll of nothing", r.run("queue", "poll", q), 75, "nothing there", q)
	says(t, "poll of nothing for a while", r.run("queue", "poll", "--wait", "100ms", q), 75, "nothing there", q)

	prints(t, "offer", r.run("queue", "offer", q, "one"), "")
	piped := r.command("queue", "offer", q, "-")
	piped.Stdin = strings.NewReader("two\nlines")
	prints(t, "offer of standard input", finish(t, spawn(t, "idemctl queue offer -", piped)), "")
	prints(t, "offer of what looks like a flag", r.run("queue", "offer", q, "--", "--three"), "")
	prints(t, "len", r.run("queue", "len", q), "3\n")
	prints(t, "peek", r.run("queue", "peek", q), "one\n")
	prints(t, "peek again", r.run("queue", "peek", q), "one\n")
	prints(t, "poll", r.run("queue", "poll", q), "one\n")
	prints(t, "poll", r.run("queue", "poll", "--wait", "5s", q), "two\nlines\n")
	prints(t, "len", r.run("--json", "queue", "len", q), `{"len":1}`+"\n")
	var e struct{ ID, Data string }
	got := r.run("--json", "queue", "poll", q)
	if err := json.Unmarshal([]byte(got.stdout), &e); err != nil || e.Data != "--three" || len(e.ID) != 24 {
		t.Errorf("poll --json = %q, %v, want the element", got.stdout, err)
	}

	waiting := r.start("queue", "poll", "--wait", "60s", q)
	prints(t, "offer to one who waits", r.run("queue", "offer", q, "four"), "")
	prints(t, "poll that waited", finish(t, waiting), "four\n")
	says(t, "too much", r.run("queue", "offer", "/jobs/queue/", "x"), 2, "PATH")
	big := r.command("queue", "offer", q, "-")
	big.Stdin = strings.NewReader(strings.Repeat("x", 600<<10))
	says(t, "offer of too much", finish(t, spawn(t, "idemctl queue offer 600 KiB", big)), 1, "too large")
	says(t, "poll afterwards", r.run("queue", "poll", q), 75, "nothing there")
}

// The reply to the removal is lost, and the caller does not wait for another:
// it gets the element, and hears that it may not be the only one.
func TestQueuePollInDoubt(t *testing.T) {
	t.Parallel()
	r := newRecipes(t)
	const q = "/jobs/queue"
	prints(t, "offer", r.run("queue", "offer", q, "one"), "")
	p := testserver.StartZooKeeperProxy(t, r.zk[0])
	removals, nth := testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(q+"/e-")), 0
	hold := p.HoldNextReply(func(req testserver.Request) bool {
		if removals(req) {
			nth++
		}
		return nth == 2 // the first of a session is refused, for want of its stamp
	})
	in := r.through(p).start("queue", "poll", "--wait", "3s", q)
	happens(t, "removal", hold.Held())
	p.BlackHole(testserver.Both) // nor is it told over another connection
	got := finish(t, in)
	says(t, "poll", got, 1, "may have been removed", "in the queue still")
	if got.stdout != "one\n" {
		t.Errorf("poll printed %q, want the element", got.stdout)
	}
	says(t, "poll afterwards", r.run("queue", "poll", q), 75, "nothing there")
}
