package simulate

import (
	"maps"
	"slices"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/tests/simulate/simnet"
)

// storm has the faults happen, and returns when none is left.
func (w *world) storm() {
	timed := slices.DeleteFunc(slices.Clone(w.plan.Faults), func(f Fault) bool { return f.Step > 0 })
	slices.SortStableFunc(timed, func(a, b Fault) int { return int(a.At - b.At) })
	for _, f := range timed {
		time.Sleep(time.Until(w.start.Add(f.At)))
		w.strike(f, w.process(f.Process))
	}
	time.Sleep(time.Until(w.start.Add(w.plan.Storm)))
	w.mu.Lock()
	w.calm = true
	processes := slices.Clone(w.processes)
	w.mu.Unlock()
	for _, p := range processes {
		p.toStore.Calm()
		p.toLedger.Calm()
	}
	w.net.Calm()
	w.zk.Calm()
	w.store.Down(false)
	w.store.Full(nil)
	w.stepClock(0, true)
	w.store.Accept()
}

// stepped counts a step of a process, and has the fault happen that waits for it.
func (w *world) stepped(p *process, atLedger bool) {
	w.mu.Lock()
	if p.ctx.Err() != nil || w.calm {
		w.mu.Unlock()
		return
	}
	w.steps[p.index]++
	step, payment := w.steps[p.index], 0
	if atLedger {
		w.payments[p.index]++
		payment = w.payments[p.index]
	}
	w.mu.Unlock()
	for _, f := range w.plan.Faults {
		at := step
		if f.AtLedger {
			at = payment
		}
		if f.Step > 0 && f.Step == at && f.Process == p.index {
			w.strike(f, p)
		}
	}
}

// strike has a fault happen.
func (w *world) strike(f Fault, p *process) {
	now := time.Now()
	w.mu.Lock()
	if end := now.Add(f.For); end.After(w.quiet) {
		w.quiet = end
	}
	w.mu.Unlock()
	between := func(src, dst string, from, to time.Duration) {
		w.net.Block(simnet.Block{Src: src, Dst: dst, From: now.Add(from), To: now.Add(to)})
	}
	hold := func(src, dst string) { between(src, dst, 0, f.For) }
	switch f.Kind {
	case CrashProcess:
		w.crash(p, f.For)
	case PauseProcess:
		p.pause(f.For)
	case CutConnections:
		w.net.Cut(func(src, _ string) bool { return src == p.host }, w.coin)
	case Deafen:
		hold(serverNames()[f.Server], p.host)
	case Mute:
		hold(p.host, serverNames()[f.Server])
	case MuteStore:
		hold(p.host, storeHost)
	case MuteLedger:
		hold(p.host, ledgerHost)
	case Hang:
		for _, s := range serverNames() {
			hold(p.host, s)
			hold(s, p.host)
		}
	case Stall:
		// What the process sends right now arrives. The answer takes almost as long as the process is
		// patient, and it is the last one.
		sent, late := w.plan.Network.Most, w.plan.Session/4+f.For%(w.plan.Session/8)
		passed, end := late+3*sent, late+2*w.plan.Session
		for _, s := range serverNames() {
			between(p.host, s, sent, end)
			between(s, p.host, 0, late)
			between(s, p.host, passed, end)
		}
		w.mu.Lock()
		if end := now.Add(end); end.After(w.quiet) {
			w.quiet = end
		}
		w.mu.Unlock()
	case IsolateServer:
		w.zk.Isolate(f.Server, f.For)
	case CrashServer:
		w.zk.Crash(f.Server, f.For)
	case IsolateLeader, CrashLeader:
		leader := slices.Index(serverNames(), w.zk.Leader())
		switch {
		case leader < 0:
		case f.Kind == IsolateLeader:
			w.zk.Isolate(leader, f.For)
		default:
			w.zk.Crash(leader, f.For)
		}
	case ExpireSession:
		w.leases.excuse(p)
		w.zk.ExpireSessionOf(p.host)
	case StoreDown:
		w.store.Down(true)
		time.AfterFunc(f.For, func() { w.store.Down(false) })
	case StoreFallsBack:
		w.fallBack(f.For)
	case StoreLosesAll:
		w.judge.lost(w.store.LoseAll(w.plan.Accept))
	case StoreFull:
		// A part of a cluster takes no writes, or all of it.
		w.store.Full(func(id driver.KeyID) bool { return f.Server == 0 || int(id[0])%3 == f.Server })
		time.AfterFunc(f.For, func() { w.store.Full(nil) })
	case StoreStalls:
		w.store.Stall(f.For)
	case StoreClockAhead:
		ahead := min(time.Minute+200*f.For, 50*time.Minute) // nothing that the store remembers is over by then
		if w.plan.Markers && f.Server == 0 {
			ahead = 10 * idem.DefaultKeyTTL
			w.judge.lost(slices.Collect(maps.Keys(w.judge.keys)))
		}
		w.stepClock(ahead, w.plan.Accept)
		time.AfterFunc(f.For, func() { w.stepClock(0, w.plan.Accept) })
	case StoreClockBack:
		w.stepClock(-200*f.For, true)
		time.AfterFunc(f.For, func() { w.stepClock(0, true) })
	case RestoreServers:
		w.zk.Restore(f.For*time.Duration(1+2*f.Server)/2, f.For)
	case kinds:
	}
}

// crash ends a life of a process, and starts the next one later.
func (w *world) crash(p *process, pause time.Duration) {
	if p.ctx.Err() != nil {
		return
	}
	p.crash(w.coin())
	w.wg.Go(func() {
		time.Sleep(pause)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.launch(p.index)
	})
}
