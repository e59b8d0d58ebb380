package chaos

import (
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// The faults of an instance and of its connections. The lock of a slot keeps the faults of
// one instance apart from those that strike all of them.

// processFaults strike the process in a slot.
func (s *slot) processFaults() []choice {
	kill := lasting(0, 500*time.Millisecond, killed{s})
	return []choice{
		kill, kill,
		lasting(0, time.Second, paused{s, "paused"}),
		lasting(kit.SessionTimeout, kit.SessionTimeout+2*time.Second, paused{s, "paused-past-session"}),
	}
}

// networkFaults strike the connections of a slot, whichever process has it. A frozen message
// may arrive after its sender has been killed.
func (s *slot) networkFaults() (all []choice) {
	for _, l := range s.links {
		all = append(all,
			lasting(0, 0, cut{l}),
			lasting(time.Second, 8*time.Second, blackHoled{l}),
			lasting(time.Second, 8*time.Second, frozen{l}),
			lasting(time.Second, 6*time.Second, slowed{l}))
		if l.lossy != nil {
			all = append(all, lasting(0, 0, replyLost{l}))
		}
	}
	return all
}

// killed ends the process at once (kill -9). It is started again on the same ports.
type killed struct{ at *slot }

func (killed) String() string { return "instance-killed" }
func (f killed) hit(c *chaos, s strike) {
	f.at.mu.Lock()
	defer f.at.mu.Unlock()
	f.at.in.Load().Kill(c.t)
	c.wait(s.lasts)
	f.at.launch()
}

// allKilled ends all instances at once.
type allKilled struct{}

func (allKilled) String() string         { return "all-instances-killed" }
func (allKilled) hit(c *chaos, _ strike) { c.killAll(func() {}) }

// killAll kills all instances, and starts them again after meanwhile.
func (c *chaos) killAll(meanwhile func()) {
	for _, s := range c.slots {
		s.mu.Lock()
		defer s.mu.Unlock()
	}
	for _, s := range c.slots {
		s.in.Load().Kill(c.t)
	}
	meanwhile()
	for _, s := range c.slots {
		s.launch()
	}
}

// paused stops the process and lets it go on (SIGSTOP, SIGCONT).
type paused struct {
	at   *slot
	name string
}

func (f paused) String() string { return "instance-" + f.name }
func (f paused) hit(c *chaos, s strike) {
	f.at.mu.Lock()
	defer f.at.mu.Unlock()
	in := f.at.in.Load()
	in.Pause(c.t)
	c.wait(s.lasts)
	in.Resume(c.t)
}

// cut breaks all connections to a server, or of the clients.
type cut struct{ to link }

func (f cut) String() string     { return f.to.name + "-cut" }
func (f cut) hit(*chaos, strike) { f.to.each((*testserver.Proxy).Cut) }

// replyLost loses the reply to the next write. The server has applied it.
type replyLost struct{ to link }

func (f replyLost) String() string { return f.to.name + "-reply-lost" }
func (f replyLost) hit(*chaos, strike) {
	f.to.each(func(p *testserver.Proxy) { p.DropNextReply(f.to.lossy) })
}

// blackHoled swallows what travels in one direction or both. The connections stay open on
// both sides.
type blackHoled struct{ to link }

func (f blackHoled) String() string { return f.to.name + "-black-hole" }
func (f blackHoled) hit(c *chaos, s strike) {
	d := [...]testserver.Direction{testserver.ToServer, testserver.ToClient, testserver.Both}[s.dice%3]
	f.to.each(func(p *testserver.Proxy) { p.BlackHole(d) })
	c.wait(s.lasts)
	f.to.restore()
}

// frozen keeps back what travels, and delivers it late.
type frozen struct{ to link }

func (f frozen) String() string { return f.to.name + "-frozen" }
func (f frozen) hit(c *chaos, s strike) {
	f.to.each(func(p *testserver.Proxy) { p.Freeze(testserver.Both) })
	c.wait(s.lasts)
	f.to.restore()
}

// slowed delays everything by up to 400 ms in each direction.
type slowed struct{ to link }

func (f slowed) String() string { return f.to.name + "-slow" }
func (f slowed) hit(c *chaos, s strike) {
	f.to.each(func(p *testserver.Proxy) { p.Slow(time.Duration(20+s.dice%380) * time.Millisecond) })
	c.wait(s.lasts)
	f.to.restore()
}
