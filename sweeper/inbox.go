package sweeper

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// Inbox is a queue for people, such as the Queue of lock/zookeeper. Each element
// is a [Case] in JSON. It is safe for concurrent use.
type Inbox interface {
	// OfferNamed appends an element under a name and returns true. It returns
	// false if an instance has used the name before and it was not forgotten
	// since, even if the element was taken out meanwhile.
	OfferNamed(ctx context.Context, name string, data []byte) (bool, error)
	// Names lists the names in use.
	Names(ctx context.Context) ([]string, error)
	// ForgetName makes a name free again. The element stays. An unknown name is
	// no error.
	ForgetName(ctx context.Context, name string) error
}

// Case is an attempt for a person to settle. It holds neither the key nor a body.
type Case struct {
	KeyID       string    `json:"key_id"` // for idemctl record show --key-id
	OperationID string    `json:"operation_id"`
	Route       string    `json:"route"`
	State       string    `json:"state"` // unknown, pending (under a lock of another domain) or unreadable
	Attempt     uint32    `json:"attempt"`
	Fence       string    `json:"fence"`
	Started     time.Time `json:"started"`          // by the store's clock
	Reason      string    `json:"reason,omitempty"` // why it could not be settled
}

// callTimeout bounds a call of the inbox, and a look at one record.
const callTimeout = 5 * time.Second

// caseID names an attempt. Each attempt of a key has a nonce of its own.
func caseID(row *driver.OpenRecord) string {
	return fmt.Sprintf("%v-%d-%.8s", row.ID, row.Record.Attempt.Number, row.Record.Attempt.Nonce)
}

// queue puts an attempt into the inbox, once. After a failure the pass queues no more.
func (s *Sweeper) queue(ctx context.Context, r *result, reason string, p *Pass) {
	id := caseID(r.row)
	if s.cfg.inbox == nil || s.queued[id] || p.Unqueued > 0 {
		return
	}
	state, at := r.state.String(), r.row.Record.Attempt
	if r.row.Err != nil {
		state = "unreadable"
	}
	data, err := json.Marshal(Case{
		KeyID: r.row.ID.String(), OperationID: r.row.ID.OperationID(), Route: r.row.Record.Route, State: state,
		Attempt: at.Number, Fence: at.Fence.String(), Started: r.row.Record.Started.UTC(), Reason: reason,
	})
	if err == nil {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		err = guarded("OfferNamed", func() error {
			_, err := s.cfg.inbox.OfferNamed(call, id, data)
			return err
		})
	}
	if err != nil {
		p.fail(ctx, &p.Unqueued, fmt.Errorf("sweeper: inbox: %w", err))
		return
	}
	s.queued[id] = true
	p.Queued++
}

// readInbox lists the cases in the inbox. The pass calls it before it lists the records,
// so the attempt of a case without an open record then is settled.
func (s *Sweeper) readInbox(ctx context.Context, p *Pass) {
	s.queued = map[string]bool{}
	if s.cfg.inbox == nil {
		return
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var ids []string
	err := guarded("Names", func() (err error) {
		ids, err = s.cfg.inbox.Names(call)
		return err
	})
	if err != nil {
		p.fail(ctx, &p.Unqueued, fmt.Errorf("sweeper: inbox: %w", err))
	}
	for _, id := range ids {
		s.queued[id] = true
	}
}

// forget drops the attempts that this pass has not listed, here and in the inbox.
func (s *Sweeper) forget(ctx context.Context, p *Pass) {
	maps.DeleteFunc(s.attempts, func(_ string, a *attempt) bool {
		gone := a.pass != s.passes && !a.running
		if gone && s.places[a.place] == a {
			delete(s.places, a.place)
		}
		return gone
	})
	for id := range s.queued {
		// An open attempt is not listed if the store's clock was set back.
		if s.attempts[id] != nil || p.Unqueued > 0 || ctx.Err() != nil || s.mayBeOpen(ctx, id) {
			continue
		}
		if err := guarded("ForgetName", func() error { return s.cfg.inbox.ForgetName(ctx, id) }); err != nil {
			p.fail(ctx, &p.Unqueued, fmt.Errorf("sweeper: inbox: %w", err))
		}
	}
}

// mayBeOpen looks up the attempt of a case.
func (s *Sweeper) mayBeOpen(ctx context.Context, id string) bool {
	text, _, _ := strings.Cut(id, "-")
	key, err := driver.ParseKeyID(text)
	if err != nil {
		return false // the sweeper did not make this name
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var rec driver.Record
	err = guarded("Get", func() error {
		rec, err = s.store.Get(ctx, key)
		return err
	})
	return err != nil || rec.State.Open() && caseID(&driver.OpenRecord{ID: key, Record: rec}) == id
}
