package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/idemkeeper/idemkeeper/internal/operate"
	"github.com/idemkeeper/idemkeeper/internal/tlsfiles"
)

// Exit codes.
const (
	exitDone    = 0
	exitFailed  = 1
	exitUsage   = 2
	exitNothing = 75 // EX_TEMPFAIL: not acquired, nothing there, or timed out
)

func main() {
	signals, stop := heard(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-signals
		cancel()
		stop() // a second signal kills, unless a command runs that gets it
	}()
	os.Exit(run(ctx, os.Args[1:], os.Getenv, os.Stdin, os.Stdout, os.Stderr))
}

// usageError is an error in the command line or in a given file.
type usageError struct{ error }

func wrongUse(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// isWrongUse reports whether err is a usageError.
func isWrongUse(err error) bool {
	_, wrong := errors.AsType[usageError](err)
	return wrong
}

// errNothing means that there is no record, element or open attempt.
var errNothing = errors.New("nothing there")

// settledError is errNothing in words of its own. Its text says what became of the attempt.
type settledError struct{ text string }

func (e settledError) Error() string { return e.text }
func (settledError) Unwrap() error   { return errNothing }

// run is the program without the process around it. It returns the exit code. If the
// code is not 0 it writes one line to stderr, unless the code is that of a command it
// ran.
func run(ctx context.Context, args []string, getenv func(string) string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{getenv: getenv, stdin: stdin, stdout: stdout, stderr: stderr}
	root := a.root()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	ended, ofCommand := errors.AsType[commandError](err)
	if ofCommand && ended.err == nil {
		return ended.code
	}
	fmt.Fprintln(stderr, "idemctl: "+operate.OneLine(strings.Join(strings.Fields(err.Error()), " ")))
	switch {
	case isWrongUse(err), !a.started: // package cobra refused the command line
		return exitUsage
	case ofCommand:
		return ended.code
	case errors.Is(err, errNothing), errors.Is(err, errNotAcquired):
		return exitNothing
	}
	return exitFailed
}

const envPrefix = "IDEMCTL_"

// app holds the global flags and the streams of a command. It has more methods than a
// type should have, because every command and its steps are methods, each in the file
// of its group. They share nothing but these flags.
type app struct {
	getenv         func(string) string
	stdin          io.Reader // nil for an empty input
	stdout, stderr io.Writer
	started        bool // package cobra has accepted flags and arguments

	zookeeper      string
	zookeeperTick  time.Duration
	zookeeperAuth  string
	zookeeperTLS   bool
	tlsFiles       tlsfiles.Files
	tls            *tls.Config // of tlsFiles
	responseKeys   string
	plainResponses bool
	witness        string
	redis          string
	prefix         string
	database       string
	tables, schema string
	sessionTimeout time.Duration
	json           bool
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "idemctl",
		Short: "Look into idempotency records, and use ZooKeeper's recipes from a shell",
		Long: `Look into idempotency records, and settle outcomes that only an operator can
settle. Run commands under a lock, elect a leader and use a queue, over all
machines that share a ZooKeeper.

Every global flag has an environment variable, IDEMCTL_ and the name of the flag
in capitals (IDEMCTL_SESSION_TIMEOUT). The flag wins.

Exit codes: 0 done; 1 failed; 2 wrong use; 75 nothing there, not acquired or
timed out. lock and semaphore exit as their command does.`,
		Example: `  idemctl --zookeeper 127.0.0.1:2181 lock --timeout 5s /jobs/nightly -- ./nightly.sh
  idemctl --redis redis://127.0.0.1:6379 record list --state unknown --older-than 1m
  idemctl --redis redis://127.0.0.1:6379 --zookeeper 127.0.0.1:2181 doctor
  idemctl completion bash > /etc/bash_completion.d/idemctl`,
		Version:           version(),
		SilenceUsage:      true,
		SilenceErrors:     true,
		Args:              cobra.NoArgs,
		RunE:              subcommandWanted,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return a.start(cmd.Root().PersistentFlags()) },
	}
	f := root.PersistentFlags()
	f.StringVar(&a.zookeeper, "zookeeper", "", "ZooKeeper ensemble, as `HOST:PORT,HOST:PORT/chroot`")
	f.DurationVar(&a.zookeeperTick, "zookeeper-tick", 0, "tickTime of the ZooKeeper servers; 0 means 2s, or less for a session too short for that")
	f.StringVar(&a.witness, "witness", "", "`PATH` of the znode where the services remember their Redis (default /idem/redis, or /idem/redis/PREFIX with another --prefix)")
	f.StringVar(&a.redis, "redis", "", "`URL` of the token store: redis://HOST:PORT or rediss:// with TLS, several with commas for a cluster, or redis+sentinel://HOST:PORT,HOST:PORT/MASTER")
	f.StringVar(&a.prefix, "prefix", "idem", "`prefix` of the store's keys in Redis")
	f.StringVar(&a.zookeeperAuth, "zookeeper-auth", "", "`USER:PASSWORD` (digest) of the services at ZooKeeper; better set in the environment")
	f.BoolVar(&a.zookeeperTLS, "zookeeper-tls", false, "reach ZooKeeper over TLS (its secureClientPort)")
	f.StringVar(&a.tlsFiles.CA, "tls-ca", "", tlsfiles.HelpCA)
	f.StringVar(&a.tlsFiles.Cert, "tls-cert", "", tlsfiles.HelpCert)
	f.StringVar(&a.tlsFiles.Key, "tls-key", "", tlsfiles.HelpKey)
	f.StringVar(&a.responseKeys, "response-keys", "", "`ID=BASE64,…`: the services' keys for stored responses; the first encrypts, all decrypt; better set in the environment")
	f.BoolVar(&a.plainResponses, "accept-plain-responses", false, "with --response-keys, also accept stored responses without encryption")
	f.StringVar(&a.database, "database", "", "`URL` of a token store in SQL, used without --redis: postgres://USER:PASSWORD@HOST:PORT/NAME, mysql://… likewise, or sqlite:FILE; a password is better set in the environment")
	f.StringVar(&a.tables, "table-prefix", "idem_", "`prefix` of the store's tables in --database")
	f.StringVar(&a.schema, "schema", "", "`schema` of the tables, if it is not the connection's own")
	f.DurationVar(&a.sessionTimeout, "session-timeout", 10*time.Second, "ZooKeeper session time-out")
	f.BoolVar(&a.json, "json", false, "write one JSON object a line")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return flagError(err) })
	root.AddCommand(a.lock(), a.semaphore(), a.elect(), a.queue(), a.store(), a.record(), a.token(), a.doctor())
	return root
}

var flagName = regexp.MustCompile(`^[a-z]+(-[a-z]+){0,3}$`)

// flagError tells of a wrong flag. A key or a token may begin with a dash and is secret, so only a
// name that looks like a flag's is shown.
func flagError(err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok || unknown.GetSpecifiedShortnames() == "" && flagName.MatchString(unknown.GetSpecifiedName()) {
		return err
	}
	return errors.New("unknown flag; a key or token that begins with a dash comes after --")
}

// version is the tag or commit of this build, as the go command has noted it.
func version() string {
	of := "unknown"
	if build, ok := debug.ReadBuildInfo(); ok && build.Main.Version != "" {
		of = build.Main.Version
	}
	return of + " (" + runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH + ")"
}

// start takes missing flags from the environment. Package cobra calls it when it has
// accepted flags and arguments.
func (a *app) start(flags *pflag.FlagSet) error {
	var wrong error
	flags.VisitAll(func(f *pflag.Flag) {
		name := envPrefix + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		v := a.getenv(name)
		if f.Name == "help" || f.Changed || v == "" || wrong != nil {
			return
		}
		if err := f.Value.Set(v); err != nil {
			wrong = fmt.Errorf("invalid value %q for %s: %w", v, name, err)
		}
	})
	if wrong != nil {
		return wrong
	}
	if a.tls, wrong = a.tlsFiles.Config(); wrong != nil {
		return wrong
	}
	a.started = true
	return nil
}

// subcommandWanted refuses a command without its subcommand.
func subcommandWanted(cmd *cobra.Command, _ []string) error {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return wrongUse("%s needs a subcommand: %s; see --help", cmd.CommandPath(), strings.Join(names, ", "))
}
