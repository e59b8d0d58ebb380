package cli

import (
	"errors"
	"fmt"
)

// Exit codes.
const (
	ExitDone    = 0
	ExitFailed  = 1
	ExitUsage   = 2
	ExitNothing = 75 // EX_TEMPFAIL: not acquired, nothing there, or timed out
)

// UsageError is an error in the command line or in a given file.
type UsageError struct{ Err error }

func (e UsageError) Error() string { return e.Err.Error() }
func (e UsageError) Unwrap() error { return e.Err }

// WrongUse returns a [UsageError].
func WrongUse(format string, args ...any) error { return UsageError{fmt.Errorf(format, args...)} }

// IsWrongUse reports whether err is a [UsageError].
func IsWrongUse(err error) bool {
	_, wrong := errors.AsType[UsageError](err)
	return wrong
}

var (
	// ErrNothing means that there is no record, element or open attempt.
	ErrNothing = errors.New("nothing there")
	// ErrNotAcquired means that another holder has the lock or the permits.
	ErrNotAcquired = errors.New("not acquired")
)

// CommandError makes idemctl exit as a command did that it ran.
type CommandError struct {
	Code int
	Err  error // why the command could not run, nil if it ran
}

func (e CommandError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

func (e CommandError) Unwrap() error { return e.Err }

// ExitCode is the exit code for an error. silent means that the command has already said
// what there is to say.
func ExitCode(err error) (code int, silent bool) {
	ended, ofCommand := errors.AsType[CommandError](err)
	switch {
	case err == nil:
		return ExitDone, true
	case ofCommand && ended.Err == nil:
		return ended.Code, true
	case IsWrongUse(err):
		return ExitUsage, false
	case ofCommand:
		return ended.Code, false
	case errors.Is(err, ErrNothing), errors.Is(err, ErrNotAcquired):
		return ExitNothing, false
	}
	return ExitFailed, false
}
