package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/queue"
)

// maxElement bounds the standard input. It is more than the queue accepts.
const maxElement = 1 << 20

func (a *app) queue() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "queue",
		Short: "Use the distributed queue",
		Long: `Use the queue on PATH, a znode below the chroot. The ensemble keeps it, first in,
first out.`,
		Example: `  idemctl --zookeeper 127.0.0.1:2181 queue offer /jobs/queue part-17
  idemctl --zookeeper 127.0.0.1:2181 queue poll --wait 5s /jobs/queue`,
		Args: cobra.NoArgs, RunE: subcommandWanted,
	}
	cmd.AddCommand(a.queueOffer(), a.queuePeek(), a.queuePoll(), a.queueLen())
	return cmd
}

// withQueue runs f on the queue at a path.
func (a *app) withQueue(ctx context.Context, path string, f func(*queue.Queue) error) error {
	if err := checkPath(path); err != nil {
		return err
	}
	return a.withZooKeeper(ctx, func(client *zookeeper.Client) error {
		if err := f(queue.New(client, path)); err != nil {
			return fmt.Errorf("queue %s: %w", path, err)
		}
		return nil
	})
}

func (a *app) queueOffer() *cobra.Command {
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
				if data, err = a.readInput(); err != nil {
					return err
				}
			}
			return a.withQueue(cmd.Context(), args[0], func(q *queue.Queue) error {
				id, err := q.Offer(cmd.Context(), data)
				if err != nil || !a.json {
					return err
				}
				return writeJSON(a.stdout, map[string]string{"id": id})
			})
		},
	}
}

func (a *app) readInput() ([]byte, error) {
	if a.stdin == nil {
		return nil, nil
	}
	data, err := io.ReadAll(io.LimitReader(a.stdin, maxElement+1))
	if err != nil {
		return nil, fmt.Errorf("standard input: %w", err)
	}
	return data, nil // the queue refuses a longer input itself
}

func (a *app) queuePeek() *cobra.Command {
	return &cobra.Command{
		Use:     "peek PATH",
		Short:   "Print the oldest element and leave it",
		Long:    `Print the oldest element and leave it in the queue. Exits with 75 if the queue is empty.`,
		Example: `  idemctl --zookeeper 127.0.0.1:2181 queue peek /jobs/queue`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withQueue(cmd.Context(), args[0], func(q *queue.Queue) error {
				e, err := q.Peek(cmd.Context())
				if errors.Is(err, queue.ErrEmpty) {
					return errNothing
				}
				if err != nil {
					return err
				}
				return a.writeElement(e)
			})
		},
	}
}

func (a *app) queuePoll() *cobra.Command {
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
				return wrongUse("--wait %v is negative", wait)
			}
			return a.withQueue(cmd.Context(), args[0], func(q *queue.Queue) error { return a.poll(cmd.Context(), q, wait) })
		},
	}
	cmd.Flags().DurationVar(&wait, "wait", 0, "how long to wait for an element; 0 does not wait")
	return cmd
}

func (a *app) poll(ctx context.Context, q *queue.Queue, wait time.Duration) error {
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
		if said := a.writeElement(doubt.Elements[0]); said != nil {
			return errors.Join(err, said)
		}
		return fmt.Errorf("the printed element may have been removed, or it is still in the queue: %w", err)
	case errors.Is(err, queue.ErrEmpty):
		return errNothing
	case ctx.Err() != nil && errors.Is(err, driver.ErrUnavailable): // nothing was taken
		return fmt.Errorf("%w: %w", errNotAcquired, err)
	case err != nil:
		return err
	}
	if err := a.writeElement(e); err != nil {
		return fmt.Errorf("element %s was removed and could not be printed (%w): %q", e.ID, err, e.Data)
	}
	return nil
}

func (a *app) queueLen() *cobra.Command {
	return &cobra.Command{
		Use:     "len PATH",
		Short:   "Print the number of elements",
		Long:    `Print the number of elements, including those locked by a consumer. A missing queue has 0.`,
		Example: `  idemctl --zookeeper 127.0.0.1:2181 queue len /jobs/queue`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withQueue(cmd.Context(), args[0], func(q *queue.Queue) error {
				n, err := q.Len(cmd.Context())
				if err != nil {
					return err
				}
				if a.json {
					return writeJSON(a.stdout, map[string]int{"len": n})
				}
				_, err = fmt.Fprintln(a.stdout, n)
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
func (a *app) writeElement(e queue.Element) error {
	if !a.json {
		_, err := fmt.Fprintf(a.stdout, "%s\n", e.Data)
		return err
	}
	row := elementRow{ID: e.ID, DataBase64: e.Data}
	if text := string(e.Data); utf8.ValidString(text) {
		row.Data, row.DataBase64 = &text, nil
	}
	return writeJSON(a.stdout, row)
}
