package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// roleVariable tells a process of this binary what to be.
const roleVariable = "IDEMKEEPER_LOAD_ROLE"

const (
	roleService   = "service"
	roleGenerator = "generator"
	roleProxy     = "proxy"
)

// Child does the work of a service, of the generator or of the proxy, if the process was started as
// one. The binary calls it first, and ends with the code if the result is true.
func Child() (child bool, code int) {
	role := os.Getenv(roleVariable)
	if role == "" {
		return false, 0
	}
	if err := runChild(role); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", role, err)
		return true, 1
	}
	return true, 0
}

func runChild(role string) error {
	ctx, in, out := context.Background(), json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	switch role {
	case roleService:
		var config serviceConfig
		if err := in.Decode(&config); err != nil {
			return err
		}
		return serve(ctx, config, in, out)
	case roleGenerator:
		return generate(ctx, in, out)
	case roleProxy:
		return serveProxy(ctx, in, out)
	default:
		return fmt.Errorf("there is no role %q", role)
	}
}

// process is a child of this binary. Both sides speak JSON, over its input and output.
// It ends when its input does, and so with this process too. It is for one goroutine.
type process struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	send   *json.Encoder
	answer *json.Decoder
	errors strings.Builder
	closed bool
}

func startProcess(ctx context.Context, role string) (*process, error) {
	binary, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.CommandContext(ctx, binary)} //nolint:gosec // this binary
	p.cmd.Env = append(os.Environ(), roleVariable+"="+role)
	p.cmd.Stderr = &p.errors
	p.cmd.WaitDelay = time.Second
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.send, p.answer = json.NewEncoder(p.in), json.NewDecoder(out)
	return p, p.cmd.Start()
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// ask sends a question and reads the answer.
func (p *process) ask(question, answer any) error {
	if err := p.send.Encode(question); err != nil {
		return p.failed(err)
	}
	if err := p.answer.Decode(answer); err != nil {
		return p.failed(err)
	}
	return nil
}

// failed ends the process and adds its complaints.
func (p *process) failed(err error) error {
	return errors.Join(err, p.close())
}

// end lets the process end. The caller calls close too.
func (p *process) end() { _ = p.in.Close() }

// close ends the process and waits for that. The second call does nothing.
func (p *process) close() error {
	if p.closed {
		return nil
	}
	p.closed = true
	p.end()
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("%w\n%s", err, p.errors.String())
	}
	return nil
}
