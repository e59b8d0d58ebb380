package simzk

import "time"

// Leader is the name of the leading server, or "" during an election.
func (e *Ensemble) Leader() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.leader == nil {
		return ""
	}
	return e.leader.name
}

// Calm has followers keep up with the leader from now on.
func (e *Ensemble) Calm() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cfg.Lag = 0
}

// Isolate cuts a server off from the other servers for d. Clients still reach it.
func (e *Ensemble) Isolate(i int, d time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s, until := e.servers[i], time.Now().Add(d)
	if s.down || until.Before(s.cutUntil) {
		return
	}
	s.cutUntil = until
	boot := s.boots
	e.after(e.cfg.SyncLimit, func() {
		if s.boots == boot && !s.linked() {
			s.looking = true
			s.drop()
		}
	})
	e.after(d, func() {
		if s.linked() {
			e.rejoin(s)
		}
	})
	if s == e.leader {
		e.elect()
	}
}

// Crash stops a server for d.
func (e *Ensemble) Crash(i int, d time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.servers[i]
	if s.down {
		return
	}
	s.down = true
	s.drop()
	s.boot()
	e.after(d, func() {
		s.down = false
		e.rejoin(s)
	})
	if s == e.leader {
		e.elect()
	}
}

// Restore stops all servers for d. They come back with the data of a backup that was made a time
// age ago. So zxids begin again, and the sessions from before the backup live again.
func (e *Ensemble) Restore(age, d time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	made := time.Now().Add(-age).UnixMilli()
	kept := e.commits
	for kept > 0 && e.log[kept-1].time > made {
		kept--
	}
	e.log, e.commits = e.log[:kept:kept], kept
	for _, s := range e.servers {
		s.down, s.looking = true, false
		s.drop()
		s.boot()
		s.tree, s.applied, s.zxid = newTree(), 0, 0
		e.after(d, func() {
			s.down = false
			e.rejoin(s)
		})
	}
	latest := int64(0) // epoch that the servers know of
	if kept > 0 {
		latest = e.log[kept-1].zxid >> 32
	}
	e.rewound = e.epoch - latest
	e.elect()
}

// rejoin brings a server up to date with the others.
func (e *Ensemble) rejoin(s *server) {
	switch {
	case s.down || !s.linked():
	case e.leader == nil:
		e.after(e.cfg.Tick/4, func() { e.rejoin(s) })
	case s.looking || s.applied < e.commits:
		s.apply(e.commits)
		s.looking = false
	}
}

// elect has the servers elect another leader. The old one may be cut off, and then goes on
// serving its clients until it notices. The clients of the other servers lose their
// connections when those notice.
func (e *Ensemble) elect() {
	e.epoch++
	e.leader = nil
	epoch := e.epoch
	var vote func()
	vote = func() {
		if e.epoch != epoch || e.leader != nil {
			return
		}
		var voters []*server
		for _, s := range e.servers {
			if !s.down && s.linked() {
				voters = append(voters, s)
			}
		}
		if len(voters) <= len(e.servers)/2 {
			e.after(e.cfg.Tick/4, vote)
			return
		}
		// What was under way may be committed, as far as one of the voters has it.
		e.log = e.log[:e.commits+e.rnd.IntN(len(e.log)-e.commits+1)]
		e.commits = len(e.log)
		e.leader = voters[e.rnd.IntN(len(voters))]
		e.counter = 0
		for _, s := range voters {
			s.drop()
			s.boot()
			s.apply(e.commits)
			s.looking = false
		}
		e.renew()
	}
	e.after(e.cfg.Election/2+time.Duration(e.rnd.Int64N(int64(e.cfg.Election))), vote)
}

// renew is the beginning of an epoch. The new leader has the znodes and the sessions of the
// log, and gives every session its whole time-out again.
func (e *Ensemble) renew() {
	e.latest = e.leader.tree.clone()
	e.busy = time.Now()
	alive := make(map[int64]*session)
	for _, tx := range e.log {
		switch tx.code {
		case opCreateSession:
			if tx.origin != nil {
				alive[tx.session] = &session{id: tx.session, timeout: tx.origin.timeout, heard: time.Now()}
			}
		case opCloseSession:
			delete(alive, tx.session)
		}
	}
	for id, s := range alive {
		if old := e.sessions[id]; old != nil {
			s.owner = old.owner
		}
	}
	e.sessions = alive
}
