//go:build !unix

package crashtest

import (
	"errors"
	"os"
)

var canStop = false

func stopSelf() { panic("crashtest: this platform cannot stop a process") }

func continueProcess(*os.Process) error { return errors.ErrUnsupported }
