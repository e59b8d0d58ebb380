package main

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/internal/database"
	"github.com/idemkeeper/idemkeeper/internal/tlsfiles"
	"github.com/idemkeeper/idemkeeper/tokenstore/sealed"
)

// Config holds the settings from flags and environment. The help texts of the flags
// explain them.
type Config struct {
	HTTPAddr         string
	GRPCAddr         string
	ZooKeeper        string
	Redis            string
	Database         string
	TokenStore       string // storeMemory, storeRedis or storeSQL
	Lock             string // "" or lockSQL
	SessionTimeout   time.Duration
	ZooKeeperTick    time.Duration
	ProcessorLatency time.Duration
	Wait             time.Duration
	Resolver         string // resolverLedger or resolverNone
	MaxOpen          int
	DurableMarkers   bool
	MarkerRetention  time.Duration
	AcceptLoss       bool
	RedisReplicas    int
	ZooKeeperAuth    string
	ZooKeeperTLS     bool
	TLSFiles         tlsfiles.Files
	TLS              *tls.Config // of TLSFiles
	ResponseKeys     *sealed.Ring
	PlainResponses   bool
	FingerprintKeys  *sealed.Ring
	APIKeys          payments.APIKeys
	Operators        operators // of the console
	LocalOperators   bool      // the operators are the default ones
	ConsoleTokenKey  []byte    // of the console's forms; nil is random
	Demo             bool
	Inherited        bool // the parent of a demo has bound the ports
	LogLevel         slog.Level

	wrap wrappers
}

// wrappers change the clients of servers. Tests watch and break connections with them.
type wrappers struct {
	database  database.Options
	redis     func(goredis.UniversalClient)
	zookeeper func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Values of --token-store, --lock and --resolver.
const (
	storeMemory    = "memory"
	storeRedis     = "redis"
	storeSQL       = "sql"
	lockSQL        = "sql"
	resolverLedger = "ledger"
	resolverNone   = "none"
)

const envPrefix = "PAYMENTS_"

// ParseConfig reads the flags, and the environment for missing flags. For --help it
// writes to help and returns flag.ErrHelp.
func ParseConfig(args []string, getenv func(string) string, help io.Writer) (Config, error) {
	var c Config
	var keys, ring, fingerprints, ops, tokenKey string
	fs := flag.NewFlagSet("example-payments", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&c.HTTPAddr, "http-addr", "127.0.0.1:8080", "`HOST:PORT` for HTTP; port 0 takes any free port")
	fs.StringVar(&c.GRPCAddr, "grpc-addr", "127.0.0.1:9090", "`HOST:PORT` for gRPC; port 0 takes any free port")
	fs.StringVar(&c.ZooKeeper, "zookeeper", "", "`HOST:PORT,HOST:PORT/chroot` of the ZooKeeper lock; without it the lock is that of the token store. With --token-store sql it only elects the instance that sweeps")
	fs.StringVar(&c.Redis, "redis", "", "`URL` of the token store: redis:// or rediss://, several with commas for a cluster, or redis+sentinel://HOST:PORT,HOST:PORT/MASTER (rediss+sentinel:// with TLS)")
	fs.StringVar(&c.Database, "database", "", "`DATABASE` of the ledger: sqlite:FILE (for one instance), postgres://… or mysql://USER:PASSWORD@HOST:PORT/DATABASE; without it the ledger is embedded and lost at exit; better set in the environment if it has a password")
	fs.StringVar(&c.TokenStore, "token-store", "", "`STORE` of the records: sql (in --database, committed together with the payment), redis, or memory; by default redis with --redis, and sql without")
	fs.StringVar(&c.Lock, "lock", "", "`LOCK`: sql for rows in --database, with --token-store sql on PostgreSQL or MySQL. The records then do not commit together with the payments, and no transaction is open while the card network is called; without it the lock is as --zookeeper says")
	fs.DurationVar(&c.SessionTimeout, "session-timeout", 10*time.Second, "ZooKeeper session time-out, or how long a lock in Redis or SQL outlives its holder")
	fs.DurationVar(&c.ZooKeeperTick, "zookeeper-tick", 0, "tickTime of the ZooKeeper servers, used for the safety margin of a lease; 0 means 2s, or less for a session too short for that")
	fs.DurationVar(&c.ProcessorLatency, "processor-latency", 0, "simulated card network, half of it before the ledger write and half after; with --token-store sql and without --lock all of it before")
	fs.DurationVar(&c.Wait, "wait", 0, "how long a duplicate waits for the first request before it gets 409")
	fs.IntVar(&c.MaxOpen, "max-open", 0, "greatest `number` of payments of one merchant that run in this process at once; more get 429; 0 means no limit")
	fs.StringVar(&c.Resolver, "resolver", resolverLedger, "`RESOLVER` of unknown outcomes: ledger looks payments up, none leaves them unknown; to see one in the console, add --token-store memory and crash a charge on the page at /, because with --token-store sql none remains")
	fs.BoolVar(&c.DurableMarkers, "durable-markers", false, "mark used keys in ZooKeeper, so that no key runs again if Redis loses its records; with --token-store sql the records then do not commit together with the payments")
	fs.BoolVar(&c.AcceptLoss, "accept-loss", true, "with --durable-markers, go on without an operator if Redis loses its records; set false until every instance has left markers for as long as clients repeat a request")
	fs.DurationVar(&c.MarkerRetention, "marker-retention", time.Hour, "how long completed keys stay marked in ZooKeeper")
	fs.IntVar(&c.RedisReplicas, "redis-replicas", 0, "`number` of Redis replicas to acknowledge an attempt before it starts")
	fs.StringVar(&c.ZooKeeperAuth, "zookeeper-auth", "", "`USER:PASSWORD` (digest), so that no other user can delete locks; better set in the environment")
	fs.BoolVar(&c.ZooKeeperTLS, "zookeeper-tls", false, "reach ZooKeeper over TLS (its secureClientPort)")
	fs.StringVar(&c.TLSFiles.CA, "tls-ca", "", tlsfiles.HelpCA)
	fs.StringVar(&c.TLSFiles.Cert, "tls-cert", "", tlsfiles.HelpCert)
	fs.StringVar(&c.TLSFiles.Key, "tls-key", "", tlsfiles.HelpKey)
	fs.StringVar(&ring, "response-keys", "", "`ID=BASE64,…`: 32-byte keys to encrypt stored responses; the first encrypts, all decrypt; better set in the environment")
	fs.BoolVar(&c.PlainResponses, "accept-plain-responses", false, "with --response-keys, also accept stored responses without encryption, left from before")
	fs.StringVar(&fingerprints, "fingerprint-keys", "", "`ID=BASE64,…`: 32-byte keys, so that a reader of the token store cannot guess requests from their fingerprints; the first makes them, all compare; the same on all instances; better set in the environment")
	fs.StringVar(&keys, "api-keys", "demo=merchant_demo,test=merchant_test", "`TOKEN=MERCHANT,…`: bearer tokens and their merchants")
	fs.StringVar(&ops, "operators", "", "`NAME=PASSWORD,…`: those who may use /console/; without it there is no console, except that an instance without servers on this machine's own address has "+localOperators+"; better set in the environment")
	fs.StringVar(&tokenKey, "console-token-key", "", "`BASE64`: 32 random bytes that instances behind one address share, so that a form of /console/ from one of them is good at the others; without it each instance makes its own at its start, and a form that comes back to another one is refused (403) until its page is loaded again; better set in the environment")
	fs.BoolVar(&c.Demo, "demo", false, "let the page at / crash this instance in the middle of a charge, and start another one; without --database the ledger is in a temporary file")
	fs.TextVar(&c.LogLevel, "log-level", slog.LevelInfo, "`level` of the log on standard error: debug, info, warn or error")
	if err := parse(fs, args, getenv); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			printHelp(fs, help)
		}
		return Config{}, err
	}
	var err error
	if c.APIKeys, err = payments.ParseAPIKeys(keys); err != nil {
		return Config{}, fmt.Errorf("--api-keys: %w", err)
	}
	c.Inherited = getenv(inheritedEnv) != ""
	if ops == "" && c.local() {
		ops, c.LocalOperators = localOperators, true
	} else if ops == localOperators && c.Inherited { // from the parent
		c.LocalOperators = true
	}
	if c.Operators, err = parseOperators(ops); err != nil {
		return Config{}, fmt.Errorf("--operators: %w", err)
	}
	if ring != "" {
		if c.ResponseKeys, err = sealed.ParseRing(ring); err != nil {
			return Config{}, fmt.Errorf("--response-keys: %w", err)
		}
	}
	if fingerprints != "" {
		if c.FingerprintKeys, err = sealed.ParseRing(fingerprints); err != nil {
			return Config{}, fmt.Errorf("--fingerprint-keys: %w", err)
		}
	}
	if tokenKey != "" {
		c.ConsoleTokenKey, err = base64.StdEncoding.DecodeString(tokenKey)
		if err != nil || len(c.ConsoleTokenKey) < 32 { // err may quote the key
			return Config{}, errors.New("--console-token-key: want 32 or more random bytes in base64, as openssl rand -base64 32 prints them")
		}
	}
	return c, c.check()
}

// parse reads flags and environment. A flag wins over its variable, even over a wrong
// one.
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
	fmt.Fprintln(w, "Usage: example-payments [flags]\n\nA payment service that is safe to retry. Every flag has an environment variable,\nPAYMENTS_ and the name of the flag in capitals. The flag wins.\n\nFlags:")
	fs.VisitAll(func(f *flag.Flag) {
		arg, usage := flag.UnquoteUsage(f)
		fmt.Fprintf(w, "  --%s %s\n    \t%s", f.Name, arg, usage)
		if f.DefValue != "" {
			fmt.Fprintf(w, " (default %s)", f.DefValue)
		}
		fmt.Fprintln(w)
	})
}

// check refuses settings that cannot work or are not safe, and fills in the token
// store.
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
		return errors.New("--durable-markers needs --zookeeper to keep them")
	}
	if c.ZooKeeperAuth != "" && c.ZooKeeper == "" {
		return errors.New("--zookeeper-auth without --zookeeper")
	}
	if err := c.checkTLS(); err != nil {
		return err
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

// checkTLS reads the files. They must not lead an operator to believe that a connection is
// secured while none is.
func (c *Config) checkTLS() (err error) {
	if c.ZooKeeperTLS && c.ZooKeeper == "" {
		return errors.New("--zookeeper-tls without --zookeeper")
	}
	onServer := c.Database != "" && !strings.HasPrefix(c.Database, "sqlite:")
	if c.TLSFiles.Given() && !c.ZooKeeperTLS && !strings.HasPrefix(c.Redis, "rediss") && !onServer {
		return errors.New("--tls-ca, --tls-cert: no server is reached over TLS; give --zookeeper-tls, rediss:// or a database on a server")
	}
	c.TLS, err = c.TLSFiles.Config()
	return err
}

// joined reports whether the records commit together with the payments. Markers belong
// to a lock, and there is none in joined mode.
func (c *Config) joined() bool { return c.TokenStore == storeSQL && !c.DurableMarkers && c.Lock == "" }

// ledgerIsPrivate reports whether instances share the keys without sharing the ledger.
func (c *Config) ledgerIsPrivate() bool { return c.TokenStore == storeRedis && c.Database == "" }

// lockIsSharedAlone reports whether instances share the lock, and neither keys nor ledger.
func (c *Config) lockIsSharedAlone() bool {
	return c.TokenStore == storeMemory && c.Database == "" && (c.ZooKeeper != "" || c.Redis != "")
}

// ledgerIsOwn reports whether the keys are in this process, or in a database that one
// process owns. Another instance on this ledger would pay again.
func (c *Config) ledgerIsOwn() bool {
	onServer := c.Database != "" && !strings.HasPrefix(c.Database, "sqlite:")
	return c.TokenStore == storeMemory || c.TokenStore == storeSQL && !onServer
}

func (c *Config) checkStore() error {
	switch c.TokenStore {
	case "":
		c.TokenStore = storeSQL
		if c.Redis != "" {
			c.TokenStore = storeRedis
		}
	case storeRedis:
		if c.Redis == "" {
			return errors.New("--token-store redis needs --redis")
		}
	case storeMemory, storeSQL:
	default:
		return fmt.Errorf("--token-store: %q is not memory, redis or sql", c.TokenStore)
	}
	switch {
	case c.Lock == "":
	case c.Lock != lockSQL:
		return fmt.Errorf("--lock: %q is not sql", c.Lock)
	case c.TokenStore != storeSQL:
		return errors.New("--lock sql needs --token-store sql")
	case c.ZooKeeper != "":
		return errors.New("--lock sql with --zookeeper: only one of them can have the lock")
	case c.ledgerIsOwn():
		return errors.New("--lock sql needs a --database that several instances share: postgres:// or mysql://")
	}
	return nil
}
