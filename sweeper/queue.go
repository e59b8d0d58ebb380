package sweeper

import (
	"context"
	"encoding/json"
	"fmt"
)

// NamedQueue is a queue that appends an element once per name, such as
// zookeeper.Queue of this project.
type NamedQueue interface {
	OfferNamed(ctx context.Context, name string, data []byte) (bool, error)
	Names(ctx context.Context) ([]string, error)
	ForgetName(ctx context.Context, name string) error
}

// QueueInbox is an [Inbox] of a queue, whose elements are cases in JSON.
func QueueInbox(q NamedQueue) Inbox { return queueInbox{q} }

type queueInbox struct{ NamedQueue }

func (q queueInbox) Put(ctx context.Context, id string, c Case) error {
	data, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("sweeper: case: %w", err)
	}
	_, err = q.OfferNamed(ctx, id, data)
	return err
}

func (q queueInbox) Known(ctx context.Context) ([]string, error) { return q.Names(ctx) }
func (q queueInbox) Forget(ctx context.Context, id string) error { return q.ForgetName(ctx, id) }
