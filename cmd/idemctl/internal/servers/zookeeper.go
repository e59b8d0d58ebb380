package servers

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
)

// ZooKeeper has the flags about the ensemble.
type ZooKeeper struct {
	Servers        string // --zookeeper, "" without an ensemble
	SessionTimeout time.Duration
	TLS            *tls.Config // nil without --zookeeper-tls

	root    string // of the locks of keys
	tick    time.Duration
	auth    string
	overTLS bool
}

// With runs f with a session of its own.
func (z *ZooKeeper) With(ctx context.Context, f func(*zookeeper.Client) error) error {
	if z.Servers == "" {
		return cli.WrongUse("no ensemble: give --zookeeper or IDEMCTL_ZOOKEEPER")
	}
	opening, cancel := context.WithTimeout(ctx, ConnectTimeout)
	defer cancel()
	client, end, err := z.Open(opening)
	if err != nil {
		return err
	}
	defer end()
	return f(client)
}

// Open starts a session. The caller calls end.
func (z *ZooKeeper) Open(ctx context.Context) (client *zookeeper.Client, end func(), err error) {
	servers, chroot, err := z.Ensemble()
	if err != nil {
		return nil, nil, err
	}
	client, err = zookeeper.Open(ctx, zookeeper.Config{Servers: servers, Chroot: chroot, Root: z.root, SessionTimeout: z.SessionTimeout,
		TickTime: z.tick, Credentials: z.Credentials(), TLS: z.TLS, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, nil, fmt.Errorf("--zookeeper: %w", err)
	}
	return client, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), CloseTimeout)
		defer cancel()
		_ = client.Close(ctx) // otherwise the session times out
	}, nil
}

// Credentials reads --zookeeper-auth.
func (z *ZooKeeper) Credentials() []zookeeper.Credential {
	if z.auth == "" {
		return nil
	}
	return []zookeeper.Credential{{Scheme: "digest", Secret: []byte(z.auth)}}
}

// Ensemble reads --zookeeper.
func (z *ZooKeeper) Ensemble() (servers []string, chroot string, err error) {
	servers, chroot, err = zookeeper.ParseConnectString(z.Servers)
	if err != nil {
		return nil, "", cli.UsageError{Err: fmt.Errorf("--zookeeper: %w", err)}
	}
	return servers, chroot, nil
}

// NoZooKeeper adds the flag with which an operator says that the services use Redis's locks.
func NoZooKeeper(cmd *cobra.Command, to *bool) {
	cmd.Flags().BoolVar(to, "no-zookeeper", false, "the services no longer lock in any ZooKeeper ensemble, only in Redis")
}
