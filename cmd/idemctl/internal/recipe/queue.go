package recipe

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/servers"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/queue"
)

// maxElement bounds the standard input. It is more than the queue accepts.
const maxElement = 1 << 20

// Queue is the group of commands about the queue.
func Queue(io *cli.Streams, zk *servers.ZooKeeper) *cobra.Command {
	c := queues{io, zk}
	cmd := &cobra.Command{
		Use:   "queue",
		Short: "Use the distributed queue",
		Long: `Use the queue on PATH, a znode below the chroot. The ensemble keeps it, first in,
first out.`,
		Example: `  idemctl --zookeeper 127.0.0.1:2181 queue offer /jobs/queue part-17
  idemctl --zookeeper 127.0.0.1:2181 queue poll --wait 5s /jobs/queue`,
		Args: cobra.NoArgs, RunE: cli.SubcommandWanted,
	}
	cmd.AddCommand(c.offer(), c.peek(), c.pollCommand(), c.len())
	return cmd
}

type queues struct {
	io        *cli.Streams
	zookeeper *servers.ZooKeeper
}

// with runs f on the queue at a path.
func (c *queues) with(ctx context.Context, path string, f func(*queue.Queue) error) error {
	if err := checkPath(path); err != nil {
		return err
	}
	return c.zookeeper.With(ctx, func(client *zookeeper.Client) error {
		q, err := queue.New(client, path)
		if err == nil {
			err = f(q)
		}
		if err != nil {
			return fmt.Errorf("queue %s: %w", path, err)
		}
		return nil
	})
}

func (c *queues) offer() *cobra.Command {
	return &cobra.Command{
		Use:   "offer PATH DATA",
		Short: "Append an element",
		Long: `Append an element of up to 512 KiB. DATA is taken as it is; "-" reads all of
standard input. With --json it prints the ID of the element.`,
		Example: `  idemctl --zookeeper 127.0.0.1:2181 queue offer /jobs/queue part-17
  printf %s "$order" | idemctl --zookeeper 127.0.0.1:2181 queue offer /jobs/queue -`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			data := []byte(args[1])
			if args[1] == "-" {
				var err error
				if data, err = c.io.ReadAll(maxElement); err != nil { // the queue refuses a longer input itself
					return fmt.Errorf("standard input: %w", err)
				}
			}
			return c.with(cmd.Context(), args[0], func(q *queue.Queue) error {
				id, err := q.Offer(cmd.Context(), data)
				if err != nil || !c.io.JSON {
					return err
				}
				return c.io.WriteJSON(map[string]string{"id": id})
			})
		},
	}
}

func (c *queues) peek() *cobra.Command {
	return &cobra.Command{
		Use:     "peek PATH",
		Short:   "Print the oldest element and leave it",
		Long:    `Print the oldest element and leave it in the queue. Exits with 75 if the queue is empty.`,
		Example: `  idemctl --zookeeper 127.0.0.1:2181 queue peek /jobs/queue`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.with(cmd.Context(), args[0], func(q *queue.Queue) error {
				e, err := q.Peek(cmd.Context())
				if errors.Is(err, queue.ErrEmpty) {
					return cli.ErrNothing
				}
				if err != nil {
					return err
				}
				return c.writeElement(e)
			})
		},
	}
}

func (c *queues) pollCommand() *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "poll [--wait 5s] PATH",
		Short: "Remove the oldest element and print it",
		Long: `Remove the oldest element and print it with a line break. Exits with 75 if the
queue is empty.

At most one caller gets each element. A printed element is not in the queue any
more, even if the caller then loses it. If the session ends before the answer,
the element is printed and the exit code is 1. Then either the element is still in
the queue, or no other caller has it.`,
		Example: `  idemctl --zookeeper 127.0.0.1:2181 queue poll /jobs/queue
  while part=$(idemctl --zookeeper 127.0.0.1:2181 queue poll --wait 5s /jobs/queue); do ./import.sh "$part"; done`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if wait < 0 {
				return cli.WrongUse("--wait %v is negative", wait)
			}
			return c.with(cmd.Context(), args[0], func(q *queue.Queue) error { return c.poll(cmd.Context(), q, wait) })
		},
	}
	cmd.Flags().DurationVar(&wait, "wait", 0, "how long to wait for an element; 0 does not wait")
	return cmd
}

func (c *queues) poll(ctx context.Context, q *queue.Queue, wait time.Duration) error {
	take := q.Remove
	if wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, wait)
		defer cancel()
		take = q.Take
	}
	e, err := take(ctx)
	doubt, inDoubt := errors.AsType[*queue.InDoubtError](err)
	switch {
	case inDoubt && len(doubt.Elements) == 1:
		if said := c.writeElement(doubt.Elements[0]); said != nil {
			return errors.Join(err, said)
		}
		return fmt.Errorf("the printed element may have been removed, or it is still in the queue: %w", err)
	case errors.Is(err, queue.ErrEmpty):
		return cli.ErrNothing
	case ctx.Err() != nil && errors.Is(err, driver.ErrUnavailable): // nothing was taken
		return fmt.Errorf("%w: %w", cli.ErrNotAcquired, err)
	case err != nil:
		return err
	}
	if err := c.writeElement(e); err != nil {
		return fmt.Errorf("element %s was removed and could not be printed (%w): %q", e.ID, err, e.Data)
	}
	return nil
}

func (c *queues) len() *cobra.Command {
	return &cobra.Command{
		Use:     "len PATH",
		Short:   "Print the number of elements",
		Long:    `Print the number of elements, including those locked by a consumer. A missing queue has 0.`,
		Example: `  idemctl --zookeeper 127.0.0.1:2181 queue len /jobs/queue`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.with(cmd.Context(), args[0], func(q *queue.Queue) error {
				n, err := q.Len(cmd.Context())
				if err != nil {
					return err
				}
				if c.io.JSON {
					return c.io.WriteJSON(map[string]int{"len": n})
				}
				_, err = fmt.Fprintln(c.io.Out, n)
				return err
			})
		},
	}
}

// elementRow is an element in JSON.
type elementRow struct {
	ID         string  `json:"id"`
	Data       *string `json:"data,omitempty"`
	DataBase64 []byte  `json:"data_base64,omitempty"` // if it is not UTF-8
}

// writeElement writes an element unchanged, because programs read it.
func (c *queues) writeElement(e queue.Element) error {
	if !c.io.JSON {
		_, err := fmt.Fprintf(c.io.Out, "%s\n", e.Data)
		return err
	}
	row := elementRow{ID: e.ID, DataBase64: e.Data}
	if text := string(e.Data); utf8.ValidString(text) {
		row.Data, row.DataBase64 = &text, nil
	}
	return c.io.WriteJSON(row)
}
