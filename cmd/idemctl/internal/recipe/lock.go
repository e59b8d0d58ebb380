package recipe

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/servers"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/recipes"
)

// Lock is the command that runs another one under a lock.
func Lock(io *cli.Streams, zk *servers.ZooKeeper) *cobra.Command {
	c := locks{io, zk}
	var shared bool
	var w wait
	cmd := &cobra.Command{
		Use:   "lock [--shared] [--timeout 5s] PATH -- CMD ARG…",
		Short: "Run a command while holding a lock",
		Long: `Run CMD while holding the lock on PATH, a znode below the chroot. The lock is
fair. Over all machines, waiters get it in the order in which they asked. With
--shared several can hold it at the same time, but never together with a holder
without --shared.
` + underLease,
		Example: `  idemctl --zookeeper 127.0.0.1:2181 lock /jobs/nightly -- ./nightly.sh
  idemctl --zookeeper zk1,zk2,zk3/payments lock --timeout 5s /jobs/report -- sh -c './report --fence "$IDEM_FENCE"'
  idemctl --zookeeper 127.0.0.1:2181 lock --shared --timeout 0s /jobs/nightly -- ./inspect.sh`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			path, argv, err := pathAndCommand(cmd, args)
			if err != nil {
				return err
			}
			if err := w.check(); err != nil {
				return err
			}
			return c.hold(cmd.Context(), "lock on "+path, argv, func(ctx context.Context, client *zookeeper.Client) (*recipes.Lease, error) {
				m, err := recipes.NewRWMutex(client, path)
				if err != nil {
					return nil, err
				}
				if shared {
					return w.get(ctx, m.AcquireRead, m.TryAcquireRead)
				}
				return w.get(ctx, m.AcquireWrite, m.TryAcquireWrite)
			})
		},
	}
	cmd.Flags().BoolVar(&shared, "shared", false, "share the lock with other holders of --shared")
	w.flag(cmd)
	return cmd
}

// Semaphore is the command that runs another one under one of N permits.
func Semaphore(io *cli.Streams, zk *servers.ZooKeeper) *cobra.Command {
	c := locks{io, zk}
	var permits int
	var w wait
	cmd := &cobra.Command{
		Use:   "semaphore --permits N [--timeout 5s] PATH -- CMD ARG…",
		Short: "Run a command while holding one of N permits",
		Long: `Run CMD while holding one of N permits on PATH, a znode below the chroot. Over all
machines, waiters get them in the order in which they asked. Every user of a path
must give the same N. ZooKeeper keeps N while the path is in use, and refuses
another one.
` + underLease,
		Example: `  idemctl --zookeeper 127.0.0.1:2181 semaphore --permits 3 /jobs/imports -- ./import.sh part-17
  idemctl --zookeeper 127.0.0.1:2181 semaphore --permits 3 --timeout 5s /jobs/imports -- ./import.sh part-18`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			path, argv, err := pathAndCommand(cmd, args)
			if err != nil {
				return err
			}
			if err := w.check(); err != nil {
				return err
			}
			if permits < 1 {
				return cli.WrongUse("semaphore needs --permits, of 1 or more")
			}
			return c.hold(cmd.Context(), "semaphore "+path, argv, func(ctx context.Context, client *zookeeper.Client) (*recipes.Lease, error) {
				sem, err := recipes.NewSemaphore(client, path, permits)
				if err != nil {
					return nil, err
				}
				return w.get(ctx, one(sem.Acquire), one(sem.TryAcquire))
			})
		},
	}
	cmd.Flags().IntVar(&permits, "permits", 0, "number of permits on PATH (required)")
	w.flag(cmd)
	return cmd
}

// locks runs commands under a lease.
type locks struct {
	io        *cli.Streams
	zookeeper *servers.ZooKeeper
}

// one asks for one permit.
func one(n func(context.Context, int) (*recipes.Lease, error)) acquire {
	return func(ctx context.Context) (*recipes.Lease, error) { return n(ctx, 1) }
}

// underLease is the part of the help that lock and semaphore share.
const underLease = `
CMD gets the fencing token in its environment as IDEM_FENCE, a decimal number. Hand
it to the system that CMD changes, and let that system refuse a lower number than
it has seen. IDEMCTL_REDIS, _DATABASE, _RESPONSE_KEYS and _ZOOKEEPER_AUTH may hold
passwords, so CMD does not get them.

CMD runs in a process group of its own, with idemctl's terminal. The signals INT,
TERM, HUP, QUIT, USR1 and USR2 are passed on to the whole group. The lock is held
until the last process of the group has ended. Ctrl-Z stops CMD but not idemctl,
which goes on holding. If idemctl is killed on Linux, the kernel kills CMD, but not
the processes that CMD has started.

When the ZooKeeper session is about to be lost, the group gets SIGTERM. It gets
SIGKILL before another holder can be next, 5 s later or as soon as the session
could be over. With the default session of 10 s that is one second later. Nothing
protects CMD while idemctl itself is stopped (SIGSTOP, a suspended machine). The
fence is for that case.

Exits as CMD does, with 128 + n if signal n ended it. Other exit codes: 126 if CMD
cannot be executed; 127 if it is not found; 75 if the lock was not acquired within
--timeout; 1 if ZooKeeper failed, or the lock was lost before CMD ended.`

// wait is the flag --timeout.
type wait struct {
	limit   time.Duration
	limited func() bool
}

func (w *wait) flag(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&w.limit, "timeout", 0, "how long to wait for it; 0 does not wait; without this flag it waits for ever")
	w.limited = func() bool { return cmd.Flags().Changed("timeout") }
}

func (w *wait) check() error {
	if w.limit < 0 {
		return cli.WrongUse("--timeout %v is negative", w.limit)
	}
	return nil
}

// acquire is one of the ways to get a lease.
type acquire func(ctx context.Context) (*recipes.Lease, error)

// get waits for a lease with acquire, or with --timeout 0 calls try.
func (w *wait) get(ctx context.Context, acquire, try acquire) (*recipes.Lease, error) {
	within := ""
	if w.limited() {
		if w.limit == 0 {
			acquire = try
		} else {
			c, cancel := context.WithTimeout(ctx, w.limit)
			defer cancel()
			ctx, within = c, fmt.Sprintf(" within %v", w.limit)
		}
	}
	lease, err := acquire(ctx)
	switch over := context.Cause(ctx); {
	case err == nil:
		return lease, nil
	case errors.Is(over, context.Canceled): // by a signal
		return nil, fmt.Errorf("%w: told to stop", cli.ErrNotAcquired)
	case errors.Is(err, driver.ErrLocked):
		return nil, fmt.Errorf("%w%s: it is held", cli.ErrNotAcquired, within)
	case over != nil && errors.Is(err, driver.ErrUnavailable):
		return nil, fmt.Errorf("%w%s: %w", cli.ErrNotAcquired, within, err)
	}
	return nil, err
}

// hold runs a command under the lease from get. what names the lock in errors.
func (c *locks) hold(ctx context.Context, what string, argv []string, get func(context.Context, *zookeeper.Client) (*recipes.Lease, error)) error {
	file, err := findCommand(argv[0])
	if err != nil {
		return err
	}
	signals, stop := Heard(forwarded...)
	defer stop()
	return c.zookeeper.With(ctx, func(client *zookeeper.Client) error {
		lease, err := get(ctx, client)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		defer lease.ReleaseInBackground() // closing the session waits for it
		left, err := lease.Check(ctx)
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w: told to stop", what, cli.ErrNotAcquired)
		}
		if err != nil {
			return fmt.Errorf("%s: lost before CMD began: %w", what, err)
		}
		p, err := startProcess(c.io, file, argv, lease.Fence())
		if err != nil {
			return err
		}
		if supervise(lease, left, p, signals) {
			why := lease.Err()
			if why == nil { // the session came back after CMD was told to end
				why = errors.New("ZooKeeper did not answer for too long")
			}
			return fmt.Errorf("%s: lost before CMD ended: %w", what, why)
		}
		if err := release(ctx, lease); err != nil {
			c.io.Sayf("%s: may stay held until the session times out: %v", what, err)
		}
		if code := exitCode(p.cmd.ProcessState); code != 0 {
			return cli.CommandError{Code: code}
		}
		return nil
	})
}

func release(ctx context.Context, lease driver.Lease) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), servers.CloseTimeout)
	defer cancel()
	return lease.Release(ctx)
}

// pathAndCommand reads "PATH -- CMD ARG…".
func pathAndCommand(cmd *cobra.Command, args []string) (path string, argv []string, err error) {
	if cmd.ArgsLenAtDash() != 1 || len(args) < 2 {
		return "", nil, cli.WrongUse("%s wants PATH -- CMD ARG…; see --help", cmd.CommandPath())
	}
	return args[0], args[1:], checkPath(args[0])
}

// checkPath accepts the path of a znode.
func checkPath(p string) error {
	if !strings.HasPrefix(p, "/") || p == "/" || path.Clean(p) != p || strings.ContainsFunc(p, unicode.IsControl) {
		return cli.WrongUse("PATH %q is not the path of a znode, such as /jobs/nightly", p)
	}
	return nil
}
