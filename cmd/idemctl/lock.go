package main

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
)

func (a *app) lock() *cobra.Command {
	var shared bool
	var w wait
	cmd := &cobra.Command{
		Use:   "lock [--shared] [--timeout 5s] PATH -- CMD ARG…",
		Short: "Run a command while holding a lock",
		Long: `Run CMD while holding the lock on PATH, a znode below the chroot. The lock is
fair: it is had in the order in which it was asked for, over all machines. With
--shared several have it at a time, and none of them together with one that
asked without.
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
			return a.hold(cmd.Context(), "lock on "+path, argv, func(ctx context.Context, client *zookeeper.Client) (*zookeeper.Lease, error) {
				m := client.RWMutex(path)
				if shared {
					return w.get(ctx, m.AcquireRead, m.TryAcquireRead)
				}
				return w.get(ctx, m.AcquireWrite, m.TryAcquireWrite)
			})
		},
	}
	cmd.Flags().BoolVar(&shared, "shared", false, "share the lock with others that do")
	w.flag(cmd)
	return cmd
}

func (a *app) semaphore() *cobra.Command {
	var permits int
	var w wait
	cmd := &cobra.Command{
		Use:   "semaphore --permits N [--timeout 5s] PATH -- CMD ARG…",
		Short: "Run a command while holding one of N permits",
		Long: `Run CMD while holding one of the N permits that there are on PATH, a znode below
the chroot. They are had in the order in which they were asked for, over all
machines. All who use a path have to name the same N: it is kept with the path
while that is in use, and another one fails.
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
				return wrongUse("semaphore needs --permits, of 1 or more")
			}
			return a.hold(cmd.Context(), "semaphore "+path, argv, func(ctx context.Context, client *zookeeper.Client) (*zookeeper.Lease, error) {
				sem := client.Semaphore(path, permits)
				return w.get(ctx, one(sem.Acquire), one(sem.TryAcquire))
			})
		},
	}
	cmd.Flags().IntVar(&permits, "permits", 0, "how many permits there are on PATH (required)")
	w.flag(cmd)
	return cmd
}

// one permit is what each command has.
func one(n func(context.Context, int) (*zookeeper.Lease, error)) acquire {
	return func(ctx context.Context) (*zookeeper.Lease, error) { return n(ctx, 1) }
}

// errNotAcquired says that others have what was asked for.
var errNotAcquired = errors.New("not acquired")

// underLease is told of both commands that run another one.
const underLease = `
CMD gets the fencing token as IDEM_FENCE, a decimal number, in its environment:
hand it to what CMD changes, and have that refuse a smaller one than it has seen.
IDEMCTL_REDIS, _DATABASE, _RESPONSE_KEYS and _ZOOKEEPER_AUTH, which can have
passwords, are taken out of it.

It runs in a process group of its own, which has the terminal where idemctl had
it. Signals (INT, TERM, HUP, QUIT, USR1, USR2) are passed on to the whole group,
and nothing is given back before the last process of it has ended. Ctrl-Z stops
CMD and not idemctl, which goes on holding. On Linux the kernel kills CMD, though
not what CMD has started, if idemctl is killed.

When the session with ZooKeeper is about to be lost the group gets SIGTERM, and
SIGKILL before anybody else can be next: 5 s later, or as soon as the session
could be over, which is a second later where it is the default of 10 s. It is
not protected while idemctl itself is stopped (SIGSTOP, a suspended machine);
that is what the fence is for.

Exits as CMD does, with 128 + n where signal n ended it; 126 where CMD cannot be
executed, 127 where it is not found; 75 where nothing was acquired within
--timeout; 1 where ZooKeeper failed, or what was held was lost before CMD ended.`

// wait is how long to wait for a lock.
type wait struct {
	limit   time.Duration
	limited func() bool
}

func (w *wait) flag(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&w.limit, "timeout", 0, "how long to wait, 0 for not at all; waits for ever without this flag")
	w.limited = func() bool { return cmd.Flags().Changed("timeout") }
}

func (w *wait) check() error {
	if w.limit < 0 {
		return wrongUse("--timeout %v is negative", w.limit)
	}
	return nil
}

// acquire is one of the ways to get a lease.
type acquire func(ctx context.Context) (*zookeeper.Lease, error)

// get waits for a lease with acquire, or has it now with try.
func (w *wait) get(ctx context.Context, acquire, try acquire) (*zookeeper.Lease, error) {
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
		return nil, fmt.Errorf("%w: told to stop", errNotAcquired)
	case errors.Is(err, idem.ErrLocked):
		return nil, fmt.Errorf("%w%s: others have it", errNotAcquired, within)
	case over != nil && errors.Is(err, idem.ErrUnavailable):
		return nil, fmt.Errorf("%w%s: %w", errNotAcquired, within, err)
	}
	return nil, err
}

// hold runs a command under the lease that get returns. what names it in
// errors.
func (a *app) hold(ctx context.Context, what string, argv []string, get func(context.Context, *zookeeper.Client) (*zookeeper.Lease, error)) error {
	file, err := findCommand(argv[0])
	if err != nil {
		return err
	}
	signals, stop := heard(forwarded...)
	defer stop()
	return a.withZooKeeper(ctx, func(client *zookeeper.Client) error {
		lease, err := get(ctx, client)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		defer lease.ReleaseInBackground() // the end of the session waits for it
		left, err := lease.Check(ctx)
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w: told to stop", what, errNotAcquired)
		}
		if err != nil {
			return fmt.Errorf("%s: lost before CMD began: %w", what, err)
		}
		p, err := a.startProcess(file, argv, lease.Fence())
		if err != nil {
			return err
		}
		if supervise(lease, left, p, signals) {
			why := lease.Err()
			if why == nil { // CMD had to go, and then it went on after all
				why = errors.New("nothing was heard of ZooKeeper for too long")
			}
			return fmt.Errorf("%s: lost before CMD ended: %w", what, why)
		}
		if err := release(ctx, lease); err != nil {
			fmt.Fprintf(a.stderr, "idemctl: %s: may stay held until the session is over: %v\n", what, err)
		}
		if code := exitCode(p.cmd.ProcessState); code != 0 {
			return commandError{code: code}
		}
		return nil
	})
}

func release(ctx context.Context, lease idem.Lease) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	return lease.Release(ctx)
}

// pathAndCommand reads "PATH -- CMD ARG…".
func pathAndCommand(cmd *cobra.Command, args []string) (path string, argv []string, err error) {
	if cmd.ArgsLenAtDash() != 1 || len(args) < 2 {
		return "", nil, wrongUse("%s wants PATH -- CMD ARG…; see --help", cmd.CommandPath())
	}
	return args[0], args[1:], checkPath(args[0])
}

// checkPath wants the path of a znode.
func checkPath(p string) error {
	if !strings.HasPrefix(p, "/") || p == "/" || path.Clean(p) != p || strings.ContainsFunc(p, unicode.IsControl) {
		return wrongUse("PATH %q is not that of a znode, such as /jobs/nightly", p)
	}
	return nil
}
