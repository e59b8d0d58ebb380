//go:build unix

package recipe

import (
	"os"
	"syscall"
)

// forwarded are the signals to pass on to the command.
var forwarded = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
}

// signalGroup sends a signal to all processes of a group. After SIGTERM it sends
// SIGCONT, because a stopped process would not see SIGTERM.
func signalGroup(leader *os.Process, sig os.Signal) {
	s, ok := sig.(syscall.Signal)
	if !ok {
		return
	}
	_ = syscall.Kill(-leader.Pid, s) // it may have ended
	if s == syscall.SIGTERM {
		_ = syscall.Kill(-leader.Pid, syscall.SIGCONT)
	}
}

// exitCode is the exit code a shell would report.
func exitCode(s *os.ProcessState) int {
	if w, ok := s.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return exitSignal + int(w.Signal())
	}
	return s.ExitCode()
}
