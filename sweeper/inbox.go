package sweeper

import (
	"context"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Inbox is a queue for people. It is safe for concurrent use.
type Inbox interface {
	// Put adds a case, unless one of this ID was added before and not been
	// forgotten since: by this instance or another, and whether or not somebody
	// has taken it out.
	Put(ctx context.Context, id string, c Case) error

	// Known lists the IDs that Put would not add.
	Known(ctx context.Context) ([]string, error)

	// Forget makes the inbox forget an ID. What was added stays. An ID that is
	// not known is no error.
	Forget(ctx context.Context, id string) error
}

// Case is an attempt that a person has to settle. It holds neither the key nor
// any body.
type Case struct {
	KeyID       string    `json:"key_id"` // for idemctl record show --key-id
	OperationID string    `json:"operation_id"`
	Route       string    `json:"route"`
	State       string    `json:"state"` // unknown; pending where its lock domain is not ours; unreadable
	Attempt     uint32    `json:"attempt"`
	Fence       string    `json:"fence"`
	Started     time.Time `json:"started"`          // by the store's clock
	Reason      string    `json:"reason,omitempty"` // why it could not be settled
}

// caseOf describes an open record, and names the attempt.
func caseOf(row *idem.OpenRecord, reason string) (id string, c Case) {
	r := &row.Record
	state := r.State.String()
	if row.Err != nil {
		state = "unreadable"
	}
	return caseID(row), Case{
		KeyID: row.ID.String(), OperationID: row.ID.OperationID(), Route: r.Route, State: state,
		Attempt: r.Attempt.Number, Fence: r.Attempt.Fence.String(), Started: r.Started.UTC(), Reason: reason,
	}
}

// caseID names an attempt: another one of the same key has another nonce.
func caseID(row *idem.OpenRecord) string {
	return fmt.Sprintf("%v-%d-%.8s", row.ID, row.Record.Attempt.Number, row.Record.Attempt.Nonce)
}
