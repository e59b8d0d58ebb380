package session

import (
	"github.com/go-zookeeper/zk"
)

// Session is one ZooKeeper session, and the only zk.Conn to speak for it. It is safe for
// concurrent use. Its parts each have their own state.
type Session struct {
	Status  *Status // whether it is over, connected, confirmed and trusted
	Trust   *Trust  // the lease clock and the holds
	Writes  *Writes // pinned writes, in batches
	Reads   *Reads  // hints and deciding reads
	Pulse   *Pulse  // heartbeats and barriers
	Watches *Watches

	requests *requests // below all of them, except Status and Trust
	cfg      *Config
	ended    <-chan zk.Event // closed when the library's goroutines have stopped
	local    any
}

// Member is the path of the session's own znode. The packages above may make ephemeral
// znodes with this path and a suffix.
func (s *Session) Member() string { return s.requests.member.Path }

// Applied is the highest zxid of the session's acknowledged writes.
func (s *Session) Applied() int64 { return s.requests.applied.Load() }

// Local is the value from Config.Prepare for this session.
func (s *Session) Local() any { return s.local }

// run starts the goroutines, once the member znode exists.
func (s *Session) run() {
	s.Status.Go(s.Pulse.run)
	s.Status.Go(s.Trust.lookOut)
	s.Status.Go(func() {
		<-s.Status.Over()
		s.Watches.fireAll()
	})
}

// shutdown stops all goroutines after the end of the session. A polite shutdown tells the
// server, and the server then removes all ephemeral znodes of the session at once.
func (s *Session) shutdown(polite bool) {
	tr := s.Status.tr
	if !polite {
		tr.Shut()
	}
	s.requests.conn.Close() // takes up to a second when no server answers
	tr.Shut()
	for range s.ended {
	}
	s.Status.wg.Wait()
}
