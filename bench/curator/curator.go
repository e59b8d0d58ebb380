// Package curator runs Apache Curator's InterProcessMutex, the lock recipe of most
// Java services, for measurements beside ours. The java command compiles its program,
// Curator.java, as it starts. It needs a plain Java runtime and the jars of Debian's
// package libcurator-recipes-java.
package curator

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

//go:embed Curator.java
var source []byte

// jars are the class path of the program. The manifest of the first one names all
// libraries of Curator. The second keeps the logging quiet.
var jars = []string{"/usr/share/java/curator-recipes.jar", "/usr/share/java/slf4j-nop.jar"}

// available returns nil if Curator can run here. Otherwise the error says what to
// install.
func available() error {
	if _, err := exec.LookPath("java"); err != nil {
		return errors.New("there is no java: install default-jre-headless and libcurator-recipes-java")
	}
	for _, jar := range jars {
		if _, err := os.Stat(jar); err != nil {
			return fmt.Errorf("there is no %s: install libcurator-recipes-java", jar)
		}
	}
	return nil
}

// Setup describes a measurement. The callers are spread over the clients and over
// the paths.
type Setup struct {
	Servers          []string
	SessionTimeout   time.Duration
	Clients, Callers int
	Paths            []string
}

// Process is a running Java program. It is for one goroutine.
type Process struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Scanner
	errors strings.Builder
	dir    string
}

// Start starts the program, which ends with ctx at the latest. The caller calls
// Close.
func Start(ctx context.Context, s Setup) (*Process, error) {
	if err := available(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "idemkeeper-curator-")
	if err != nil {
		return nil, err
	}
	p := &Process{dir: dir}
	if err := p.start(ctx, s); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return p, nil
}

func (p *Process) start(ctx context.Context, s Setup) error {
	file := filepath.Join(p.dir, "Curator.java")
	if err := os.WriteFile(file, source, 0o600); err != nil {
		return err
	}
	args := append([]string{
		"-cp", strings.Join(jars, ":"), file,
		strings.Join(s.Servers, ","), strconv.FormatInt(s.SessionTimeout.Milliseconds(), 10),
		strconv.Itoa(s.Clients), strconv.Itoa(s.Callers),
	}, s.Paths...)
	p.cmd = exec.CommandContext(ctx, "java", args...) //nolint:gosec // what Setup says is ours
	p.cmd.Stderr = &p.errors
	p.cmd.WaitDelay = time.Second
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	p.out = bufio.NewScanner(out)
	return p.cmd.Start()
}

// Run has the callers acquire and release their locks, so many times together,
// and returns how long that took: as told by the program itself.
func (p *Process) Run(pairs int) (time.Duration, error) {
	if _, err := fmt.Fprintln(p.in, pairs); err != nil {
		return 0, p.failed(err)
	}
	if !p.out.Scan() {
		return 0, p.failed(p.out.Err())
	}
	ns, err := strconv.ParseInt(p.out.Text(), 10, 64)
	if err != nil {
		return 0, p.failed(err)
	}
	return time.Duration(ns), nil
}

// failed ends the program and adds what it has complained about.
func (p *Process) failed(err error) error {
	err = errors.Join(err, p.Close())
	return fmt.Errorf("the Curator program: %w\n%s", err, p.errors.String())
}

// Close ends the program and waits for that.
func (p *Process) Close() error {
	_ = p.in.Close() // the program ends when its input does
	return errors.Join(p.cmd.Wait(), os.RemoveAll(p.dir))
}
