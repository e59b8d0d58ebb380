package recipe

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/servers"
	"github.com/idemkeeper/idemkeeper/internal/operate"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/recipes"
)

// Elect is the command that stands for election, or watches one.
func Elect(io *cli.Streams, zk *servers.ZooKeeper) *cobra.Command {
	c := election{io, zk}
	var observe bool
	cmd := &cobra.Command{
		Use:   "elect PATH NAME | elect --observe PATH",
		Short: "Stand for election, or watch the elected leaders",
		Long: `Stand for election on PATH, a znode below the chroot, as candidate NAME. When it is
elected it prints "leader NAME" and stays in office until SIGTERM or SIGINT. Then
it resigns and exits with 0. If it loses the office with its session, it says so
and exits with 1, before another candidate can be elected. To stand again, start it
again. A leader that is killed is replaced when its session times out.

With --observe it does not stand. It prints the leader in office, and then each new
one in a line of its own, until SIGTERM or SIGINT. It may miss a leader who was in
office only for a moment, but it never misses the last one.

With --json a line also has the fencing token. It grows from each leader to the
next.`,
		Example: `  idemctl --zookeeper 127.0.0.1:2181 elect /jobs/leader "$(hostname)"
  idemctl --zookeeper 127.0.0.1:2181 elect --observe /jobs/leader
  idemctl --zookeeper 127.0.0.1:2181 --json elect --observe /jobs/leader`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case observe && len(args) != 1:
				return cli.WrongUse("elect --observe wants PATH; see --help")
			case !observe && (len(args) != 2 || args[1] == ""):
				return cli.WrongUse("elect wants PATH NAME; see --help")
			}
			if err := checkPath(args[0]); err != nil {
				return err
			}
			return c.zookeeper.With(cmd.Context(), func(client *zookeeper.Client) error {
				if !observe {
					return c.stand(cmd.Context(), client, args[0], args[1])
				}
				election, err := recipes.NewElection(client, args[0], "")
				if err != nil {
					return err
				}
				return c.observe(cmd.Context(), election)
			})
		},
	}
	cmd.Flags().BoolVar(&observe, "observe", false, "do not stand, print the leaders")
	return cmd
}

type election struct {
	io        *cli.Streams
	zookeeper *servers.ZooKeeper
}

// stand is a candidate, and leader once elected, until ctx ends.
func (c *election) stand(ctx context.Context, client *zookeeper.Client, path, name string) error {
	election, err := recipes.NewElection(client, path, name)
	if err != nil {
		return err
	}
	leader, err := election.Campaign(ctx)
	switch {
	case err != nil && ctx.Err() != nil: // it was told to stop
		return nil
	case err != nil:
		return err
	}
	stop := look(leader, nil)
	defer stop()
	said := c.writeLeader(recipes.Participant{Name: name, Fence: leader.Fence()})
	if said == nil {
		select {
		case <-ctx.Done():
		case <-leader.Done():
		}
	}
	stop()
	if lost := leader.Err(); lost != nil {
		client.Abandon() // exit without waiting for servers, because scripts take a running process for the leader
		return fmt.Errorf("%s leads no longer: %w", operate.OneLine(name), lost)
	}
	if err := release(ctx, leader); err != nil {
		return fmt.Errorf("%s stops leading, and may be shown as the leader until its session times out: %w", operate.OneLine(name), err)
	}
	return said
}

// observe prints leaders until ctx ends.
func (c *election) observe(ctx context.Context, e *recipes.Election) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for leader := range e.Observe(ctx) {
		if leader.Fence.Token == 0 {
			continue // there is no leader
		}
		if err := c.writeLeader(leader); err != nil {
			return err
		}
	}
	if ctx.Err() == nil {
		return errors.New("elect --observe: the session with ZooKeeper has ended")
	}
	return nil
}

// leaderRow is a leader in JSON.
type leaderRow struct {
	Leader string `json:"leader"`
	Host   string `json:"host,omitempty"`
	PID    int    `json:"pid,omitempty"`
	Fence  string `json:"fence"`
	Domain string `json:"domain"`
}

func (c *election) writeLeader(l recipes.Participant) error {
	if c.io.JSON {
		return c.io.WriteJSON(leaderRow{l.Name, l.Host, l.PID, strconv.FormatUint(l.Fence.Token, 10), l.Fence.Domain})
	}
	_, err := fmt.Fprintf(c.io.Out, "leader %s\n", operate.OneLine(l.Name))
	return err
}
