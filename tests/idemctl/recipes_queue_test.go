package idemctl

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestQueueFromTheShell(t *testing.T) {
	t.Parallel()
	r := kit.ZooKeeperOnly(t, testserver.SharedZooKeeper(t))
	const q = "/jobs/queue"
	wantOutput(t, "len of a queue that is not there", r.RunIdemctl("queue", "len", q), "0\n")
	wantExitLine(t, "peek at nothing", r.RunIdemctl("queue", "peek", q), 75, "nothing there", q)
	wantExitLine(t, "poll of nothing", r.RunIdemctl("queue", "poll", q), 75, "nothing there", q)
	wantExitLine(t, "poll of nothing for a while", r.RunIdemctl("queue", "poll", "--wait", "100ms", q), 75, "nothing there", q)

	wantOutput(t, "offer", r.RunIdemctl("queue", "offer", q, "one"), "")
	piped := r.Idemctl("queue", "offer", q, "-")
	piped.Stdin = strings.NewReader("two\nlines")
	wantOutput(t, "offer of standard input", kit.StartProcess(t, "idemctl queue offer -", piped).WaitExit(t), "")
	wantOutput(t, "offer of what looks like a flag", r.RunIdemctl("queue", "offer", q, "--", "--three"), "")
	wantOutput(t, "len", r.RunIdemctl("queue", "len", q), "3\n")
	wantOutput(t, "peek", r.RunIdemctl("queue", "peek", q), "one\n")
	wantOutput(t, "peek again", r.RunIdemctl("queue", "peek", q), "one\n")
	wantOutput(t, "poll", r.RunIdemctl("queue", "poll", q), "one\n")
	wantOutput(t, "poll", r.RunIdemctl("queue", "poll", "--wait", "5s", q), "two\nlines\n")
	wantOutput(t, "len", r.RunIdemctl("--json", "queue", "len", q), `{"len":1}`+"\n")
	var e struct{ ID, Data string }
	got := r.RunIdemctl("--json", "queue", "poll", q)
	if err := json.Unmarshal([]byte(got.Stdout), &e); err != nil || e.Data != "--three" || len(e.ID) != 24 {
		t.Errorf("poll --json = %q, %v, want the element", got.Stdout, err)
	}

	waiting := r.StartIdemctl("queue", "poll", "--wait", "60s", q)
	wantOutput(t, "offer to one who waits", r.RunIdemctl("queue", "offer", q, "four"), "")
	wantOutput(t, "poll that waited", waiting.WaitExit(t), "four\n")
	wantExitLine(t, "too much", r.RunIdemctl("queue", "offer", "/jobs/queue/", "x"), 2, "PATH")
	big := r.Idemctl("queue", "offer", q, "-")
	big.Stdin = strings.NewReader(strings.Repeat("x", 600<<10))
	wantExitLine(t, "offer of too much", kit.StartProcess(t, "idemctl queue offer 600 KiB", big).WaitExit(t), 1, "too large")
	wantExitLine(t, "poll afterwards", r.RunIdemctl("queue", "poll", q), 75, "nothing there")
}

// The reply to the removal is lost, and the caller does not wait for another:
// it gets the element, and hears that it may not be the only one.
func TestQueuePollInDoubt(t *testing.T) {
	t.Parallel()
	r := kit.ZooKeeperOnly(t, testserver.SharedZooKeeper(t))
	const q = "/jobs/queue"
	wantOutput(t, "offer", r.RunIdemctl("queue", "offer", q, "one"), "")
	p := testserver.StartZooKeeperProxy(t, r.ZK[0])
	removals, nth := testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(q+"/e-")), 0
	hold := p.HoldNextReply(func(req testserver.Request) bool {
		if removals(req) {
			nth++
		}
		return nth == 2 // the first of a session is refused, for want of its stamp
	})
	in := r.Through(p).StartIdemctl("queue", "poll", "--wait", "3s", q)
	kit.WaitFor(t, "removal", hold.Held())
	p.BlackHole(testserver.Both) // nor is it told over another connection
	got := in.WaitExit(t)
	wantExitLine(t, "poll", got, 1, "may have been removed", "still in the queue")
	if got.Stdout != "one\n" {
		t.Errorf("poll printed %q, want the element", got.Stdout)
	}
	wantExitLine(t, "poll afterwards", r.RunIdemctl("queue", "poll", q), 75, "nothing there")
}
