package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/auth"
	"github.com/idemkeeper/idemkeeper/tokenstore/sealed"
)

// Config is what flags and environment say.
type Config struct {
	HTTPAddr         string
	GRPCAddr         string
	ZooKeeper        string // hosts and chroot; "": the store's own lock, Redis's or in-process
	Redis            string // URL; "": none
	Database         string // "": embedded
	TokenStore       string // storeMemory or storeRedis
	SessionTimeout   time.Duration
	ZooKeeperTick    time.Duration // tickTime of the servers
	ProcessorLatency time.Duration
	Wait             time.Duration
	Resolver         string // resolverLedger or resolverNone
	MaxOpen          int    // payments of one merchant that may run here at once; 0: no limit
	ParentsOnDemand  bool
	DurableMarkers   bool
	MarkerRetention  time.Duration
	AcceptLoss       bool
	RedisReplicas    int    // that have to acknowledge an attempt before it starts
	ZooKeeperAuth    string // USER:PASSWORD; "": the world may unlock
	ResponseKeys     *sealed.Ring
	PlainResponses   bool
	APIKeys          auth.APIKeys
	LogLevel         slog.Level
}

// Values of --token-store and --resolver.
const (
	storeMemory    = "memory"
	storeRedis     = "redis"
	storeSQL       = "sql"
	resolverLedger = "ledger"
	resolverNone   = "none"
)

const envPrefix = "PAYMENTS_"

// ParseConfig reads flags, and the environment for flags that are not given.
// It writes to help and returns flag.ErrHelp where help is asked for.
func ParseConfig(args []string, getenv func(string) string, help io.Writer) (Config, error) {
	var c Config
	var keys, ring string
	fs := flag.NewFlagSet("example-payments", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&c.HTTPAddr, "http-addr", "127.0.0.1:8080", "`HOST:PORT` to serve HTTP on; port 0: any free port")
	fs.StringVar(&c.GRPCAddr, "grpc-addr", "127.0.0.1:9090", "`HOST:PORT` to serve gRPC on; port 0: any free port")
	fs.StringVar(&c.ZooKeeper, "zookeeper", "", "`HOST:PORT,HOST:PORT/chroot` of the lock; empty: Redis's lock with --redis, in-process lock without")
	fs.StringVar(&c.Redis, "redis", "", "`URL` of the token store: redis:// or rediss://, several for a cluster, redis+sentinel://HOST:PORT,HOST:PORT/MASTER; empty: in-process store")
	fs.StringVar(&c.Database, "database", "", "ledger: sqlite:`FILE` or postgres://…; empty: embedded, lost at exit")
	fs.StringVar(&c.TokenStore, "token-store", "", "`memory` or redis; empty: redis where --redis is given")
	fs.DurationVar(&c.SessionTimeout, "session-timeout", 10*time.Second, "ZooKeeper session, or how long a Redis lock outlives its holder")
	fs.DurationVar(&c.ZooKeeperTick, "zookeeper-tick", 0, "tickTime of the ZooKeeper servers, which a lease's safety margin is made of; 0: 2s, or what they tell where the session is too short for that")
	fs.BoolVar(&c.ParentsOnDemand, "parents-on-demand", false, "make each parent of locks in ZooKeeper when a lock needs it, and not all 4,096 ahead: for ensembles that serve for minutes")
	fs.DurationVar(&c.ProcessorLatency, "processor-latency", 0, "simulated card network: half before the ledger write, half after")
	fs.DurationVar(&c.Wait, "wait", 0, "how long a duplicate waits for the first request before 409")
	fs.IntVar(&c.MaxOpen, "max-open", 0, "`number` of payments of one merchant that may run in this process at once, 429 beyond that; 0: no limit")
	fs.StringVar(&c.Resolver, "resolver", resolverLedger, "`ledger`: look interrupted payments up; none: leave unknown outcomes unknown")
	fs.BoolVar(&c.DurableMarkers, "durable-markers", false, "keep used keys marked in ZooKeeper, so that none is executed again where Redis lost its records")
	fs.BoolVar(&c.AcceptLoss, "accept-loss", true, "with --durable-markers: accept that Redis lost its records without an operator; false until every instance has left markers for as long as clients repeat a request")
	fs.DurationVar(&c.MarkerRetention, "marker-retention", time.Hour, "how long completed keys stay marked")
	fs.IntVar(&c.RedisReplicas, "redis-replicas", 0, "`number` of Redis replicas that have to acknowledge an attempt before it starts; 0: none")
	fs.StringVar(&c.ZooKeeperAuth, "zookeeper-auth", "", "`USER:PASSWORD` (digest), so that nobody else can delete locks; better in the environment than on a command line")
	fs.StringVar(&ring, "response-keys", "", "`ID=BASE64,…`: 32-byte keys with which stored responses are encrypted, the one to encrypt with first; empty: they are not; better in the environment")
	fs.BoolVar(&c.PlainResponses, "accept-plain-responses", false, "with --response-keys: accept stored responses that are not encrypted, for as long as some are left from before")
	fs.StringVar(&keys, "api-keys", "demo=merchant_demo,test=merchant_test", "`TOKEN=MERCHANT,…`: who may call")
	fs.TextVar(&c.LogLevel, "log-level", slog.LevelInfo, "`level` of what is logged to standard error: debug, info, warn or error")
	if err := parse(fs, args, getenv); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			printHelp(fs, help)
		}
		return Config{}, err
	}
	var err error
	if c.APIKeys, err = auth.ParseAPIKeys(keys); err != nil {
		return Config{}, fmt.Errorf("--api-keys: %w", err)
	}
	if ring != "" {
		if c.ResponseKeys, err = sealed.ParseRing(ring); err != nil {
			return Config{}, fmt.Errorf("--response-keys: %w", err)
		}
	}
	return c, c.check()
}

// parse lets a flag beat its environment variable, even one that is wrong.
func parse(fs *flag.FlagSet, args []string, getenv func(string) string) error {
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	given := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	var wrong error
	fs.VisitAll(func(f *flag.Flag) {
		v := getenv(envName(f.Name))
		if v == "" || given[f.Name] || wrong != nil {
			return
		}
		if err := fs.Set(f.Name, v); err != nil {
			wrong = fmt.Errorf("invalid value %q for %s: %w", v, envName(f.Name), err)
		}
	})
	return wrong
}

func envName(flagName string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flagName, "-", "_"))
}

func printHelp(fs *flag.FlagSet, w io.Writer) {
	fmt.Fprintln(w, "Usage: example-payments [flags]\n\nA payment service that is safe to retry. Every flag has an environment variable,\nPAYMENTS_ and its name in capitals; the flag wins.\n\nFlags:")
	fs.VisitAll(func(f *flag.Flag) {
		arg, usage := flag.UnquoteUsage(f)
		fmt.Fprintf(w, "  --%s %s\n    \t%s", f.Name, arg, usage)
		if f.DefValue != "" {
			fmt.Fprintf(w, " (default %s)", f.DefValue)
		}
		fmt.Fprintln(w)
	})
}

// check refuses what cannot work or is not safe, and fills in the token store.
func (c *Config) check() error {
	if _, _, err := net.SplitHostPort(c.HTTPAddr); err != nil {
		return fmt.Errorf("--http-addr: %w", err)
	}
	if _, _, err := net.SplitHostPort(c.GRPCAddr); err != nil {
		return fmt.Errorf("--grpc-addr: %w", err)
	}
	for name, d := range map[string]time.Duration{"processor-latency": c.ProcessorLatency, "wait": c.Wait, "zookeeper-tick": c.ZooKeeperTick} {
		if d < 0 {
			return fmt.Errorf("--%s: %v is negative", name, d)
		}
	}
	if c.MaxOpen < 0 {
		return fmt.Errorf("--max-open: %d is negative", c.MaxOpen)
	}
	if c.SessionTimeout <= 0 {
		return fmt.Errorf("--session-timeout: %v is not positive", c.SessionTimeout)
	}
	if c.DurableMarkers && c.ZooKeeper == "" {
		return errors.New("--durable-markers needs --zookeeper, where they are kept")
	}
	if c.ZooKeeperAuth != "" && c.ZooKeeper == "" {
		return errors.New("--zookeeper-auth without --zookeeper")
	}
	if c.PlainResponses && c.ResponseKeys == nil {
		return errors.New("--accept-plain-responses without --response-keys")
	}
	if c.MarkerRetention <= 0 {
		return fmt.Errorf("--marker-retention: %v is not positive", c.MarkerRetention)
	}
	if c.RedisReplicas < 0 || c.RedisReplicas > 0 && c.Redis == "" {
		return fmt.Errorf("--redis-replicas: %d without --redis, or negative", c.RedisReplicas)
	}
	if c.Resolver != resolverLedger && c.Resolver != resolverNone {
		return fmt.Errorf("--resolver: %q is neither ledger nor none", c.Resolver)
	}
	return c.checkStore()
}

// ledgerIsPrivate reports whether keys are shared with other instances, and the
// ledger is not.
func (c *Config) ledgerIsPrivate() bool { return c.TokenStore != storeMemory && c.Database == "" }

func (c *Config) checkStore() error {
	switch c.TokenStore {
	case "":
		c.TokenStore = storeMemory
		if c.Redis != "" {
			c.TokenStore = storeRedis
		}
	case storeRedis:
		if c.Redis == "" {
			return errors.New("--token-store redis needs --redis")
		}
	case storeMemory:
	case storeSQL:
		return errors.New("--token-store sql: this build does not have it yet; use memory or redis")
	default:
		return fmt.Errorf("--token-store: %q is none of memory, redis, sql", c.TokenStore)
	}
	return nil
}
