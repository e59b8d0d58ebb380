package session

import (
	"github.com/go-zookeeper/zk"
)

// Session is one ZooKeeper session, and the only zk.Conn to speak for it. It is safe for
// concurrent use. Its parts each have their own state.
type Session struct {
	*status   // whether it is over, connected, confirmed and trusted
	*trust    // the lease clock and the holds
	*requests // hints and deciding reads
	*batcher  // pinned writes, in batches
	*pulse    // heartbeats and barriers
	*watches

	cfg   *Config
	ended <-chan zk.Event // closed when the library's goroutines have stopped
	local any
}

// Member is the path of the session's own znode. The packages above may make ephemeral
// znodes with this path and a suffix.
func (s *Session) Member() string { return s.member.Path }

// Server is the address of the present server.
func (s *Session) Server() string { return s.conn.Server() }

// Local is the value from Config.Prepare for this session.
func (s *Session) Local() any { return s.local }

// run starts the goroutines, once the member znode exists.
func (s *Session) run() {
	s.Go(s.pulse.run)
	s.Go(s.lookOut)
	s.Go(func() {
		<-s.Over()
		s.fireAll()
	})
}

// shutdown stops all goroutines after the end of the session. A polite shutdown tells the
// server, and the server then removes all ephemeral znodes of the session at once.
func (s *Session) shutdown(polite bool) {
	tr := s.status.tr
	if !polite {
		tr.Shut()
	}
	s.conn.Close() // takes up to a second when no server answers
	tr.Shut()
	for range s.ended {
	}
	s.status.wg.Wait()
}
