package queue_test

import (
	"context"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/queue"
)

// A consumer acknowledges an element when it has worked on it. If it crashes before, the element
// is delivered again.
func ExampleQueue() {
	consume := func(ctx context.Context, client *zookeeper.Client, work func(context.Context, []byte) error) error {
		q := queue.MustNew(client, "/jobs")
		for {
			delivery, err := q.Receive(ctx)
			if err != nil {
				return err
			}
			if err := work(ctx, delivery.Data); err != nil {
				delivery.ReleaseInBackground() // for another consumer
				continue
			}
			if err := delivery.Ack(ctx); err != nil {
				return err
			}
		}
	}
	_ = consume // it needs servers
}
