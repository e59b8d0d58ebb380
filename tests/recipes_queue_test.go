package tests

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestQueueFromTheShell(t *testing.T) {
	t.Parallel()
	r := zooKeeperOnly(t, testserver.SharedZooKeeper(t))
	const q = "/jobs/queue"
	wantOutput(t, "len of a queue that is not there", r.runIdemctl("queue", "len", q), "0\n")
	wantExitLine(t, "peek at nothing", r.runIdemctl("queue", "peek", q), 75, "nothing there", q)
	wantExitLine(t, "poll of nothing", r.runIdemctl("queue", "poll", q), 75, "nothing there", q)
	wantExitLine(t, "poll of nothing for a while", r.runIdemctl("queue", "poll", "--wait", "100ms", q), 75, "nothing there", q)

	wantOutput(t, "offer", r.runIdemctl("queue", "offer", q, "one"), "")
	piped := r.idemctl("queue", "offer", q, "-")
	piped.Stdin = strings.NewReader("two\nlines")
	wantOutput(t, "offer of standard input", startProcess(t, "idemctl queue offer -", piped).waitExit(t), "")
	wantOutput(t, "offer of what looks like a flag", r.runIdemctl("queue", "offer", q, "--", "--three"), "")
	wantOutput(t, "len", r.runIdemctl("queue", "len", q), "3\n")
	wantOutput(t, "peek", r.runIdemctl("queue", "peek", q), "one\n")
	wantOutput(t, "peek again", r.runIdemctl("queue", "peek", q), "one\n")
	wantOutput(t, "poll", r.runIdemctl("queue", "poll", q), "one\n")
	wantOutput(t, "poll", r.runIdemctl("queue", "poll", "--wait", "5s", q), "two\nlines\n")
	wantOutput(t, "len", r.runIdemctl("--json", "queue", "len", q), `{"len":1}`+"\n")
	var e struct{ ID, Data string }
	got := r.runIdemctl("--json", "queue", "poll", q)
	if err := json.Unmarshal([]byte(got.stdout), &e); err != nil || e.Data != "--three" || len(e.ID) != 24 {
		t.Errorf("poll --json = %q, %v, want the element", got.stdout, err)
	}

	waiting := r.startIdemctl("queue", "poll", "--wait", "60s", q)
	wantOutput(t, "offer to one who waits", r.runIdemctl("queue", "offer", q, "four"), "")
	wantOutput(t, "poll that waited", waiting.waitExit(t), "four\n")
	wantExitLine(t, "too much", r.runIdemctl("queue", "offer", "/jobs/queue/", "x"), 2, "PATH")
	big := r.idemctl("queue", "offer", q, "-")
	big.Stdin = strings.NewReader(strings.Repeat("x", 600<<10))
	wantExitLine(t, "offer of too much", startProcess(t, "idemctl queue offer 600 KiB", big).waitExit(t), 1, "too large")
	wantExitLine(t, "poll afterwards", r.runIdemctl("queue", "poll", q), 75, "nothing there")
}

// The reply to the removal is lost, and the caller does not wait for another:
// it gets the element, and hears that it may not be the only one.
func TestQueuePollInDoubt(t *testing.T) {
	t.Parallel()
	r := zooKeeperOnly(t, testserver.SharedZooKeeper(t))
	const q = "/jobs/queue"
	wantOutput(t, "offer", r.runIdemctl("queue", "offer", q, "one"), "")
	p := testserver.StartZooKeeperProxy(t, r.zk[0])
	removals, nth := testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(q+"/e-")), 0
	hold := p.HoldNextReply(func(req testserver.Request) bool {
		if removals(req) {
			nth++
		}
		return nth == 2 // the first of a session is refused, for want of its stamp
	})
	in := r.through(p).startIdemctl("queue", "poll", "--wait", "3s", q)
	waitFor(t, "removal", hold.Held())
	p.BlackHole(testserver.Both) // nor is it told over another connection
	got := in.waitExit(t)
	wantExitLine(t, "poll", got, 1, "may have been removed", "still in the queue")
	if got.stdout != "one\n" {
		t.Errorf("poll printed %q, want the element", got.stdout)
	}
	wantExitLine(t, "poll afterwards", r.runIdemctl("queue", "poll", q), 75, "nothing there")
}
