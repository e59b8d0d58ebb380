package session

import (
	"github.com/go-zookeeper/zk"
)

// pin makes the writes of a session. Each is part of a Multi that begins by setting the
// data of the session's own ephemeral member znode. If the session is gone, the member
// is gone as well, and the whole Multi fails in any session. The new mzxid of the member
// is also the czxid of all znodes created by the Multi.
type pin struct {
	*requests

	member  *zk.SetDataRequest
	renewed func() // called when a write has confirmed a connection
}

// send makes one pinned write. An answer renews the trust in the session's leases,
// counted from before the write was sent. A refusal counts as well, since it takes the
// same way through the quorum.
func (p *pin) send(ops ...any) Result {
	multi := make([]any, 0, 1+len(ops))
	multi = append(append(multi, p.member), ops...)

	gen, err := p.connection()
	if err != nil {
		return Result{Outcome: Unsent, Err: err}
	}
	guard := p.guard()
	sent := p.now()
	answer, err := p.conn.Multi(multi...)
	acked := p.now()
	guard.stop()

	r := interpret(len(ops), answer, err)
	switch {
	case r.Outcome == Ended:
		p.die(r.Err)
	case r.Outcome == Refused && r.Op < 0: // no write of this session can ever succeed
		p.die(notPermittedAt(p.member.Path, r.Err))
	case r.Outcome == Applied || r.Outcome == Refused:
		if p.acknowledge(gen, sent, acked) {
			p.renewed() // what happened meanwhile was not seen
		}
		if r.Outcome == Refused {
			r.Err = refusalOf(ops[r.Op], r.Err)
		}
	}
	return r
}
