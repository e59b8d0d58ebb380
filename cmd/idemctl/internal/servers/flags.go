// Package servers has the global flags that name servers, and the connections to them.
// A command gets the part that it needs. A recipe gets [ZooKeeper] alone, and a command
// about records opens [Backends].
package servers

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	idemzk "github.com/idemkeeper/idemkeeper/engine/zookeeper"
	"github.com/idemkeeper/idemkeeper/internal/tlsfiles"
)

// How long connecting and closing may take.
const (
	ConnectTimeout = 12 * time.Second
	CloseTimeout   = 3 * time.Second

	lookTimeout = 5 * time.Second // for an ensemble that a command can do without
)

// Flags are the global flags about servers.
type Flags struct {
	ZooKeeper ZooKeeper
	Redis     Redis
	Database  Database
	Responses Responses

	files tlsfiles.Files
}

// Add adds the flags to a flag set.
func (s *Flags) Add(f *pflag.FlagSet) {
	f.StringVar(&s.ZooKeeper.Servers, "zookeeper", "", "ZooKeeper ensemble, as `HOST:PORT,HOST:PORT/chroot`")
	f.DurationVar(&s.ZooKeeper.tick, "zookeeper-tick", 0, "tickTime of the ZooKeeper servers; 0 means 2s, or less for a session too short for that")
	f.StringVar(&s.Redis.witness, "witness", "", "`PATH` of the znode where the services remember their Redis (default /idem/redis, or /idem/redis/PREFIX with another --prefix)")
	f.StringVar(&s.ZooKeeper.root, "lock-root", "", "`PATH` of the parent of the locks of keys in ZooKeeper (default /lock, or /idem/lock/PREFIX with another --prefix)")
	f.StringVar(&s.Redis.URL, "redis", "", "`URL` of the token store: redis://HOST:PORT or rediss:// with TLS, several with commas for a cluster, or redis+sentinel://HOST:PORT,HOST:PORT/MASTER")
	f.StringVar(&s.Redis.Prefix, "prefix", "idem", "`prefix` of the store's keys in Redis")
	f.StringVar(&s.ZooKeeper.auth, "zookeeper-auth", "", "`USER:PASSWORD` (digest) of the services at ZooKeeper; better set in the environment")
	f.BoolVar(&s.ZooKeeper.overTLS, "zookeeper-tls", false, "reach ZooKeeper over TLS (its secureClientPort)")
	f.StringVar(&s.files.CA, "tls-ca", "", tlsfiles.HelpCA)
	f.StringVar(&s.files.Cert, "tls-cert", "", tlsfiles.HelpCert)
	f.StringVar(&s.files.Key, "tls-key", "", tlsfiles.HelpKey)
	f.StringVar(&s.Responses.keys, "response-keys", "", "`ID=BASE64,…`: the services' keys for stored responses; the first encrypts, all decrypt; better set in the environment")
	f.BoolVar(&s.Responses.plain, "accept-plain-responses", false, "with --response-keys, also accept stored responses without encryption")
	f.StringVar(&s.Database.URL, "database", "", "`URL` of a token store in SQL, used without --redis: postgres://USER:PASSWORD@HOST:PORT/NAME, mysql://… likewise, or sqlite:FILE; a password is better set in the environment")
	f.StringVar(&s.Database.tables, "table-prefix", "idem_", "`prefix` of the store's tables in --database")
	f.StringVar(&s.Database.schema, "schema", "", "`schema` of the tables, if it is not the connection's own")
	f.DurationVar(&s.ZooKeeper.SessionTimeout, "session-timeout", 10*time.Second, "ZooKeeper session time-out")
}

// Ready reads the files of the TLS flags, once all flags are set.
func (s *Flags) Ready() error {
	config, err := s.files.Config()
	if err != nil {
		return err
	}
	s.Redis.TLS, s.Database.files = config, s.files
	if s.ZooKeeper.overTLS {
		s.ZooKeeper.TLS = config
	}
	if s.ZooKeeper.root == "" && s.Redis.Prefix != "" { // which Redis refuses
		s.ZooKeeper.root = idemzk.LockRoot(s.Redis.Prefix)
	}
	return nil
}

// Secrets are the variables that may hold passwords, without their prefix.
func Secrets() []string { return []string{"REDIS", "DATABASE", "RESPONSE_KEYS", "ZOOKEEPER_AUTH"} }

// EnvPrefix begins the environment variable of each global flag.
const EnvPrefix = "IDEMCTL_"

// ErrBothWays means that --zookeeper and --no-zookeeper were given.
var ErrBothWays = cli.WrongUse("--zookeeper (or IDEMCTL_ZOOKEEPER) and --no-zookeeper contradict each other")
