package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/doctor"
	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/recipe"
	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/record"
	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/servers"
	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/store"
	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/token"
)

func main() {
	signals, stop := recipe.Heard(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-signals
		cancel()
		stop() // a second signal kills, unless a command runs that gets it
	}()
	os.Exit(run(ctx, os.Args[1:], os.Getenv, os.Stdin, os.Stdout, os.Stderr))
}

// run is the program without the process around it. It returns the exit code. If the
// code is not 0 it writes one line to stderr, unless the code is that of a command it
// ran.
func run(ctx context.Context, args []string, getenv func(string) string, stdin io.Reader, stdout, stderr io.Writer) int {
	p := &program{getenv: getenv, io: cli.Streams{In: stdin, Out: stdout, Err: stderr}}
	root := p.root()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	code, silent := cli.ExitCode(err)
	if silent {
		return code
	}
	fmt.Fprintln(stderr, "idemctl: "+cli.OneLine(err))
	if !p.started { // package cobra refused the command line
		return cli.ExitUsage
	}
	return code
}

// program parses the command line and has the groups of commands.
type program struct {
	getenv  func(string) string
	io      cli.Streams
	servers servers.Flags
	started bool // package cobra has accepted flags and arguments
}

func (p *program) root() *cobra.Command {
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
		RunE:              cli.SubcommandWanted,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return p.start(cmd.Root().PersistentFlags()) },
	}
	f := root.PersistentFlags()
	p.servers.Add(f)
	f.BoolVar(&p.io.JSON, "json", false, "write one JSON object a line")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return flagError(err) })
	io, zk, all := &p.io, &p.servers.ZooKeeper, &p.servers
	root.AddCommand(recipe.Lock(io, zk), recipe.Semaphore(io, zk), recipe.Elect(io, zk), recipe.Queue(io, zk),
		store.Command(io, all), record.Command(io, all), token.Command(io, all), doctor.Command(io, all))
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
func (p *program) start(flags *pflag.FlagSet) error {
	var wrong error
	flags.VisitAll(func(f *pflag.Flag) {
		name := servers.EnvPrefix + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		v := p.getenv(name)
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
	if err := p.servers.Ready(); err != nil {
		return err
	}
	p.started = true
	return nil
}
