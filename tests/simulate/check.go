package simulate

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// judge knows what was promised.
type judge struct {
	w *world

	mu      sync.Mutex
	keys    map[driver.KeyID]int
	answers map[int]string // that clients got
	shaken  map[int]bool   // the store has lost something of the key
}

func newJudge(w *world) *judge {
	j := &judge{w: w, keys: make(map[driver.KeyID]int), answers: make(map[int]string), shaken: make(map[int]bool)}
	for key := range w.plan.Keys {
		j.keys[idOf(key)] = key
	}
	return j
}

// lost notes the keys whose records the store has lost or set back.
func (j *judge) lost(ids []driver.KeyID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, id := range ids {
		j.shaken[j.keys[id]] = true
	}
}

// shakes reports whether the store has lost something of the key.
func (j *judge) shakes(id driver.KeyID) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.shaken[j.keys[id]]
}

// changed examines a change of a record.
func (j *judge) changed(id driver.KeyID, before, after driver.Record) {
	body := func(r driver.Record) string {
		if r.Response == nil {
			return ""
		}
		return string(r.Response.Body)
	}
	switch {
	case before.State == driver.StateCompleted && (after.State != driver.StateCompleted || body(before) != body(after) || before.Attempt != after.Attempt):
		j.w.failf("key %d: completed record %q of attempt %+v became %v %q of %+v", j.keys[id], body(before), before.Attempt, after.State, body(after), after.Attempt)
	case before.State == driver.StateReleased && before.Attempt == after.Attempt && after.State != driver.StateReleased && after.State != driver.StateNone:
		j.w.failf("key %d: released attempt %+v became %v", j.keys[id], before.Attempt, after.State)
	case before.Attempt.Nonce == after.Attempt.Nonce && (before.State == driver.StateReleased || before.State == driver.StateIssued) && after.State == driver.StatePending:
		j.w.failf("key %d: attempt %+v begins after it was undone", j.keys[id], after.Attempt)
	case after.Attempt.Fence.Before(before.Attempt.Fence):
		j.w.failf("key %d: fence %v was followed by %v", j.keys[id], before.Attempt.Fence, after.Attempt.Fence)
	}
}

// latest is how long after its caller has gone a combined call may begin an attempt. An engine that undoes the call looks for copies of it
// until then. The store allows a tenth of it, and the lease clock that its time is estimated by may run too fast.
const latest = time.Second

// late examines a combined call that begins an attempt after its caller has gone. The store knows the caller's patience by its own clock.
func (j *judge) late(id driver.KeyID, by time.Duration) {
	if by > latest && !j.w.plan.has(StoreClockAhead, StoreClockBack) {
		j.w.failf("key %d: a call begins an attempt %v after its caller has gone", j.keys[id], by)
	}
}

// answered examines what a client got. It reports whether the client may leave it there.
func (j *judge) answered(key int, res idem.Result, err error) (final bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	refusal, refused := errors.AsType[*idem.Refusal](err)
	switch {
	case err == nil:
		got := string(res.Response.Body)
		if earlier, ok := j.answers[key]; ok && earlier != got && !j.mayRepeat(key) {
			j.w.failf("key %d: a client got %q, and one before got %q", key, got, earlier)
		}
		j.answers[key] = got
		return true
	case !refused: // the handler's own error
		return false
	}
	switch refusal.Code {
	case idem.CodeInProgress, idem.CodeUnavailable, idem.CodeStoreLost, idem.CodeOwnershipLost, idem.CodeOutcomeUnknown:
	case idem.CodeResultUnavailable, idem.CodeTokenUnknown, idem.CodeKeyExpired:
		if !j.shaken[key] {
			j.w.failf("key %d: a client got %v, and the store has lost nothing", key, err)
		}
		return true
	default:
		j.w.failf("key %d: a client got %v", key, err)
	}
	return false
}

// settle waits until everything is settled after the faults have stopped, and looks for
// what is left.
func (w *world) settle() {
	w.awaitCalm()
	if w.plan.has(RestoreServers) {
		w.retire()
	}
	for key := range w.plan.Keys {
		w.settleKey(key)
	}
	// A new leader counts the time-out of every session anew. The locks of a session that has
	// ended for its process stay until then, on elements of the queue, too.
	time.Sleep(2 * w.plan.Session)
	if !w.plan.has(RestoreServers) {
		w.drain()
	}
	w.examine()
	w.unlocked()
}

// retire is an operator after the servers came back with older data. No handler from before runs any more, and
// every process has a new session. The requests show in which lock domain records are in doubt.
func (w *world) retire() {
	time.Sleep(10 * w.plan.Session)
	for range 2 { // the first request of a key may be the one that notices
		for key := range w.plan.Keys {
			res, err := w.request(w.process(key%w.plan.Processes), key)
			w.judge.answered(key, res, err)
		}
	}
	p := w.process(0)
	for key := range w.plan.Keys {
		rec := w.store.Record(idOf(key))
		if domain := rec.Attempt.Fence.Domain; rec.State.Open() && domain != p.client.Domain() {
			_ = w.store.Client(p.calls(p.toStore)).RetireDomain(p.ctx, domain, driver.Decision{By: "operator"})
		}
	}
}

// unlocked looks for locks that nobody holds any more.
func (w *world) unlocked() {
	if w.plan.has(StoreClockAhead, StoreClockBack) {
		w.askForLocks()
	}
	for key := range w.plan.Keys {
		if holder := w.store.Holder(idOf(key)); holder.Token > 0 {
			w.failf("the lock of key %d is left, with fence %v", key, holder)
		}
	}
	for _, path := range w.zk.Znodes() {
		if strings.Contains(path, " of ") && !strings.HasPrefix(path, "/idem/members/") && !strings.HasPrefix(path, "/sweeper/") {
			w.failf("lock %s is left", path)
		}
	}
}

// askForLocks asks for the lock of each key, and waits. If the clock of the store was set back, a lock of a dead process stays until
// one time to live after the next request.
func (w *world) askForLocks() {
	locks := w.store.Client(func(_ context.Context, serve func()) error { serve(); return nil }).Locker(w.plan.Session)
	for key := range w.plan.Keys {
		if lease, err := locks.TryAcquire(context.Background(), driver.LockRequest{KeyID: idOf(key)}); err == nil {
			_ = lease.Release(context.Background())
		}
	}
	_ = locks.Close(context.Background())
	time.Sleep(w.plan.Session)
}

// awaitCalm waits until the last fault is over, the last late call has arrived, and all
// processes are up.
func (w *world) awaitCalm() {
	w.mu.Lock()
	quiet := w.quiet
	w.mu.Unlock()
	time.Sleep(time.Until(quiet))
	time.Sleep(max(w.plan.Fates.Latest, w.plan.Session) + w.plan.Network.Slowest)
	for i := range w.plan.Processes {
		<-w.process(i).up
		<-w.process(i).rest
	}
}

// settleKey asks until a key has its final answer. Where the route leaves doubt to
// people, it decides as an operator who looks at the ledger.
func (w *world) settleKey(key int) {
	var last error
	for try := range 40 {
		p := w.process(try % w.plan.Processes)
		res, err := w.request(p, key)
		if w.judge.answered(key, res, err) {
			return
		}
		if r, ok := errors.AsType[*idem.Refusal](err); ok && r.Code == idem.CodeOutcomeUnknown && w.leftToPeople(key) {
			if undecided := w.decide(p, key); undecided != nil {
				err = fmt.Errorf("%w; and the decision: %w", err, undecided)
			}
		}
		last = err
		time.Sleep(500 * time.Millisecond)
	}
	w.failf("key %d is not settled long after the faults: %v; its record is %+v", key, last, w.store.Record(idOf(key)))
}

// leftToPeople reports whether only an operator settles a key in doubt. A route that runs again leaves it to
// people after MaxRuns attempts, and a process that hangs in a call makes that many within a storm.
func (w *world) leftToPeople(key int) bool {
	route := routeOf(key)
	policy := w.policy(route)
	return route == "leave" || route == "again" && !policy.RunsAgain(w.store.Record(idOf(key)).Attempt)
}

// decide is an operator's decision.
func (w *world) decide(p *process, key int) error {
	resolution := idem.NotApplied()
	if n := len(w.ledger.paid(idOf(key).OperationID())); n > 0 {
		resolution = idem.Applied(idem.Response{Body: []byte(receipt(idOf(key).OperationID(), n))})
	}
	policy := w.policy(routeOf(key))
	ctx, cancel := context.WithTimeout(context.WithValue(p.ctx, at{}, p), 10*time.Second)
	defer cancel()
	_, err := p.engine.Decide(ctx, idOf(key), driver.Attempt{}, resolution, driver.Decision{By: "operator"}, &policy)
	return err
}

// examine judges the run as a whole.
func (w *world) examine() {
	for key := range w.plan.Keys {
		id := idOf(key)
		paid, answer := w.ledger.paid(id.OperationID()), w.judge.answers[key]
		if len(paid) > 1 && !w.judge.mayRepeat(key) {
			w.failf("key %d (%s) was paid %d times: %v", key, routeOf(key), len(paid), paid)
		}
		if answer != "" && len(paid) == 0 {
			w.failf("key %d was answered %q, and the ledger has no payment", key, answer)
		}
		if rec := w.store.Record(id); rec.State.Open() {
			w.failf("key %d is open at the end: %+v", key, rec)
		}
	}
}

// leftovers looks for what is left when all processes have stopped.
func (w *world) leftovers() {
	time.Sleep(3*containers + 2*w.plan.Session)
	if n := w.zk.Sessions(); n > 0 {
		w.failf("%d sessions are left", n)
	}
	if n := w.zk.Watches(); n > 0 {
		w.failf("%d watches are left", n)
	}
	for _, path := range w.zk.Znodes() {
		if !w.expected(path) {
			w.failf("znode %s is left", path)
		}
	}
}

// expected reports whether a znode may stay for good: what the client makes once, the
// parents of locks, markers, the register, and the inbox of people.
func (w *world) expected(path string) bool {
	if slices.Contains([]string{"/zookeeper", "/zookeeper/quota", "/zookeeper/config", "/idem", "/idem/members", "/idem/domain", "/lock", "/lock/base"}, path) {
		return true
	}
	switch parts := strings.Split(path, "/"); {
	case strings.Contains(path, " of "): // ephemeral
		return false
	case parts[1] == "lock":
		return len(parts) == 3 || len(parts) == 4 && w.plan.Markers
	case parts[1] == "inbox", parts[1] == "inbox-names", path == "/register": // the sweeper forgets names in a later pass
		return true
	}
	return false
}

// goroutines lists the goroutines of this bubble, when only the caller should be left.
func goroutines() string {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var left []string
	for g := range strings.SplitSeq(string(buf), "\n\n") {
		head, _, _ := strings.Cut(g, "\n")
		ours := strings.Contains(g, "simulate.goroutines(") || strings.Contains(head, "synctest.Run") || strings.Contains(g, "testingSynctestTest(")
		if strings.Contains(head, "synctest bubble") && !ours {
			left = append(left, g)
		}
	}
	if len(left) == 0 {
		return ""
	}
	return fmt.Sprintf("%d goroutines are left, the first: %s", len(left), left[0])
}
