package session

import (
	"github.com/go-zookeeper/zk"
)

// Session is one ZooKeeper session, and the one zk.Conn that ever speaks for it. It is
// safe for concurrent use. Each part has its own state:
type Session struct {
	*status  // is it over, connected, confirmed, trusted; waiting for that
	*trust   // the lease clock and the holds
	*reader  // hints and deciding reads
	*batcher // pinned writes, in batches
	*pulse   // heartbeats and barriers
	*watches

	cfg   *Config
	link  *link
	ended <-chan zk.Event // closed when the library's goroutines have stopped
	local any
}

// Member is the path of the session's own znode. Names that begin with it are free for
// ephemeral znodes of the packages above.
func (s *Session) Member() string { return s.pulse.member.Path }

// Server is the address of the server that the session is connected to.
func (s *Session) Server() string { return s.reader.conn.Server() }

// Local is what Config.Prepare returned for this session.
func (s *Session) Local() any { return s.local }

// run starts the goroutines of a session that has its member znode.
func (s *Session) run() {
	s.batcher.start()
	s.Go(s.pulse.run)
	s.Go(func() {
		<-s.Over()
		s.fireAll()
	})
}

// shutdown stops everything that a session that is over has running. A polite shutdown
// tells the server, which then removes all ephemeral znodes of the session at once.
func (s *Session) shutdown(polite bool) {
	tr := s.status.tr
	if !polite {
		tr.Shut()
	}
	s.reader.conn.Close() // takes up to a second when no server answers
	tr.Shut()
	for range s.ended {
	}
	s.batcher.wg.Wait()
	s.status.wg.Wait()
}
