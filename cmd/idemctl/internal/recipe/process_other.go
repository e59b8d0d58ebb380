//go:build !unix

package recipe

import (
	"os"
	"os/exec"
)

// forwarded are the signals to pass on to the command.
var forwarded = []os.Signal{os.Interrupt}

// groupOfItsOwn does nothing, because this system has no process groups.
func groupOfItsOwn(*exec.Cmd) (restore func()) { return func() {} }

func groupLives(int) bool { return false }

// signalGroup kills the process if it cannot be signalled.
func signalGroup(p *os.Process, sig os.Signal) {
	if p.Signal(sig) != nil {
		_ = p.Kill()
	}
}

func exitCode(s *os.ProcessState) int { return s.ExitCode() }
